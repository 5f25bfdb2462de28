"""``foretrain doctor``: answers, files, exit codes and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.cli import main as cli

MODEL = """
import torch
from torch import nn

def chain(scale, depth=6, outputs=1):
    layers, width = [], 5
    for _ in range(depth):
        layer = nn.Linear(width, 24)
        nn.init.normal_(layer.weight, std=scale / width ** 0.5)
        nn.init.zeros_(layer.bias)
        layers, width = [*layers, layer, nn.Tanh()], 24
    print("made")
    return nn.Sequential(*layers, nn.Linear(24, outputs))

def healthy():
    return chain(1.0, depth=2)

def tiny():
    return chain(0.05, depth=8)

def classes():
    return chain(1.0, depth=2, outputs=3)

def fails():
    raise ValueError("no weights today")

def text():
    return "a model"

def recurrent():
    return nn.GRU(5, 4)

class Mixed(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.linear = nn.Embedding(7, 1), nn.Linear(5, 1)

    def forward(self, tokens, numbers):
        return self.table(tokens) + self.linear(numbers)

def robust(outputs, targets):
    return (outputs[:, 0] - targets).abs().mean()
"""
QUICK = ("--checks", "plateau")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    x = np.random.default_rng(0).normal(size=(96, 5))
    np.savez(tmp_path / "data.npz", x=x, y=np.tanh(x[:, 0]) + x[:, 1])
    np.savez(tmp_path / "labels.npz", x=x, y=np.arange(96) % 3)
    return tmp_path


def call(files: Path, make: str, *options: str, data: str = "data.npz") -> int:
    return cli.main(["doctor", f"{files / 'model.py'}:{make}", str(files / data), *options])


def test_a_healthy_model_ends_with_zero(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(files, "healthy", "--lr", "0.1") == 0
    said = capsys.readouterr()
    assert ":healthy: Healthy" in said.out
    assert "SGD with rate 0.1" in said.out
    assert "made" not in said.out  # what the user's file prints is not the answer


def test_a_critical_finding_ends_with_one_and_says_what_to_do(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(files, "tiny", "--lr", "0.1", "--verify", "--steps", "60", *QUICK) == 1
    text = capsys.readouterr().out
    assert "CRITICAL: " in text
    assert "Advice: " in text
    assert re.search(r"\d treatments?[^\n]*:\n\n1\. ", text)
    assert "Training: the advice helps: " in text


@pytest.mark.slow
def test_json_is_one_document(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(files, "tiny", "--lr", "0.1", "--verify", "--steps", "30", "--json", *QUICK) == 1
    found = json.loads(capsys.readouterr().out)
    assert found["healthy"] is False
    assert list(found["checks"]) == ["plateau"]
    assert found["checks"]["plateau"]["findings"][0]["severity"] == "critical"
    assert found["treatments"][0]["check"] == "plateau"
    assert found["code"]
    assert found["verification"]["curves"]["treated"]["step"][-1] == 30
    assert found["verification"]["improvement"] > 1


@pytest.mark.slow
def test_the_same_seed_gives_the_same_answer(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answers = []
    for seed in ("3", "3", "4"):
        call(files, "tiny", "--lr", "0.1", "--json", "--seed", seed, *QUICK)
        answers.append(json.loads(capsys.readouterr().out)["checks"])
    assert answers[0] == answers[1] != answers[2]


@pytest.mark.slow
def test_data_and_picture_are_saved(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, picture = files / "out", files / "diagnosis.png"
    options = ("--verify", "--steps", "20", "--save", str(out), "--plot", str(picture))
    assert call(files, "classes", *options, *QUICK, data="labels.npz") == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert {path.name for path in out.iterdir()} >= {"answer.json", "answer.txt", "figure.png"}
    assert json.loads((out / "answer.json").read_text())["loss"] == "cross-entropy"
    assert "verification.loss" in ft.load(out)
    capsys.readouterr()


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    "optimizer", ["sgd", "adam", "adamw", "shampoo", "rmsprop", "adagrad", "nadam", "radam", "adamax"]
)
def test_optimizers_by_name(files: Path, optimizer: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(files, "healthy", "--optimizer", optimizer, "--lr", "0.01", "--json", *QUICK) == 0
    assert json.loads(capsys.readouterr().out)["optimizer"].lower().startswith(optimizer)


def test_options_of_the_training_reach_it(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    own = f"{files / 'model.py'}:robust"
    options = ("--optimizer", "AdamW", "--weight-decay", "0.1", "--clip-norm", "2", "--accumulate", "3")
    assert call(files, "healthy", *options, "--batch-size", "8", "--loss", own, "--json", *QUICK) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["loss"] == "robust"
    assert answer["optimizer"] == (
        "AdamW with rate 0.001, gradients clipped at norm 2, 3 micro-batches in a step"
    )
    assert answer["batch_size"] == 24
    assert call(files, "healthy", "--loss", "huber", "--lr", "0.1", "--json", *QUICK) == 0
    assert json.loads(capsys.readouterr().out)["loss"] == "huber_loss"


def test_arrays_have_the_names_of_the_models_arguments(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(0).normal(size=(96, 5))
    np.savez(files / "named.npz", numbers=x, tokens=np.arange(96) % 7, y=x[:, 0])
    assert call(files, "Mixed", "--lr", "0.1", "--json", *QUICK, data="named.npz") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 96


def test_weights_of_a_checkpoint_have_begun(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from foretrain.support.loading import load_model

    torch.save(load_model(f"{files / 'model.py'}:healthy").state_dict(), files / "weights.pt")
    capsys.readouterr()
    assert call(files, "healthy", "--checkpoint", str(files / "weights.pt"), "--json", *QUICK) == 0
    assert json.loads(capsys.readouterr().out)["fresh"] is False


def test_a_bare_recurrent_layer_takes_files_with_samples_first(
    files: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = np.random.default_rng(0)
    np.savez(files / "steps.npz", x=source.normal(size=(12, 7, 5)), y=source.normal(size=(12, 7, 4)))
    assert call(files, "recurrent", "--json", "--checks", "inputs", data="steps.npz") == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 12


REFUSED = {
    "a factory that raises": (("fails",), "raised ValueError (no weights today)"),
    "no module": (("text",), "returns a str: let it return a torch.nn.Module"),
    "no such function": (("helthy",), "did you mean 'healthy'?"),
    "a missing file": (("healthy", "--lr", "1", "missing.npz"), "missing.npz"),
    "an unknown loss": (("healthy", "--loss", "mean"), "unknown --loss 'mean'"),
    "an unknown optimizer": (("healthy", "--optimizer", "sdg"), "did you mean 'sgd'?"),
    "an unknown check": (("healthy", "--checks", "plateaus"), "did you mean 'plateau'?"),
    "a negative rate": (("healthy", "--lr", "-1"), "--lr is -1"),
    "momentum of another": (
        ("healthy", "--optimizer", "adam", "--momentum", "0.9"),
        "--momentum is an option of sgd",
    ),
    "decay without a rate": (("healthy", "--weight-decay", "0.5"), "--weight-decay needs --lr"),
    "a negative decay": (("healthy", "--lr", "1", "--weight-decay", "-1"), "--weight-decay is -1"),
    "a decay of an optimizer without": (
        ("healthy", "--optimizer", "lbfgs", "--weight-decay", "1"),
        "lbfgs does not take",
    ),
    "no clipping": (("healthy", "--lr", "1", "--clip-norm", "0"), "--clip-norm is 0"),
    "no such loss in the file": (("healthy", "--loss", "model.py:nothing"), "model.py"),
    "arguments of another model": (("Mixed", "data.npz"), "does not take x of shape (96, 5)"),
    "too much momentum": (("healthy", "--lr", "1", "--momentum", "1"), "--momentum is 1"),
    "momentum without a rate": (("healthy", "--momentum", "0.5"), "--momentum needs --lr"),
    "an empty batch": (("healthy", "--lr", "1", "--batch-size", "0"), "--batch-size"),
    "no steps": (("healthy", "--steps", "0"), "--steps"),
    "labels out of range": (("classes", "out_of_range.npz"), "labels run from 0 to 3"),
    "data that is not a number": (("healthy", "nan.npz"), "nan"),
    "no samples": (("healthy", "empty.npz"), "empty"),
    "other shapes": (("healthy", "wide.npz"), "does not take x of shape (96, 9)"),
    "different lengths": (("healthy", "uneven.npz"), "96"),
    "targets of another shape": (("healthy", "targets.npz"), "target has shape (4,)"),
    "a missing checkpoint": (("healthy", "--checkpoint", "nowhere.pt"), "nowhere.pt is not a file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_one_sentence_with_code_two(
    files: Path, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (make, *options), expected = REFUSED[case]
    x, y = np.random.default_rng(0).normal(size=(96, 5)), np.zeros(96)
    np.savez(files / "out_of_range.npz", x=x, y=np.arange(96) % 4)
    np.savez(files / "nan.npz", x=np.where(x > 2, np.nan, x), y=y)
    np.savez(files / "empty.npz", x=x[:0], y=y[:0])
    np.savez(files / "wide.npz", x=np.ones((96, 9)), y=y)
    np.savez(files / "uneven.npz", x=x, y=y[:50])
    np.savez(files / "targets.npz", x=x, y=np.ones((96, 4)))
    before = sorted(files.iterdir())
    data = options.pop() if options and options[-1].endswith(".npz") else "data.npz"
    assert call(files, make, *options, "--save", str(files / "out"), data=data) == 2
    said = capsys.readouterr()
    assert said.out == ""
    lines = [line for line in said.err.splitlines() if line != "made"]
    assert len(lines) == 1
    assert lines[0].startswith("foretrain: ")
    assert expected.lower() in lines[0].lower()
    assert sorted(path for path in files.iterdir() if path.name != "__pycache__") == before
