"""The command and its tables, on a tiny benchmark; and that the real ones are labelled."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import __main__ as command
from bench import peers
from bench.harness import runs, table
from bench.harness.jobs import PeerCall
from bench.harness.rates import Rates
from bench.harness.runs import Task

MakeTask = Callable[..., Task]


@pytest.fixture
def bench(
    task: MakeTask, rates: Rates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., int]:
    """The command with a benchmark of three jobs, of which one has a peer that is not installed."""
    call = PeerCall("nngeometry", "kernel", {"K": np.eye(2)})
    tasks = [
        task(),
        task("product", peer=call, aim=2.0),
        task("tiny mean", benchmark="other", peer=None, work=None),
    ]
    monkeypatch.setattr(peers, "FOLDER", tmp_path / "none")
    monkeypatch.setattr(command, "all_tasks", lambda: tasks)
    monkeypatch.setattr(table, "WIDTH_WITHOUT_TERMINAL", 400)
    monkeypatch.setattr(command, "Rates", lambda: rates)
    return lambda *given: command.main([*given, "--quick", "--results", str(tmp_path)])


def test_the_table_shows_every_job_its_labels_and_what_is_missing(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert bench() == 0
    printed = capsys.readouterr()
    for text in ("tiny", "sum", "numpy", "arithmetic limit", "200 numbers", "median of 3 rounds", "float64"):
        assert text in printed.out
    assert "product, nngeometry: nngeometry is not installed: run make bench-env" in printed.out
    assert "gemm float32 [flop/s]" in printed.out
    (kept,) = tmp_path.glob("bench-*.json")
    assert f"kept in {kept}" in printed.err
    assert bench("--show") == 0
    assert capsys.readouterr().out == printed.out


def test_json_is_one_document_and_nothing_else(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench("--json") == 0
    run = json.loads(capsys.readouterr().out)
    assert [line["job"] for line in run["lines"]] == ["sum", "sum", "product", "product", "tiny mean"]
    assert bench("--show", "--json") == 0
    assert json.loads(capsys.readouterr().out)["runs"] == [run]


@pytest.mark.parametrize(("name", "jobs"), [("tiny", {"sum", "product"}), ("mea", {"tiny mean"})])
def test_only_takes_a_benchmark_or_a_part_of_a_name(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str], name: str, jobs: set[str]
) -> None:
    assert bench("--json", "--only", name) == 0
    assert {line["job"] for line in json.loads(capsys.readouterr().out)["lines"]} == jobs
    assert bench("--show", "--only", name) == 0
    shown = capsys.readouterr().out
    assert all(job in shown for job in jobs)
    assert bench("--show", "--only", "nothing of this name") == 2


def test_bad_input_is_refused(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert bench("--only", "tinny") == 2
    assert "did you mean 'tiny'?" in capsys.readouterr().err
    assert bench("--repeats", "0") == 2
    assert bench("--show") == 2
    assert "nothing was measured yet" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_exit_codes_tell_of_failures_and_of_interruptions(
    bench: Callable[..., int], task: MakeTask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def raising(error: type[BaseException]) -> Callable[[], Any]:
        def ours() -> Any:
            raise error("sum")

        return ours

    for error, code, files in ((KeyboardInterrupt, 130, 0), (ValueError, 1, 1)):
        tasks = [task("bad", ours=raising(error))]
        monkeypatch.setattr(command, "all_tasks", lambda tasks=tasks: tasks)
        assert bench() == code
        assert len(list(tmp_path.iterdir())) == files  # a run without results leaves nothing


def test_a_module_that_cannot_be_imported_is_a_task_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "bench_that_raises.py").write_text("def jobs():\n    raise OSError('no data')\n")
    (tmp_path / "bench_without_jobs.py").write_text("SIZE = 3\n")
    assert command.tasks_of("bench_that_raises") == [Task("bench_that_raises", trouble="OSError: no data")]
    assert command.tasks_of("bench_without_jobs") == []
    assert "ModuleNotFoundError" in command.tasks_of("bench_that_is_not_there")[0].trouble


def test_markdown_has_a_row_for_every_line(
    bench: Callable[..., int], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bench()
    lines = runs.newest_lines(runs.newest_record(tmp_path))
    rows = table.markdown(lines, "tiny").splitlines()
    assert len(rows) == 2 + 4
    assert len({row.count("|") for row in rows}) == 1
    assert rows[2].startswith("| sum<br><small>200 numbers; float64;")
    assert "nngeometry is not installed: run make bench-env" in rows[4]
    assert table.markdown(lines, "nothing") == table.NOT_THERE.format("nothing")
    assert rows[3].startswith("|  | arithmetic limit | ")
    facts = table.facts_markdown(lines).splitlines()
    assert facts[:2] == [f"| run | {table.facts(lines)[0]['run']} |", "| --- | --- |"]
    assert "| gemm float32 [flop/s] | 1e+09 |" in facts


def test_rates_are_sorted_by_the_sizes_in_their_names() -> None:
    names = ["gemm float64", "copy of 256 MiB", "copy of 8 MiB", "copy of 16 MiB", "gemm float32"]
    assert sorted(names, key=table._by_size) == [names[2], names[3], names[1], names[4], names[0]]


@pytest.mark.slow
def test_every_job_is_labelled_and_has_a_name_of_its_own() -> None:
    tasks = command.all_tasks()
    assert {task.trouble for task in tasks} == {""}
    assert len({(task.benchmark, task.name) for task in tasks}) == len(tasks)
    for task in tasks:
        assert task.job is not None
        assert task.job.how
        assert task.job.precision or task.job.work
        assert task.job.sizes
