"""Runs: every result is a line of one form, trouble is one too, and no end of a run loses what it has."""

import json
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import peers
from bench.harness import link, runs
from bench.harness.jobs import Measured, PeerCall, Row, Scaling
from bench.harness.lines import LIMIT, Line, lines_of
from bench.harness.rates import Rates, cores
from bench.harness.runs import COMPLETE, INTERRUPTED, QUICK, Settings, Task, measure

MakeTask = Callable[..., Task]
SETTINGS = Settings(rounds=3, budget=0.0)


def fails() -> Any:
    raise ArithmeticError("no such sum")


def stops() -> Any:
    raise KeyboardInterrupt


def test_ratios_and_their_spread_come_from_the_rounds(task: MakeTask) -> None:
    job = task(aim=2.0, share_aim=0.5, peer_precision="float32").job
    assert job is not None
    row = Row(job, ours=Measured(2.0, [1.0, 2.0, 4.0]), limit=1.0)
    row.peers = {
        "slow": Measured(12.0, [12.0]),
        "numpy": Measured(6.0, [6.0, 4.0, 16.0], memory=8),
        "gone": Measured(trouble="not installed"),
    }
    slow, numpy, gone, limit = lines_of("tiny", row, threads=2)
    assert [numpy.ratio, numpy.lowest, numpy.highest, numpy.aim] == [3.0, 2.0, 6.0, 2.0]
    assert [slow.ratio, slow.lowest, slow.highest, slow.aim] == [6.0, 3.0, 12.0, None]
    assert [limit.ratio, limit.lowest, limit.highest, limit.aim] == [0.5, 0.25, 1.0, 0.5]
    assert gone.ratio is None
    assert gone.other_trouble == "not installed"
    assert numpy.precision == "float64 / float32"
    assert numpy.measured == "median of 3 rounds, sides in turn"
    assert slow.measured == "median of 3 rounds, the peer timed once"
    assert numpy.other_bytes == 8


def test_a_run_measures_every_side_and_says_how(task: MakeTask, rates: Rates) -> None:
    found = measure([task()], SETTINGS, rates)
    peer, limit = found.lines
    assert found.ended == COMPLETE
    assert [peer.benchmark, peer.job, peer.beside, limit.beside] == ["tiny", "sum", "numpy", LIMIT]
    assert peer.lowest <= peer.ratio <= peer.highest
    assert limit.other_seconds == pytest.approx(1e-6)
    assert limit.ratio == pytest.approx(1e-6 / limit.our_seconds)
    assert [peer.sizes, peer.precision, peer.threads] == [{"numbers": 200}, "float64", cores()]
    machine = found.record()["machine"]
    assert {"cores", "processor", "versions", "peers", "load before"} <= machine.keys()
    assert {"gemm float32 [flop/s]", "gemm float64 [flop/s]", "copy of 256 MiB [byte/s]"} <= machine[
        "rates"
    ].keys()


def test_lines_survive_the_record(task: MakeTask, rates: Rates, tmp_path: Path) -> None:
    tasks = [task(error=lambda _: np.inf), task("alone", peer=None, work=None)]
    found = measure(tasks, SETTINGS, rates, runs.save_in(tmp_path))
    read = [line for line, _ in runs.newest_lines(runs.newest_record(tmp_path))]
    assert read == found.lines
    assert [line.beside for line in read] == ["numpy", LIMIT, ""]
    assert read[0].our_error == np.inf


def test_what_fails_is_a_line_and_the_others_go_on(task: MakeTask, rates: Rates) -> None:
    tasks = [
        Task("broken", trouble="ImportError: no module"),
        task("bad", ours=fails),
        task("bad limit", work="nonsense"),
        task("bad peer", peer={"other": fails}),
        task("bad growth", scalings=(Scaling("N", {1: fails, 2: fails}),)),
        task("good"),
    ]
    lines = measure(tasks, SETTINGS, rates).lines
    told = {line.job: line.our_trouble for line in lines}
    assert told["broken"] == "ImportError: no module"
    assert told["bad"] == told["bad growth"] == "ArithmeticError: no such sum"
    assert "AttributeError" in told["bad limit"]
    assert told["bad peer"] is told["good"] is None
    peer = next(line for line in lines if line.beside == "other")
    assert [peer.other_trouble, peer.ratio] == ["ArithmeticError: no such sum", None]
    assert peer.our_seconds > 0
    grown = next(line for line in lines if line.job == "bad growth")
    assert grown.our_seconds > 0


