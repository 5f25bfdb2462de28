from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import xarray as xr

from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Experiment, Result, Row, Scale
from foretrain.support.errors import FileError, InputError

computed: list[str] = []


def number(name: str, value: float) -> xr.Dataset:
    computed.append(name)
    return xr.Dataset({"x": ("n", [value])})


@dataclass(frozen=True)
class Plan:
    """What is added to both parts."""

    more: float = 0.0


PLANS = dict.fromkeys(Scale, Plan())


def in_two_parts(plan: Plan, seed: int, parts: Parts) -> Result:
    found = [
        float(parts.get(f"part {n} / {seed}", lambda n=n: number(f"{n}", n + plan.more)).x[0]) for n in (1, 2)
    ]
    if len(computed) == 2 and seed == 7:
        raise KeyboardInterrupt
    return Result("", (Row("sum", "3", sum(found)),), xr.Dataset())


@pytest.fixture(autouse=True)
def nothing_computed() -> None:
    computed.clear()


LONG = Experiment("long", "Long", "nobody", f"{__name__}:in_two_parts", resumable=True)


def test_without_a_folder_everything_is_computed() -> None:
    assert [LONG.run().table[0].here for _ in range(2)] == [3, 3]
    assert computed == ["1", "2"] * 2


def test_a_second_run_goes_on_from_the_finished_parts(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        LONG.run(seed=7, keep=tmp_path / "parts")
    computed.append("again")
    assert LONG.run(seed=7, keep=tmp_path / "parts").table[0].here == 3
    assert computed == ["1", "2", "again"]


def test_a_folder_of_another_run_is_refused(tmp_path: Path) -> None:
    LONG.run(seed=1, keep=tmp_path / "parts")
    with pytest.raises(FileError, match=r"another run \(.*seed 1\)"):
        LONG.run(seed=2, keep=tmp_path / "parts")
    (tmp_path / "mine.txt").write_text("x")
    with pytest.raises(FileError, match="holds other files"):
        Parts(tmp_path, {"seed": 1})
    with pytest.raises(FileError, match="is a file"):
        Parts(tmp_path / "mine.txt", {"seed": 1})


@pytest.mark.parametrize("content", ["{", "[1]", "3"])
def test_a_damaged_label_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "experiment.json").write_text(content)
    with pytest.raises(FileError, match=r"experiment\.json is damaged"):
        Parts(tmp_path, {"seed": 1})


def test_parts_of_another_plan_are_refused(tmp_path: Path) -> None:
    LONG.run(keep=tmp_path / "parts")
    with pytest.raises(FileError, match="parts of another run"):
        LONG.run(plan=Plan(0.5), keep=tmp_path / "parts")
    for _ in range(2):
        assert LONG.run(plan=Plan(0.5), keep=tmp_path / "other").table[0].here == 4
    assert computed == ["1", "2"] * 2
    with pytest.raises(FileError, match=r"another run \(.*plan Plan\(more=0.5\)\)"):
        LONG.run(keep=tmp_path / "other")


def test_a_damaged_part_is_refused(tmp_path: Path) -> None:
    LONG.run(keep=tmp_path / "parts")
    (tmp_path / "parts" / "part_1_0.zarr" / ".zmetadata").write_text("{")
    with pytest.raises(FileError, match="damaged"):
        LONG.run(keep=tmp_path / "parts")


def test_a_short_experiment_keeps_nothing(tmp_path: Path) -> None:
    short = Experiment(
        "short", "Short", "nobody", "foretrain.experiments.effective_theory.foundations:parameter_count"
    )
    with pytest.raises(InputError, match="no parts"):
        short.run(keep=tmp_path / "parts")


def test_what_a_kill_left_of_the_claim_is_no_reason_to_refuse(tmp_path: Path) -> None:
    (tmp_path / ".lock").touch()
    (tmp_path / ".experiment.json.partial-here-1-0123abcd").touch()
    Parts(tmp_path, {"seed": 1}).close()
    (tmp_path / "experiment.json").unlink()
    (tmp_path / ".git").touch()
    with pytest.raises(FileError, match="holds other files"):
        Parts(tmp_path, {"seed": 1})


HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
)


def test_a_new_folder_that_another_process_is_about_to_claim_is_refused(tmp_path: Path) -> None:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / ".lock")], **pipes) as other:
        assert other.stdout is not None
        other.stdout.readline()  # the lock is held
        with pytest.raises(FileError, match="another writer"):
            Parts(tmp_path, {"seed": 1})
        other.communicate(b"\n")
    assert not (tmp_path / "experiment.json").exists()
