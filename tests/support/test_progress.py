from __future__ import annotations

import io
import multiprocessing
import os
import pty
import subprocess
import sys
import time

import pytest

from foretrain.support import progress


class Terminal(io.StringIO):
    """A stream that claims to be a terminal and keeps what is written."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, patience: float = 0.05) -> Terminal:
    # Not a fixture: pytest puts its own stderr in place between the fixtures and the test.
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(progress, "_PATIENCE", patience)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    return stream


def wait_for(stream: Terminal, text: str) -> None:
    deadline = time.monotonic() + 5
    while text not in stream.getvalue():
        assert time.monotonic() < deadline, f"{text!r} never appeared in {stream.getvalue()!r}"
        time.sleep(0.01)


def test_nothing_is_written_without_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "_PATIENCE", 0.0)
    for _ in progress.track(range(3), "counting"):
        time.sleep(0.02)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_missing_or_closed_stderr_is_no_terminal(
    stream: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr(sys, "stderr", closed if stream else None)
    assert list(progress.track(range(3), "counting")) == [0, 1, 2]


def test_quick_work_shows_no_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch, patience=5.0)
    assert list(progress.track(range(3), "counting")) == [0, 1, 2]
    assert terminal.getvalue() == ""


def test_slow_work_shows_a_bar_with_its_description_and_share(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.Progress("[draws] of networks", total=4) as bar:
        bar.advance(2)
        wait_for(terminal, "[draws] of networks")
        wait_for(terminal, "50%")
        bar.advance()
        wait_for(terminal, "75%")


def test_the_bar_shows_even_if_the_first_step_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.Progress("one long step", total=1):
        wait_for(terminal, "one long step")


def test_nested_bars_share_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    with progress.Progress("outer", total=2) as outer:
        wait_for(terminal, "outer")
        with progress.Progress("inner", total=3) as inner:
            wait_for(terminal, "inner")
            inner.advance()
        outer.advance()
        wait_for(terminal, "50%")
    assert progress._screen._display is None


def test_an_interruption_passes_through_and_frees_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)

    def interrupted() -> None:
        with progress.Progress("work", total=2):
            wait_for(terminal, "work")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert progress._screen._display is None


def test_an_abandoned_iteration_can_be_cleared_and_work_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    iteration = progress.track(range(5), "abandoned")
    next(iteration)
    wait_for(terminal, "abandoned")
    progress.clear()
    assert progress._screen._display is None
    assert list(iteration) == [1, 2, 3, 4]


def test_track_counts_what_has_a_length_and_takes_what_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch)
    for step in progress.track((n for n in range(4)), "generated", total=4):
        if step == 2:
            wait_for(terminal, "50%")
    for step in progress.track((n for n in range(2)), "endless"):
        if step == 1:
            wait_for(terminal, "endless")


def test_worker_processes_do_not_draw_over_the_main_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = on_terminal(monkeypatch, patience=0.0)
    monkeypatch.setattr(multiprocessing.current_process(), "_name", "LokyProcess-1")
    for _ in progress.track(range(3), "counting"):
        time.sleep(0.02)
    assert terminal.getvalue() == ""


def test_rich_is_not_imported_until_a_bar_is_drawn() -> None:
    code = (
        "import sys, foretrain.support.progress as p; list(p.track([1], '')); sys.exit('rich' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_real_terminal_gets_its_cursor_back() -> None:
    code = (
        "import time, foretrain.support.progress as p\n"
        "p._PATIENCE = 0.05\n"
        "for _ in p.track(range(10), 'real work'): time.sleep(0.05)\n"
    )
    master, slave = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", code],
            stderr=slave,
            check=True,
            env={**os.environ, "TERM": "xterm"},
            timeout=30,
        )
        written = os.read(master, 1 << 16).decode()
    finally:
        os.close(slave)
        os.close(master)
    assert "real work" in written
    assert written.count("\x1b[?25h") >= written.count("\x1b[?25l") == 1
