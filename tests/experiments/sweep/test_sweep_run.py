"""Running sweeps: stores that go on, failures, extensions, refusals; the same numbers by every engine."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from swept import content, write_drawn, write_fragile, write_spec, written

import foretrain as ft
from foretrain.experiments.sweep import journal, price, read, sweep
from foretrain.experiments.sweep.journal import LOG
from foretrain.experiments.sweep.plan import Plan
from foretrain.experiments.sweep.points import points
from foretrain.experiments.sweep.spec import read_spec
from foretrain.support.errors import EngineError, FileError, InputError


def test_data_have_the_axes_of_the_sweep(tmp_path: Path) -> None:
    found = sweep(write_drawn(tmp_path, 3), workers=1)
    data = ft.load(tmp_path / "mine.sweep")
    assert data.identical(found.data)
    assert data["value"].dims == ("a", "b")
    assert data["a"].values.tolist() == [0, 1, 2]
    assert data["side"].sel(a=1).values.tolist() == ["left"] * 4 + ["right"] * 6
    assert (data["status"] == "done").all()
    assert "error" not in data
    # Answers of different lengths share one axis with all labels.
    assert data["curve"].dims == ("a", "b", "step")
    assert data["step"].values.tolist() == [0, 2, 4]
    assert data["curve"].notnull().sum("step").sel(b=0.1).values.tolist() == [1, 2, 3]


def test_numbers_are_those_of_the_function(tmp_path: Path) -> None:
    found = sweep(write_drawn(tmp_path, 2), workers=1)
    spec = read_spec(tmp_path / "mine.toml")
    for point in points(spec):
        own = found.data.sel(point.coordinates)
        answer = spec.target.function(**point.arguments)
        assert float(own["value"]) == answer["value"]
        np.testing.assert_array_equal(own["curve"].dropna("step"), answer["curve"])


def test_seeds_depend_on_parameters_alone(tmp_path: Path) -> None:
    """Not on the order of axes, other values, or whether a value is fixed."""
    whole = {point.key: point for point in points(read_spec(write_drawn(tmp_path, 4)))}
    seeds = {point.arguments["seed"] for point in whole.values()}
    assert len(seeds) == len(whole) == 40
    turned = 'observable = "mine.py:drawn"\nseed = 3\n[fixed]\nb = 0.1\n[axes]\na = [3, 1]'
    few = list(points(read_spec(write_spec(tmp_path, turned))))
    assert [whole[point.key].arguments == point.arguments for point in few] == [True, True]
    other = list(points(read_spec(write_spec(tmp_path, turned.replace("seed = 3", "seed = 4")))))
    assert not {point.arguments["seed"] for point in other} & seeds


def test_a_seed_on_an_axis_is_taken_as_it_is(tmp_path: Path) -> None:
    write_drawn(tmp_path)
    spec = write_spec(tmp_path, 'observable = "mine.py:drawn"\n[axes]\na = [1, 2]\nseed = [7, 8]')
    data = sweep(spec, workers=1).data
    for a in (1, 2):
        for seed in (7, 8):
            drawn = np.random.default_rng(seed).normal(size=a + 2)  # the curve, then the value
            assert float(data["value"].sel(a=a, seed=seed)) == a + drawn[-1]


def test_repeats_are_an_axis(tmp_path: Path) -> None:
    data = sweep(write_drawn(tmp_path, 2, "repeats = 4"), workers=1).data
    assert data["value"].dims == ("a", "b", "repeat")
    assert len(np.unique(data["value"])) == 80


@pytest.mark.parametrize(("engine", "workers"), [("threads", 2), ("local", 2)])
def test_engines_give_the_same_bits(engine: str, workers: int, tmp_path: Path) -> None:
    spec = write_drawn(tmp_path, 2)
    sweep(spec, tmp_path / "one", workers=1)
    sweep(spec, tmp_path / "two", engine=engine, workers=workers)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path, "[0, 1, 3, 4]")
    whole = sweep(spec, workers=1)
    log = tmp_path / "mine.sweep" / LOG
    bytes_before = log.read_bytes()
    assert sweep(spec, workers=1).computed == 0
    assert log.read_bytes() == bytes_before
    log.write_bytes(bytes_before[:-3])  # killed while it wrote the last point
    assert read(spec)["status"].values.tolist() == ["done"] * 3 + ["missing"]
    assert np.isnan(read(spec)["value"].values[-1])
    again = sweep(spec, workers=1)
    assert again.computed == 1
    assert again.data.identical(whole.data)
    assert set(written(tmp_path / "mine.sweep").values()) == {1}


def test_damage_in_the_middle_is_computed_anew(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path, "[0, 1, 3, 4]")
    whole = sweep(spec, workers=1)
    log = tmp_path / "mine.sweep" / LOG
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.warns(UserWarning, match="bytes between its points are not readable"):
        again = sweep(spec, workers=1)
    assert again.computed == 1
    assert again.data.identical(whole.data)


def test_failed_points_are_kept_and_retried_on_request(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path)
    found = sweep(spec, workers=1)
    assert found.errors == {
        "a = 2": "ValueError: 2 is too much (mine.py, line 6)",
        "a = 5": "ValueError: 5 is too much (mine.py, line 6)",
    }
    assert (found.done, found.missing) == (4, 0)
    assert found.data["status"].values.tolist() == ["done", "done", "failed"] * 2
    assert found.data["error"].values.tolist() == [
        *("", "", "ValueError: 2 is too much (mine.py, line 6)"),
        *("", "", "ValueError: 5 is too much (mine.py, line 6)"),
    ]
    (tmp_path / "mended").touch()
    assert sweep(spec, workers=1).computed == 0
    mended = sweep(spec, workers=1, retry_failed=True)
    assert (mended.computed, mended.errors) == (2, {})
    assert mended.data["value"].values.tolist() == [0, 1, 2, 3, 4, 5]
    assert "error" not in mended.data


def test_a_sweep_that_grew_is_extended_on_request(tmp_path: Path) -> None:
    sweep(write_fragile(tmp_path, "[0, 1]"), workers=1)
    spec = write_fragile(tmp_path, "[3, 1, 0, 4]")
    with pytest.raises(
        FileError, match=r"smaller sweep \(a was 0, 1, now 4 values from 3 to 4\): add --extend to "
    ):
        sweep(spec, workers=1)
    assert price(spec, workers=1).left == 2
    found = sweep(spec, workers=1, extend=True)
    assert found.computed == 2
    assert found.data["value"].values.tolist() == [3, 1, 0, 4]
    assert sweep(spec, workers=1).computed == 0


def test_a_fixed_parameter_may_become_an_axis(tmp_path: Path) -> None:
    sweep(write_fragile(tmp_path, "[0, 1]", "b = 2"), workers=1)
    spec = write_fragile(tmp_path, "[0, 1]\nb = [1, 2]")
    found = sweep(spec, workers=1, extend=True)
    assert found.computed == 2
    assert found.data["value"].values.tolist() == [[10, 20], [11, 21]]


@pytest.mark.parametrize("extend", [False, True])
@pytest.mark.parametrize(
    ("values", "fixed", "told"),
    [
        ("[0]", "", "a was 0, 1, now 0"),
        ("[0, 1, 2]", "b = 1", "b was 0, now 1"),
        ("[1, 2, 3]", "", "a was 0, 1, now"),
    ],
)
def test_another_sweep_is_refused(values: str, fixed: str, told: str, extend: bool, tmp_path: Path) -> None:
    sweep(write_fragile(tmp_path, "[0, 1]"), workers=1)
    with pytest.raises(FileError, match=rf"begun for another sweep \(.*{told}"):
        sweep(write_fragile(tmp_path, values, fixed), workers=1, extend=extend)


def test_changed_code_is_refused(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path, "[0, 1]")
    sweep(spec, workers=1)
    (tmp_path / "mine.py").write_text("def fragile(a: int, b: int = 0):\n    return 0.0\n")
    with pytest.raises(FileError, match=r"the file of mine.py:fragile has changed"):
        sweep(spec, workers=1)


def test_another_version_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = write_fragile(tmp_path, "[0, 1]")
    sweep(spec, workers=1)
    monkeypatch.setattr(journal, "__version__", "99.0")
    with pytest.raises(
        FileError, match=r"was begun with foretrain .*, and this is 99.0: choose another store"
    ):
        sweep(spec, workers=1)


def test_two_writers_are_kept_apart(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path, "[0, 1]")
    with (
        journal.opened(Plan.of(spec, None), extend=False),
        pytest.raises(FileError, match=r"another process is running the sweep in .*: wait for it to end"),
    ):
        sweep(spec, workers=1)
    assert sweep(spec, workers=1).done == 2


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_store_must_be_free(kind: str, tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    if kind == "file":
        taken.touch()
    else:
        taken.mkdir()
        (taken / "thesis.tex").touch()
    with pytest.raises(FileError, match=r"is a file: give|holds other files and no sweep: choose"):
        sweep(write_fragile(tmp_path), taken, workers=1)
    assert kind == "file" or os.listdir(taken) == ["thesis.tex"]


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="holds no sweep: run it first"):
        read(write_fragile(tmp_path))


def test_answers_that_cannot_be_labelled_are_failures(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from xarray import DataArray as A\n\ndef odd(a: int):\n"
        "    twice, unequal = A([1.0, 2.0], {'k': [3, 3]}, ['k']), A([1.0, 2.0], {'k': [3, 4]}, ['k'])\n"
        "    other = {'v': A([1.0], {'k': [3]}, ['k']), 'w': unequal}\n"
        "    own = {'k': 1.0, 'v': unequal}\n"
        "    return [{'a': 1.0}, None, {}, {'x/y': 1.0}, 1j, {'status': 1.0}, {'v': twice}, own, other][a]\n"
    )
    spec = write_spec(tmp_path, 'observable = "mine.py:odd"\n[axes]\na = { from = 0, to = 8, step = 1 }')
    found = sweep(spec, workers=1)
    words = [
        *("is that of a parameter", "NoneType", "empty", "'x/y' cannot name", "complex128", "reserved"),
        *("the labels of k repeat", "'k' names a value and an axis"),
    ]
    assert found.done == 1
    assert found.data["v"].sel(a=8).values.tolist()[0] == 1.0
    assert all(word in error for word, error in zip(words, found.errors.values(), strict=True))


def test_warnings_are_kept_with_their_points(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import warnings\n\ndef loud(a: int):\n    if a:\n        warnings.warn('about  that')\n    return a\n"
    )
    spec = write_spec(tmp_path, 'observable = "mine.py:loud"\n[axes]\na = [0, 1]')
    assert sweep(spec, workers=1).warnings == {"a = 1": "about that"}
    assert sweep(spec, workers=1).warnings == {"a = 1": "about that"}


def test_points_keep_to_one_thread(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import threadpoolctl, torch\n\ndef threads(a: int):\n"
        "    pools = [p['num_threads'] for p in threadpoolctl.threadpool_info() if p['user_api'] == 'blas']\n"
        "    return {'torch': torch.get_num_threads(), 'blas': max(pools)}\n"
    )
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        data = sweep(
            write_spec(tmp_path, 'observable = "mine.py:threads"\n[axes]\na = [0, 1]'), workers=1
        ).data
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert (data["torch"] == 1).all()
    assert (data["blas"] == 1).all()


def test_the_price_is_told_before(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path)
    before = price(spec, workers=2)
    assert (before.count, before.done, before.left, before.workers) == (6, 0, 6, 2)
    assert before.measured == "3 points tried now"
    assert before.errors == ("ValueError: 5 is too much (mine.py, line 6)",)
    assert before.bytes_per_worker > 1e7
    assert not (tmp_path / "mine.sweep").exists()
    sweep(spec, workers=1)
    after = price(spec, workers=2)
    assert (after.done, after.failed, after.left, after.seconds) == (4, 2, 0, 0.0)
    assert price(spec, workers=2, retry_failed=True).left == 2


def test_time_is_that_of_finished_points(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import time\n\ndef slow(a: int):\n    time.sleep(0.1)\n    return a\n")
    sweep(write_spec(tmp_path, 'observable = "mine.py:slow"\n[axes]\na = [0, 1]'), workers=1)
    grown = price(
        write_spec(tmp_path, 'observable = "mine.py:slow"\n[axes]\na = [0, 1, 2, 3, 4, 5]'), workers=2
    )
    assert grown.measured == "2 finished points"
    assert 0.2 <= grown.seconds < 2.0  # four points on two workers


def test_unknown_engines_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="engine 'slurm' is not known"):
        sweep(write_fragile(tmp_path), engine="slurm")
    assert not (tmp_path / "mine.sweep").exists()


def test_workers_that_always_die_end_the_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last point that is left is noted as failed instead of being run in this process."""
    rounds: list[int] = []

    def dying(function: object, tasks: object, **_: object) -> object:
        jobs = list(tasks)  # type: ignore[call-overload]
        rounds.append(len(jobs))
        healthy = [job for job in jobs if job.arguments["a"] != 1][:1]
        yield from map(function, healthy)  # type: ignore[call-overload]
        raise EngineError("a worker process was killed: use fewer workers.")

    monkeypatch.setattr("foretrain.support.engines.run", dying)
    found = sweep(write_fragile(tmp_path, "[0, 1, 3]"), workers=2)
    assert rounds == [3, 2]
    assert found.errors == {"a = 1": "its worker died: a worker process was killed: use fewer workers."}


