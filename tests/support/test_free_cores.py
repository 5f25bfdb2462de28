"""Threads of torch keep off cores that other processes use."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from foretrain.support import threads


@pytest.fixture
def two_torch_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_torch_threads")
def test_torch_keeps_to_free_cores_and_has_its_threads_back(monkeypatch: pytest.MonkeyPatch) -> None:
    free = [1]
    monkeypatch.setattr(threads, "free_cores", lambda: free[0])
    with threads.on_free_cores():
        assert torch.get_num_threads() == 1
        free[0] = 8
        with threads.on_free_cores():  # looks again, and takes no more than there were
            assert torch.get_num_threads() == 2
        assert torch.get_num_threads() == 2
        free[0] = 1
        with pytest.raises(KeyError), threads.on_free_cores():
            raise KeyError
    assert torch.get_num_threads() == 2


def test_one_thread_stays_one_without_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(threads, "free_cores", lambda: pytest.fail("looked"))
    with threads.on_free_cores():
        assert torch.get_num_threads() == 1
    torch.set_num_threads(before)


@pytest.mark.skipif(not threads._LOAD.exists(), reason="only Linux says how many tasks are running")
def test_a_busy_process_is_a_neighbour_and_own_threads_are_none() -> None:
    spinning = "import time\nend = time.monotonic() + 20\nwhile time.monotonic() < end: pass"
    with subprocess.Popen([sys.executable, "-c", spinning]) as neighbour:
        try:
            end = time.monotonic() + 10
            while threads.busy_neighbours() < 1 and time.monotonic() < end:
                time.sleep(0.05)
            looks = [threads.busy_neighbours() for _ in range(20)]
        finally:
            neighbour.kill()
    assert sorted(looks)[10] >= 1
    assert 1 <= threads.free_cores() <= threads.core_count()


def test_without_the_system_s_word_nobody_is_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(threads, "_LOAD", tmp_path / "missing")
    assert threads.busy_neighbours() == 0
