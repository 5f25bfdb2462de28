"""Workers import nothing from the folder that the user happens to be in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from foretrain.support import engines
from foretrain.support.processes import end_with, safe_path

TRAP = "from pathlib import Path\nPath(__file__).with_suffix('.ran').touch()\nraise ImportError('not the library')\n"
NAMES = ("tempfile", "json", "random", "queue", "socket")
COMMAND = "import sys\nfrom foretrain.cli.main import main\nsys.exit(main(sys.argv[1:]))\n"

MODEL = """
import torch
from beside import WIDTH

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, WIDTH), torch.nn.Tanh(), torch.nn.Linear(WIDTH, 1)).double()

def point(a: int):
    return a * WIDTH
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a user's own files, some of which are called like modules of Python's library."""
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(TRAP)
    (folder / "model.py").write_text(MODEL)
    (folder / "beside.py").write_text("WIDTH = 4\n")
    np.savez(folder / "data.npz", x=np.random.default_rng(0).standard_normal((40, 3)))
    (folder / "points.toml").write_text('observable = "model.py:point"\n[axes]\na = [1, 2, 3, 4]\n')
    (tmp_path / "command.py").write_text(COMMAND)  # as the installed command, which starts elsewhere
    return folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "call",
    [
        ["ntk", "model.py:make", "data.npz", "-o", "k.zarr", "--workers", "2", "--batch-size", "5"],
        ["sweep", "points.toml", "--workers", "2"],
        ["sweep", "points.toml", "--dry-run"],
    ],
    ids=["ntk", "sweep", "dry-run"],
)
def test_files_beside_the_data_are_not_run_by_workers(call: list[str], folder: Path) -> None:
    run = subprocess.run(
        [sys.executable, folder.parent / "command.py", *call],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert [path.name for path in folder.glob("*.ran")] == []
    assert run.returncode == 0, run.stderr


def test_the_environment_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    first, second = safe_path(), safe_path()
    with first:
        second.__enter__()
    assert os.environ["PYTHONSAFEPATH"]  # as long as one of them needs it
    second.__exit__(None, None, None)
    assert "PYTHONSAFEPATH" not in os.environ
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    with safe_path():
        pass
    assert os.environ["PYTHONSAFEPATH"] == "1"


def setting(_: int) -> tuple[str | None, bool]:
    return os.environ.get("PYTHONSAFEPATH"), sys.flags.safe_path


def test_processes_that_a_task_starts_are_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    assert list(engines.run(setting, range(4), workers=2)) == [(None, True)] * 4
    with safe_path():
        end_with(os.getpid())  # of a task in the process itself, which starts others meanwhile
        assert os.environ["PYTHONSAFEPATH"]