def test_no_progress_at_all_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*_: object, **__: object) -> object:
        raise EngineError("a worker process was killed: use fewer workers.")
        yield

    monkeypatch.setattr("foretrain.support.engines.run", dead)
    spec = write_fragile(tmp_path, "[0, 1, 3]")
    with pytest.raises(EngineError, match="use fewer workers"):
        sweep(spec, workers=2)
    assert (ft.load(tmp_path / "mine.sweep")["status"] == "missing").all()


def test_whole_numbers_and_others_are_one_axis(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def same(a):\n    return a\n")
    data = sweep(write_spec(tmp_path, 'observable = "mine.py:same"\n[axes]\na = [0, 0.5]'), workers=1).data
    assert data["value"].values.tolist() == data["a"].values.tolist() == [0.0, 0.5]


def test_repeats_can_be_added(tmp_path: Path) -> None:
    once = sweep(write_drawn(tmp_path, 2), workers=1)
    found = sweep(write_drawn(tmp_path, 2, "repeats = 3"), workers=1, extend=True)
    assert found.computed == 40
    np.testing.assert_array_equal(found.data["value"].sel(repeat=0), once.data["value"])


def test_engines_that_answer_at_the_end_get_few_points_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was handed over before a kill stays."""
    groups: list[int] = []

    def at_the_end(function: Any, tasks: Any, **_: object) -> Any:
        jobs = list(tasks)
        if len(groups) == 2:
            raise KeyboardInterrupt
        groups.append(len(jobs))
        yield from list(map(function, jobs))

    monkeypatch.setattr("foretrain.support.engines.run", at_the_end)
    monkeypatch.setattr("foretrain.support.engines.capacity", lambda engine, workers: 1)
    monkeypatch.setattr("foretrain.support.engines.check", lambda engine, workers: None)
    spec = write_drawn(tmp_path, 2)
    with pytest.raises(KeyboardInterrupt):
        sweep(spec, engine="ray://auto")
    assert groups == [8, 8]
    assert int((ft.load(tmp_path / "mine.sweep")["status"] == "done").sum()) == 16


def test_answers_of_another_kind_than_before_are_failures(tmp_path: Path) -> None:
    """By the order of the points, not by that in which they were finished."""
    (tmp_path / "mine.py").write_text(
        "from xarray import DataArray as A\n\ndef turns(a: int):\n"
        "    answer = {'x': [1.0, A([1.0], {'k': [1]}, ['k']), 'word', 2.0, 3.0][a]}\n"
        "    return answer | ({'y': [1.0]} if a > 3 else {})\n"
    )
    spec = write_spec(tmp_path, 'observable = "mine.py:turns"\n[axes]\na = [0, 1, 2, 3, 4]')
    found = sweep(spec, workers=1)
    np.testing.assert_array_equal(found.data["x"], [1.0, np.nan, np.nan, 2.0, 3.0])
    assert list(found.errors) == ["a = 1", "a = 2"]
    assert "x is numbers over (k) here, but numbers without axes at an earlier point" in found.errors["a = 1"]
    assert "x is text without axes here" in found.errors["a = 2"]
    assert (found.done, found.missing) == (3, 0)


def test_a_finished_sweep_keeps_its_data_while_it_is_looked_at(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path, "[0, 1]")
    sweep(spec, workers=1)
    marked = (tmp_path / "mine.sweep" / "data.zarr").stat().st_ino
    with journal.opened(Plan.of(spec, None), extend=False):
        assert (tmp_path / "mine.sweep" / "data.zarr").stat().st_ino == marked