def test_a_peer_that_is_not_installed_is_a_line_that_names_it(
    task: MakeTask, rates: Rates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    call = PeerCall("neural-tangents", "pairs", {"K": np.eye(2)})
    found = measure([task(peer={"neural-tangents, closed": call})], SETTINGS, rates)
    assert found.lines[0].beside == "neural-tangents, closed"
    assert found.lines[0].other_trouble == "neural-tangents is not installed: run make bench-env"
    assert found.lines[1].beside == LIMIT
    assert found.record()["machine"]["peers"]["neural-tangents"] == "not installed"


def test_a_peer_on_no_package_index_says_where_its_code_is_to_be_named(
    task: MakeTask,
    rates: Rates,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(peers, "FOLDER", tmp_path)
    monkeypatch.delenv("KPFLOW", raising=False)
    call = PeerCall("kpflow", "global-state trace", {"X": np.eye(2)})
    found = measure([task(peer=call)], SETTINGS, rates)
    assert found.lines[0].other_trouble == (
        "kpflow is not installed: it is on no package index: set KPFLOW to a copy of github.com/meeree/kpflow "
        "and run make bench-env"
    )
    monkeypatch.setattr("sys.argv", ["bench.peers", "kpflow"])
    assert peers.main() == 0  # the other peers are made all the same
    assert "kpflow: left out, because it is on no package index" in capsys.readouterr().out
    monkeypatch.setenv("KPFLOW", str(tmp_path))
    assert peers.environment("kpflow").remedy == "run make bench-env"


def test_after_an_interruption_what_was_measured_is_kept(
    task: MakeTask, rates: Rates, tmp_path: Path
) -> None:
    tasks = [task("first"), task("second", ours=stops), task("third")]
    found = measure(tasks, SETTINGS, rates, runs.save_in(tmp_path))
    assert found.ended == INTERRUPTED
    record = runs.newest_record(tmp_path)
    assert [entry["job"] for entry in record["runs"][0]["lines"]] == ["first", "first"]
    assert record["runs"][0]["ended"] == INTERRUPTED


def test_every_job_is_on_disk_before_the_next_begins(task: MakeTask, rates: Rates, tmp_path: Path) -> None:
    seen = []

    def look() -> Any:
        (file,) = tmp_path.glob("bench-*.json")
        seen.append([entry["job"] for entry in json.loads(file.read_text())["runs"][0]["lines"]])
        return {"sum": np.zeros(1)}

    measure([task("first", work=None), task("second", ours=look)], SETTINGS, rates, runs.save_in(tmp_path))
    assert seen[0] == ["first"]


def test_runs_of_a_day_stand_beside_each_other(task: MakeTask, rates: Rates, tmp_path: Path) -> None:
    """The newest measurement of a job is shown, a quick one only where there is no full one."""
    kept = [
        measure([task("sum"), task("other")], SETTINGS, rates),
        measure([task("sum")], SETTINGS, rates),
        measure([task("sum"), task("third")], QUICK, rates),
    ]
    for hour, found in enumerate(kept):
        found.facts["date"] = f"2031-05-06T1{hour}:00:00+00:00"
        runs.save_in(tmp_path)(found)
    record = runs.newest_record(tmp_path)
    assert len(record["runs"]) == 3
    shown = {line.job: run["date"][11:13] for line, run in runs.newest_lines(record)}
    assert shown == {"sum": "11", "other": "10", "third": "12"}

    tomorrow = measure([task("other")], SETTINGS, rates)
    tomorrow.facts["date"] = "2031-05-07T09:00:00+00:00"
    runs.save_in(tmp_path)(tomorrow)
    lines = runs.newest_lines(runs.newest_record(tmp_path))
    shown = {line.job: run["date"][8:13] for line, run in lines}
    assert shown == {"sum": "06T11", "other": "07T09", "third": "06T12"}


def test_a_quick_run_leaves_long_jobs_and_exponents_out_and_says_so(task: MakeTask, rates: Rates) -> None:
    tasks = [task("short", scalings=(Scaling("N", {1: fails}),)), task("long", long=True)]
    found = measure(tasks, QUICK, rates)
    assert {line.job for line in found.lines} == {"short"}
    assert found.lines[0].our_trouble is None
    assert found.record()["left out"] == ["long"]
    assert {line.job for line in measure(tasks, replace(QUICK, long_jobs=True), rates).lines} == {
        "short",
        "long",
    }


def test_a_peer_at_work_is_not_waited_for_after_an_interruption(
    task: MakeTask, rates: Rates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C while a peer computes for a minute."""
    sleeper = peers.OwnEnvironment("sleeper", "tests.benchmarks.sleeping_peer", "", ())
    monkeypatch.setitem(peers.ENVIRONMENTS, "sleeper", sleeper)
    opened: list[link.Link] = []
    original = link.Link.prepare

    def prepare(self: link.Link, *given: Any) -> str:
        opened.append(self)
        if given[2]["seconds"]:
            signal.setitimer(signal.ITIMER_REAL, 0.2)
        return original(self, *given)

    monkeypatch.setattr(link.Link, "prepare", prepare)
    before = signal.signal(signal.SIGALRM, lambda *_: stops())
    numbers = {"numbers": np.arange(3)}
    fast, slow = (PeerCall("sleeper", "sum", numbers, {"seconds": seconds}) for seconds in (0, 60))
    start = time.monotonic()
    try:
        found = measure([task("fast", peer=fast), task("slow", peer=slow)], SETTINGS, rates)
    finally:
        signal.signal(signal.SIGALRM, before)
    assert found.ended == INTERRUPTED
    assert time.monotonic() - start < 40
    assert found.lines[0].other_seconds > 0
    assert {line.job for line in found.lines} == {"fast"}
    assert not opened[-1].alive


def test_a_line_is_read_as_it_was_written() -> None:
    line = Line("tiny", "sum", "how", other_error=np.inf, sizes={"numbers": 2}, exponents={"N": 1.5})
    assert Line.read(line.record() | {"other_error": "inf"}) == line
