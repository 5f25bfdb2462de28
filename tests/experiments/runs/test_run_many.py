"""Several experiments from Python: records, what is kept, what is refused."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import xarray as xr

import foretrain as ft
from foretrain.experiments import registry, run_many
from foretrain.experiments import runs as many
from foretrain.experiments.registry import Experiment, Result, Row, Scale
from foretrain.experiments.runs import Record, Task
from foretrain.support.atomic import new_file
from foretrain.support.errors import FileError, InputError

CALLS: list[str] = []


@dataclass(frozen=True)
class Plan:
    """Nothing depends on the scale."""


PLANS = dict.fromkeys(Scale, Plan())


def answer(name: str, *rows: Row) -> Result:
    CALLS.append(name)
    return Result(f"{name} is done.", rows, xr.Dataset({"a": ("n", [1.0])}))


def good(plan: Plan, seed: int) -> Result:
    return answer("good", Row("x", 1.0, 1.0, agrees=True), Row("y", "up", "up"))


def bad(plan: Plan, seed: int) -> Result:
    return answer("bad", Row("x", 1.0, 2.0, agrees=False))


def crashed(plan: Plan, seed: int) -> Result:
    CALLS.append("crashed")
    raise ZeroDivisionError("division\nby zero")


def warned(plan: Plan, seed: int) -> Result:
    for _ in range(2):
        warnings.warn("a sample\nis small.", stacklevel=2)
    return answer("warned", Row("x", 1.0, 1.0, agrees=True))


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {
        each.__name__: Experiment(each.__name__, each.__name__, "nobody", f"{__name__}:{each.__name__}")
        for each in (good, bad, crashed, warned)
    }
    monkeypatch.setattr(registry, "_BY_NAME", entries)
    CALLS.clear()


def test_every_experiment_has_its_record_in_the_order_that_was_asked_for() -> None:
    told: list[str] = []
    run = run_many(["bad", "crashed", "good", "bad"], workers=1, tell=told.append)
    assert [(record.name, record.holds) for record in run.records] == [
        ("bad", False),
        ("crashed", False),
        ("good", True),
    ]
    assert run.records[1].error == "unexpected ZeroDivisionError (division by zero)"
    assert (run.records[2].rows, run.records[2].agree) == (2, 1)
    assert not run.holds
    assert run.verdict == (
        "1 tested rows of 3 experiments agree, 1 disagree (0 of them with an explanation); 1 experiments failed."
    )
    assert [line.partition(" (")[0] for line in told[::2]] == ["1 of 3: bad DISAGREES", "3 of 3: good agrees"]
    assert repr(run).startswith(run.verdict)
    assert run.to_dataset().error.sel(experiment="crashed") == run.records[1].error


def test_the_time_that_is_left_counts_what_runs_beside_the_finished_ones() -> None:
    cost = {"a": 100.0, "b": 100.0, "c": 200.0}
    lost, slow = Record("a", error="killed"), Record("b", seconds=300.0)  # three times as long as expected
    assert many._time_left([slow], cost, 2, elapsed=300.0) == "; about 5 min left"  # 1200 s on two workers
    assert many._time_left([slow], cost, 8, elapsed=300.0) == "; about 2 min left"
    assert many._time_left([lost], cost, 2, elapsed=10.0) == ""
    assert many._time_left([slow, lost, slow], cost, 2, elapsed=10.0) == ""
    assert many._time_left([slow], cost, 2, elapsed=1000.0) == "; about 1 s left"


@pytest.mark.filterwarnings("ignore:warned")
def test_without_names_all_are_run() -> None:
    assert [record.name for record in run_many(workers=1).records] == list(registry.names())


def test_one_name_needs_no_list() -> None:
    assert [record.name for record in run_many("good").records] == ["good"]


def test_what_is_finished_is_kept_and_labelled(tmp_path: Path) -> None:
    first = run_many(["good", "crashed"], seed=3, keep=tmp_path / "kept", workers=1)
    second = run_many(["good", "crashed"], seed=3, keep=str(tmp_path / "kept"), workers=1)
    assert CALLS == ["good", "crashed", "crashed"]
    assert first.records[0] == second.records[0]
    assert second.folder == tmp_path / "kept"
    data = ft.load(tmp_path / "kept" / "good")
    assert (data.attrs["seed"], data.attrs["title"]) == (3, "good")
    assert "ZeroDivisionError" in (tmp_path / "kept" / "crashed" / "error.txt").read_text()
    with pytest.raises(FileError, match="another run"):
        run_many(["good"], seed=4, keep=tmp_path / "kept")


@pytest.mark.parametrize("file", ["finished.json", "answer.json"])
@pytest.mark.parametrize("content", ["{", "[]", "{}", "3", '{"rows": []}'])
def test_damaged_records_are_refused(file: str, content: str, tmp_path: Path) -> None:
    run_many("good", keep=tmp_path)
    (tmp_path / "good" / file).write_text(content)
    with pytest.raises(FileError, match="good is damaged"):
        run_many("good", keep=tmp_path)


def test_seeds_of_numpy_are_seeds(tmp_path: Path) -> None:
    first = run_many("good", seed=np.int64(3), keep=tmp_path)  # type: ignore[arg-type]
    assert run_many("good", seed=3, keep=tmp_path).records == first.records
    assert CALLS == ["good"]


def test_the_trace_of_a_failure_need_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *, overwrite: bool) -> object:
        if path.name == "error.txt":
            raise OSError("Read-only file system")
        return new_file(path, overwrite=overwrite)

    monkeypatch.setattr(many, "new_file", refuse)
    run = run_many(["crashed", "bad"], keep=tmp_path, workers=1)
    assert [record.error.partition(" (")[0] for record in run.records] == ["unexpected ZeroDivisionError", ""]


def test_an_experiment_that_cannot_be_written_fails_alone(tmp_path: Path) -> None:
    run_many(["bad"], keep=tmp_path)
    (tmp_path / "good").write_text("a file where the folder of the experiment would be")
    run = run_many(["good", "bad"], keep=tmp_path, workers=1)
    assert "could not be written" in run.records[0].error
    assert run.records[1].agree == 0


def test_warnings_are_kept_and_given_once_by_name(tmp_path: Path) -> None:
    with pytest.warns(UserWarning, match=r"^warned: a sample is small\.$") as seen:
        run = run_many(["warned"], keep=tmp_path)
    assert len(seen) == 1
    assert seen[0].filename == __file__
    assert run.records[0].warnings == ("a sample is small.",)
    assert run_many(["warned"], keep=tmp_path).records == run.records


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"names": []}, "names is empty"),
        ({"names": ["good", "goood"]}, "did you mean 'good'"),
        ({"scale": "huge"}, "choose 'quick' or 'paper'"),
        ({"workers": 0}, "workers is 0"),
        ({"workers": 1.5}, "workers is 1.5"),
    ],
)
def test_requests_that_make_no_sense(arguments: dict[str, object], told: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=told):
        run_many(**arguments, keep=tmp_path / "kept")  # type: ignore[arg-type]
    assert not CALLS
    assert not (tmp_path / "kept").exists()


def test_the_longest_start_first_when_several_run_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = {"good": 1.0, "bad": 9.0}
    entries = [Experiment(name, name, "", "", seconds=value) for name, value in costs.items()]
    monkeypatch.setattr(registry, "_BY_NAME", {entry.name: entry for entry in entries})
    order: list[str] = []

    def apart(function: object, tasks: list[Task], *_: object) -> list[Record]:
        order.extend(task.name for task in tasks)
        return [Record(task.name) for task in tasks]

    def here(task: Task) -> Record:
        order.append(task.name)
        return Record(task.name)

    monkeypatch.setattr(many, "run_apart", apart)
    monkeypatch.setattr(many, "perform", here)
    run_many(costs, workers=2)
    run_many(costs, workers=1)
    assert order == ["bad", "good", "good", "bad"]
