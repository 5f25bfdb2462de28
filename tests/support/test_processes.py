"""Tasks in processes of their own: what is lost, what an interruption ends, what a user's script must know."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from foretrain.support.processes import run_apart


def report(number: int) -> tuple[int, int, str]:
    """Whose answer tells processes apart; 2 is killed, 3 fails."""
    print("not for standard output")
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if number == 3:
        sys.exit(5)
    return number, os.getpid(), os.environ["OMP_NUM_THREADS"]


def test_every_task_has_its_process_and_one_that_is_lost_costs_itself(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    found = list(run_apart(report, [0, 1, 2, 3, 4], 2, lambda task, reason: (task, -1, reason)))
    answers = {number: (process, told) for number, process, told in found}
    assert sorted(answers) == [0, 1, 2, 3, 4]
    processes = {answers[number][0] for number in (0, 1, 4)}
    assert len(processes | {os.getpid()}) == 4
    assert "killed" in answers[2][1]
    assert "code 5" in answers[3][1]
    assert int(answers[0][1]) >= 1
    assert "OMP_NUM_THREADS" not in os.environ
    assert capfd.readouterr().out == ""


def wait_long(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(60)


@pytest.mark.slow
def test_an_interruption_ends_all_processes(tmp_path: Path) -> None:
    results = run_apart(wait_long, [str(tmp_path)] * 2, 2, lambda task, reason: None)
    timer = threading.Timer(0.0, interrupt_when, [tmp_path])
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        next(results)
    timer.join()
    for name in tmp_path.iterdir():
        assert not psutil.pid_exists(int(name.name))


def interrupt_when(folder: Path) -> None:
    """As soon as both processes are at work."""
    for _ in range(600):
        if len(list(folder.iterdir())) == 2:
            break
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGINT)


SCRIPT = """
from foretrain.experiments import run_many

print("once")
print(run_many(["parameter-count", "activation-curves"], workers=2).holds)
"""


@pytest.mark.slow
def test_a_script_needs_no_guard(tmp_path: Path) -> None:
    """It is not run again in the processes that it starts."""
    (tmp_path / "script.py").write_text(SCRIPT)
    run = subprocess.run([sys.executable, tmp_path / "script.py"], capture_output=True, text=True, check=True)
    assert run.stdout == "once\nTrue\n"
