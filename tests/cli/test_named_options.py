"""What cannot be used is said of the option that held it."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest

from foretrain.cli.main import main

MODEL = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
"""
SPEC = """
observable = "escape_time"
[fixed]
activation = "tanh"
method = "leading"
depth = 3
[axes]
epsilon = [0.1]
"""
FLOW = "flow tanh --depth 3 --width 10"
MODEL_AND_DATA = "model.py:make data.npz"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    x = np.random.default_rng(0).standard_normal((20, 4))
    np.savez("data.npz", x=x, y=x[:, :1])
    Path("model.py").write_text(MODEL)
    Path("sweep.toml").write_text(SPEC)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("line", "option"),
    [
        (f"{FLOW} --observables K,Z", "--observables"),
        (f"{FLOW} --kinks foo", "--kinks"),
        (f"{FLOW} --set slope=1", "--set"),
        ("flow leaky_relu --depth 3 --width 10 --set alpha=1", "--set"),
        (f"{FLOW} --data nope.npz", "--data"),
        *((f"predict tanh --{name} foo", f"--{name}") for name in ("regime", "loss", "learner", "algorithm")),
        ("predict tanh --draws 0", "--draws"),
        ("predict tanh --noise 1", "--noise"),
        ("advise tanh --width 10 --loss foo", "--loss"),
        *((f"doctor {MODEL_AND_DATA} --{name} foo", f"--{name}") for name in ("loss", "optimizer", "checks")),
        (f"doctor {MODEL_AND_DATA} --checkpoint nope.pt", "--checkpoint"),
        (f"global {MODEL_AND_DATA} --parameters 'zzz*'", "--parameters"),
        (f"global {MODEL_AND_DATA} --states foo", "--states"),
        ("escape tanh --scales=-1,0.1", "--scales"),
        ("sweep sweep.toml --workers 1 --quantity foo", "--quantity"),
        ("sweep sweep.toml --engine foo", "--engine"),
    ],
)
def test_commands_name_the_option_at_fault(
    line: str, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(line)) == 2
    message = capsys.readouterr().err
    assert option in message
    assert message.count("\n") == 1
