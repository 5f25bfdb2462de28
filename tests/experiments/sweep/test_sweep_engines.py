"""Engines of sweeps: the same numbers by every one, and what happens when workers or clusters die."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from swept import content, write_drawn, write_fragile

import foretrain as ft
from foretrain.experiments.sweep import sweep
from foretrain.support.engines import WorkerDiedError
from foretrain.support.errors import EngineError, InputError


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("engine", "workers"), [("threads", 2), ("local", 2)])
def test_engines_give_the_same_bits(engine: str, workers: int, tmp_path: Path) -> None:
    spec = write_drawn(tmp_path, 2)
    sweep(spec, tmp_path / "one", workers=1)
    sweep(spec, tmp_path / "two", engine=engine, workers=workers)
    assert content(tmp_path / "one") == content(tmp_path / "two")


def test_unknown_engines_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'slurm'"):
        sweep(write_fragile(tmp_path), engine="slurm")
    assert not (tmp_path / "mine.sweep").exists()


def test_no_progress_at_all_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dead(*_: object, **__: object) -> object:
        raise EngineError("a worker process was killed: use fewer workers.")
        yield

    monkeypatch.setattr("foretrain.support.engines.run", dead)
    spec = write_fragile(tmp_path, "[0, 1, 3]")
    with pytest.raises(EngineError, match="use fewer workers"):
        sweep(spec, workers=2)
    assert (ft.load(tmp_path / "mine.sweep")["status"] == "missing").all()


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


def test_points_that_kill_the_workers_of_a_cluster_are_found_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster cannot say which: when nothing else is left, each is tried alone."""
    groups: list[list[int]] = []

    def dying(function: Any, tasks: Any, **_: object) -> Any:
        jobs = list(tasks)
        groups.append([job.arguments["a"] for job in jobs])
        for job in jobs:
            if job.arguments["a"] in (1, 3):
                raise WorkerDiedError("workers were killed.")
            yield function(job)

    monkeypatch.setattr("foretrain.support.engines.run", dying)
    monkeypatch.setattr("foretrain.support.engines.capacity", lambda engine, workers: 1)
    monkeypatch.setattr("foretrain.support.engines.check", lambda engine, workers: None)
    found = sweep(write_fragile(tmp_path, "[0, 1, 3, 4, 6]"), engine="dask://here:1")
    died = "its worker died: workers were killed."
    assert found.errors == {"a = 1": died, "a = 3": died}
    assert found.done == 3
    assert groups[0] == [0, 1, 3, 4, 6]
    assert [1] in groups
    assert [3] in groups
