"""README.md does what it says: every block of Python runs, every command is run or at least read."""

from __future__ import annotations

import ast
import json
import re
import shlex
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cells import markdown_cells

import foretrain as ft
from foretrain.cli import frame, main
from foretrain.experiments import registry

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = [cell.text for cell in markdown_cells(README) if cell.code]
CONSOLE = re.findall(r"^```console\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
TOML = re.findall(r"^```toml\n(.*?)^```", README, re.MULTILINE | re.DOTALL)
TYPED = [
    line[2:].partition(" #")[0].strip()
    for block in CONSOLE
    for line in block.splitlines()
    if line[:2] == "$ "
]
COMMANDS = [line for line in dict.fromkeys(TYPED) if line.startswith("foretrain ")]

# What makes a command short enough for a test, without changing what it does.
SHORTER = {
    "doctor": "--steps 10",
    "report": "--steps 10",
    "compare tanh --trained": "--draws 40 --time 10",
    "compare": "--draws 500",
    "sweep": "--workers 1",
    "reproduce --all": "--workers 1",
}
ONLY_READ = ("--paper-scale",)  # hours
MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
"""
RECURRENT = """
import torch

class make(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.readout = torch.nn.GRU(3, 5, batch_first=True), torch.nn.Linear(5, 1)

    def forward(self, x):
        return self.readout(self.cell(x)[0])
"""


def imports_of(blocks: list[str]) -> str:
    """What a reader has imported after these blocks."""
    lines = [node for block in blocks for node in ast.parse(block).body]
    return "\n".join(ast.unparse(node) for node in lines if isinstance(node, ast.Import | ast.ImportFrom))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("number", range(len(BLOCKS)))
@pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")
def test_python_runs(number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(imports_of(BLOCKS[:number]), names)
    exec(compile(BLOCKS[number], f"README.md, block {number + 1}", "exec"), names)


def test_there_is_something_to_run() -> None:
    assert len(BLOCKS) >= 6
    assert len(COMMANDS) >= 15
    assert {shlex.split(command)[1] for command in COMMANDS} == set(main._COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_commands_can_be_read(command: str) -> None:
    name, *arguments = shlex.split(command)[1:]
    frame.parser(name, main.command(name)).make_context(name, arguments)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """A small model, activation, log, data and sweep under the names that the commands use."""
    recurrent = "foretrain global" in request.node.callspec.params["command"]
    (tmp_path / "model.py").write_text(RECURRENT if recurrent else MODEL)
    (tmp_path / "act.py").write_text("import numpy as np\n\ndef mine(z):\n    return np.tanh(z)\n")
    (tmp_path / "log.csv").write_text(
        "step,loss\n" + "".join(f"{step},{2 / (step + 1)}\n" for step in range(60))
    )
    x = np.random.default_rng(0).normal(size=(8, 4, 3) if recurrent else (8, 3))
    y = np.tanh(x[..., :1])
    np.savez(tmp_path / "data.npz", x=x, y=y, x_test=x[:2], y_test=y[:2])
    (spec,) = TOML
    (tmp_path / "phases.toml").write_text(re.sub(r"points = \d+", "points = 3", spec))
    few = ("parameter-count", "activation-curves")  # all of them take many minutes
    monkeypatch.setattr(registry, "names", lambda: few)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("command", [line for line in COMMANDS if not any(w in line for w in ONLY_READ)])
def test_commands_run(command: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = shlex.split(command)[1:]
    shorter = next((words for part, words in SHORTER.items() if f"foretrain {part}" in command), "").split()
    assert main.main([*arguments, *shorter, "--json"]) in (0, 1)  # 1: the answer is no
    told = capsys.readouterr()
    assert "unexpected" not in told.err
    assert json.loads(told.out)
    written = [word for option, word in pairwise(arguments) if option in ("--plot", "-o", "--keep")]
    assert all((folder / name).exists() for name in written)


@pytest.mark.slow
def test_the_sweep_is_one_dataset_over_its_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (spec,) = TOML
    monkeypatch.chdir(tmp_path)
    Path("phases.toml").write_text(re.sub(r"points = \d+", "points = 2", spec))
    assert main.main(["sweep", "phases.toml", "--workers", "1", "--json"]) == 0
    assert {"C_b", "C_W"} <= set(ft.load("phases.sweep").dims)


def test_it_counts_all_experiments() -> None:
    (line,) = (line for block in CONSOLE for line in block.splitlines() if "reproduce --all" in line)
    assert f"# all {len(registry.names())} in" in line


def test_targets_of_make_exist() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    named = [word for line in TYPED if line.startswith("make ") for word in line.split()[1:]]
    assert named
    assert set(named) <= set(targets)
