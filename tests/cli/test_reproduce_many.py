"""Several experiments in one run: failures, disagreements, interruption, exit codes, and what is kept."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import xarray as xr

import foretrain as ft
from foretrain.cli.main import main
from foretrain.experiments import registry
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Experiment, Result, Row, Scale
from foretrain.support.answers import Figure
from foretrain.support.errors import NotEnoughMemoryError

PLANS = {scale: scale for scale in Scale}
CALLS: list[str] = []
ALONE = ("--workers", "1")  # in this process, where the table is the made-up one


def answer(name: str, *rows: Row) -> Result:
    CALLS.append(name)
    return Result(f"{name} is <done>.", rows, xr.Dataset({"a": ("n", [1.0])}), lambda _: Figure())


def good(scale: Scale, seed: int) -> Result:
    return answer("good", Row("x", 1.0, 1.0, agrees=True), Row("y", "up", "up"))


def explained(scale: Scale, seed: int) -> Result:
    return answer("explained", Row("x", 1.0, 2.0, agrees=False, note="Printed wrongly.", disputed=True))


def bad(scale: Scale, seed: int) -> Result:
    """A note alone explains nothing."""
    known = Row("y", 1.0, 2.0, agrees=False, note="Why.", disputed=True)
    return answer("bad", Row("x", 1.0, 2.0, agrees=False, note="A word on the method."), known)


def broken(scale: Scale, seed: int) -> Result:
    CALLS.append("broken")
    raise NotEnoughMemoryError("this needs 1 TB: use fewer inputs.")


def crashed(scale: Scale, seed: int) -> Result:
    raise ZeroDivisionError("division by zero")


def warned(scale: Scale, seed: int) -> Result:
    warnings.warn("a sample\nis small.", stacklevel=2)
    return answer("warned", Row("x", 1.0, 1.0, agrees=True))


def parted(scale: Scale, seed: int, parts: Parts) -> Result:
    parts.get("one", lambda: answer("part", Row("x", 1, 1)).data)
    if not CALLS.count("interrupted"):
        CALLS.append("interrupted")
        raise KeyboardInterrupt
    return answer("parted", Row("x", 1.0, 1.0, agrees=True))


@pytest.fixture(autouse=True)
def made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    functions = (good, explained, bad, broken, crashed, warned, parted)
    entries = {
        each.__name__: Experiment(
            each.__name__, each.__name__, "nobody", f"{__name__}:{each.__name__}", resumable=each is parted
        )
        for each in functions
    }
    monkeypatch.setattr(registry, "_BY_NAME", entries)
    CALLS.clear()


def only(monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
    monkeypatch.setattr(registry, "_BY_NAME", {name: registry._BY_NAME[name] for name in names})


def test_explained_disagreements_end_with_zero(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, "good", "explained")
    assert main(["reproduce", "--all", *ALONE]) == 0
    told = capsys.readouterr()
    assert re.search(r"^good +2 +1 +0 +0 .* agrees$", told.out, re.M)
    assert re.search(r"^explained +1 +0 +1 +1 .* agrees, but for what is explained$", told.out, re.M)
    assert "1 disagree (1 " in told.out
    assert re.search(r"^explained +x +1 +2 +yes +Printed wrongly.$", told.out, re.M)
    assert "foretrain: 1 of 2: good agrees" in told.err


def test_one_experiment_with_an_explained_disagreement_still_ends_with_one() -> None:
    assert main(["reproduce", "explained"]) == 1


@pytest.mark.parametrize("name", ["bad", "broken", "crashed"])
def test_other_disagreements_and_failures_end_with_one_and_the_rest_is_run(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", name, "good", "--json", *ALONE]) == 1
    document = json.loads(capsys.readouterr().out)
    first, second = document["experiments"]
    assert (first["holds"], second["holds"], document["holds"]) == (False, True, False)
    assert CALLS[-1] == "good"
    expected = {"broken": "this needs 1 TB", "crashed": "unexpected ZeroDivisionError", "bad": ""}[name]
    assert first["error"].startswith(expected)


def test_what_is_finished_is_kept_and_failures_are_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["reproduce", "good", "broken", "explained", "--keep", str(tmp_path / "kept"), *ALONE]
    assert main(call) == 1
    assert CALLS == ["good", "broken", "explained"]
    assert "NotEnoughMemoryError" in (tmp_path / "kept" / "broken" / "error.txt").read_text()
    first = capsys.readouterr().out
    assert "--debug" in first
    assert main(call) == 1
    assert CALLS == ["good", "broken", "explained", "broken"]
    told = capsys.readouterr()
    assert "2 of 3" in told.err
    pattern = re.compile(r"^(?:good|explained) .*", re.M)
    assert pattern.findall(told.out) == pattern.findall(first)
    assert ft.load(tmp_path / "kept" / "good" / "data.zarr").attrs["source"] == "nobody"
    assert (tmp_path / "kept" / "good" / "figure.png").exists()


def test_the_page_shows_everything_and_escapes_it(tmp_path: Path) -> None:
    main(["reproduce", "good", "bad", "broken", "--keep", str(tmp_path / "kept"), *ALONE])
    page = (tmp_path / "kept" / "index.html").read_text(encoding="utf-8")
    assert "good is &lt;done&gt;." in page
    assert 'src="good/figure.png"' in page
    assert "FAILED: this needs 1 TB" in page
    assert page.count('class="card critical"') == 2
    assert page.count('class="card good"') == 1
    assert "no, known" in page
    assert 'alt="Picture: good"' in page
    assert {f'href="#{name}"' in page and f'id="{name}"' in page for name in ("good", "bad", "broken")} == {
        True
    }


def test_an_interruption_costs_one_part(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    call = ["reproduce", "good", "parted", "--keep", str(tmp_path / "kept"), *ALONE]
    assert main(call) == 130
    *_, kept, last = capsys.readouterr().err.splitlines()
    assert "the same command" in kept
    assert last == "foretrain: interrupted."
    assert CALLS == ["good", "part", "interrupted"]
    assert main(call) == 0
    assert CALLS == ["good", "part", "interrupted", "parted"]


def test_a_folder_of_another_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kept = str(tmp_path / "kept")
    assert main(["reproduce", "good", "explained", "--keep", kept, *ALONE]) == 0
    assert main(["reproduce", "good", "explained", "--keep", kept, "--seed", "1", *ALONE]) == 2
    assert "another run" in capsys.readouterr().err
    (tmp_path / "kept" / "good" / "finished.json").write_text("{")
    assert main(["reproduce", "good", "explained", "--keep", kept, *ALONE]) == 2
    assert "is damaged" in capsys.readouterr().err


def test_the_table_is_saved_and_drawn(tmp_path: Path) -> None:
    folder, picture = tmp_path / "r", tmp_path / "p.png"
    main(["reproduce", "good", "bad", "crashed", "--save", str(folder), "--plot", str(picture), *ALONE])
    data = ft.load(folder / "data.zarr")
    assert data.holds.values.tolist() == [True, False, False]
    assert data.disagree.sel(experiment="bad") == 2
    assert picture.stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["good", "--all"], "leave out the names, or --all"),
        (["--workers", "2"], "name experiments, or add --all"),
        (["good", "--workers", "2"], "--workers is for several experiments"),
        (["good", "goood"], "did you mean 'good'?"),
    ],
)
def test_requests_that_make_no_sense(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *arguments]) == 2
    assert told in capsys.readouterr().err
    assert not CALLS


@pytest.mark.slow
def test_two_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.undo()
    names = ("parameter-count", "activation-curves", "critical-lines")
    for workers in ("1", "2"):
        assert main(["reproduce", *names, "--workers", workers, "--keep", str(tmp_path / workers)]) == 0
    for name in names:
        first, second = (
            json.loads((tmp_path / workers / name / "answer.json").read_text()) for workers in "12"
        )
        assert first == second


def test_unexplained_rows_come_first_and_machines_are_told_which_are_explained(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["reproduce", "explained", "bad", *ALONE]) == 1
    text = capsys.readouterr().out.partition("Rows that disagree:")[2]
    assert [line.split()[0] for line in text.splitlines()[4:7]] == ["bad", "explained", "bad"]
    assert main(["reproduce", "explained", "bad", "--json", *ALONE]) == 1
    second = json.loads(capsys.readouterr().out)["experiments"][1]
    assert [row["explained"] for row in second["differences"]] == [False, True]
    assert (second["disagree"], second["explained"]) == (2, 1)


def test_a_later_success_removes_the_trace_of_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    call = ["reproduce", "good", "broken", "--keep", str(tmp_path / "kept"), *ALONE]
    assert main(call) == 1
    assert (tmp_path / "kept" / "broken" / "error.txt").exists()
    mended = Experiment("broken", "broken", "nobody", f"{__name__}:good")
    monkeypatch.setattr(registry, "_BY_NAME", {**registry._BY_NAME, "broken": mended})
    assert main(call) == 0
    assert not (tmp_path / "kept" / "broken" / "error.txt").exists()


def test_warnings_say_where_they_come_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "good", "warned", *ALONE]) == 0
    assert "foretrain: warning: warned: a sample is small." in capsys.readouterr().err.splitlines()


HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.flock(f, fcntl.LOCK_EX); print(flush=True); input()"
)


def test_a_folder_in_which_another_process_works_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["reproduce", "good", "explained", "--keep", str(tmp_path), *ALONE]
    assert main(call) == 0
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / ".lock")], **pipes) as other:
        assert other.stdout is not None
        other.stdout.readline()  # the lock is held
        assert main(call) == 2
        other.communicate(b"\n")
    assert "another writer" in capsys.readouterr().err
    assert main(call) == 0
