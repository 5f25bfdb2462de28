"""The command line as a new user meets it: every example of every help text can be read, and quick ones are run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from foretrain.cli import frame, main

NAMES = tuple(main._COMMANDS)
EXAMPLES = [(name, example) for name in NAMES for example in main.command(name).examples]

MODEL = """
import torch
from torch import nn

def make():
    print("made")
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
"""
RECURRENT = """
import torch
from torch import nn

class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.cell = nn.LSTM(4, 5, batch_first=True)
        self.readout = nn.Linear(5, 2)

    def forward(self, x):
        return self.readout(self.cell(x)[0])

make = Reader

class Loop(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner, self.outer, self.head = nn.Linear(5, 5), nn.Linear(4, 5), nn.Linear(5, 2)

    def forward(self, x):
        state, states = x.new_zeros(len(x), 5), []
        for step in range(x.shape[1]):
            state = torch.tanh(self.inner(state) + self.outer(x[:, step]))
            states.append(state)
        states = torch.stack(states, 1)
        return self.head(states), states

loop = Loop
"""
# Training, Monte Carlo, clusters and whole pages have tests of their own; their examples are only read.
SLOW = (
    "compare",
    "--width 500",
    "--verify",
    "escape --model",
    "dask://",
    "report",
    "log-variance",
    "metric-fluctuations",
)
QUICK = [(name, example) for name, example in EXAMPLES if not any(word in example for word in SLOW)]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """What the examples speak of: model.py, act.py, log.csv, data.npz and weights.pt."""
    recurrent = request.node.callspec.params.get("name") == "global"
    (tmp_path / "model.py").write_text(RECURRENT if recurrent else MODEL)
    (tmp_path / "act.py").write_text("import numpy as np\n\ndef mine(z):\n    return np.tanh(z)\n")
    (tmp_path / "log.csv").write_text(
        "step,loss\n" + "".join(f"{step},{2 / (step + 1)}\n" for step in range(60))
    )
    source = np.random.default_rng(0)
    if recurrent:
        np.savez(tmp_path / "data.npz", x=source.normal(size=(10, 6, 4)), y=source.normal(size=(10, 6, 2)))
    else:
        x = source.normal(size=(24, 4))
        np.savez(tmp_path / "data.npz", x=x, y=x[:, :3].argmax(1))
    layers = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    torch.save(layers.state_dict(), tmp_path / "weights.pt")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers(item)
    elif isinstance(value, float):
        yield value


@pytest.mark.parametrize("name", NAMES)
def test_every_command_explains_itself_with_examples(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([name, "--help"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    examples = main.command(name).examples
    assert len(examples) >= 3
    assert all(f"    {example}\n" in f"{told.out}\n" for example in examples)
    assert all(option in told.out for option in ("--json", "--debug", "--help"))
    assert "None" not in told.out


@pytest.mark.parametrize(("name", "example"), EXAMPLES, ids=[example for _, example in EXAMPLES])
def test_every_example_can_be_read(name: str, example: str) -> None:
    program, first, *arguments = shlex.split(example)
    assert (program, first) == ("foretrain", name)
    context = frame.parser(name, main.command(name)).make_context(f"foretrain {name}", list(arguments))
    assert context.params.keys() >= {"json", "debug"}


def names_in(folder: Path) -> set[str]:
    """Without what Python itself writes when it compiles the user's file."""
    return {path.name for path in folder.iterdir()} - {"__pycache__"}


@pytest.mark.slow(after=3)
@pytest.mark.parametrize(("name", "example"), QUICK, ids=[example for _, example in QUICK])
def test_quick_examples_do_what_they_say(
    name: str, example: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = shlex.split(example)[1:]
    given = names_in(folder)
    assert main.main([*arguments, *([] if "--json" in arguments else ["--json"])]) in (0, 1)
    told = capsys.readouterr()
    assert "Traceback" not in told.err
    assert "unexpected" not in told.err
    document = json.loads(told.out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
    assert document
    assert all(np.isfinite(number) for number in numbers(document))
    outputs = {"--plot", "--save", "-o"}
    written = {word for option, word in pairwise(arguments) if option in outputs}
    assert names_in(folder) - given == written


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("spelling", ["cross_entropy", "cross-entropy", "Cross-Entropy"])
@pytest.mark.parametrize("name", ["doctor", "escape"])
def test_a_loss_may_be_spelt_with_either_stroke(
    name: str, spelling: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {
        "doctor": "model.py:make data.npz --checks inputs",
        "escape": "--model model.py:make --data data.npz --lr 0.1 --train-steps 0",
    }
    assert main.main([name, *words[name].split(), "--loss", spelling, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == "cross-entropy"


@pytest.mark.parametrize("name", ["doctor", "escape", "report"])
def test_a_misspelt_loss_is_refused_with_the_nearest_one(
    name: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = ["--model", "model.py:make", "--data", "data.npz", "--lr", "1"]
    given = names_in(folder)
    assert main.main([name, *(own if name == "escape" else own[1::2][:2]), "--loss", "crossentropy"]) == 2
    message = capsys.readouterr().err.strip()
    assert "did you mean 'cross_entropy'" in message
    assert names_in(folder) == given


def test_the_overview_begins_with_the_doctor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main([]) == 0
    examples = capsys.readouterr().out.partition("For example:\n")[2].splitlines()
    assert examples[0].strip().startswith("foretrain doctor ")
    for example in examples:
        _, name, *arguments = shlex.split(example)
        frame.parser(name, main.command(name)).make_context(name, arguments)
