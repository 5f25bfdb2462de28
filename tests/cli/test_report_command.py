from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from foretrain.cli import frame
from foretrain.cli.report import COMMAND

MODEL = """
import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1))

def classes():
    return nn.Linear(4, 3)

def broken():
    raise ValueError("no such layer")

def number():
    return 7
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model.py").write_text(MODEL)
    x = np.random.default_rng(0).normal(size=(40, 4))
    np.savez(tmp_path / "data.npz", x=x, y=x[:, :1])
    np.savez(tmp_path / "nan.npz", x=np.where(x > 2, np.nan, x), y=x[:, :1])
    np.savez(tmp_path / "wide.npz", x=np.ones((40, 5)), y=x[:, :1])
    np.savez(tmp_path / "labels.npz", x=x, y=np.arange(40))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> int:
    return frame.run("report", COMMAND, arguments)


def test_a_page_is_written_and_told(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("model.py:make", "data.npz", "-o", "out.html", "--lr", "0.05", "--steps", "10") == 0
    told = capsys.readouterr().out
    assert "Written: out.html" in told
    assert " MB)" in told
    assert "Training:" in told
    text = (folder / "out.html").read_text(encoding="utf-8")
    assert text.startswith("<!DOCTYPE html>")
    assert "model.py:make on data.npz" in text
    assert "Trained " in text


def test_an_earlier_page_is_kept_unless_asked_otherwise(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "report.html").write_text("mine")
    arguments = (
        "model.py:make",
        "data.npz",
        "--lr",
        "0.05",
        "--no-verify",
        "--json",
        "--title",
        "A <b> title",
    )
    assert run(*arguments) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert (folder / "report.html").read_text() == "mine"
    assert run(*arguments, "--overwrite") == 0
    document = json.loads(capsys.readouterr().out)
    assert document["page"] == "report.html"
    assert document["bytes"] == (folder / "report.html").stat().st_size
    assert document["networks"][0]["verification"] is None
    assert "A &lt;b&gt; title" in (folder / "report.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("model.py:broken", "data.npz"), "no such layer"),
        (("model.py:number", "data.npz"), "torch.nn.Module"),
        (("model.py:make", "missing.npz"), "missing.npz"),
        (("model.py:make", "nan.npz"), "x"),
        (("model.py:make", "wide.npz"), "(40, 5)"),
        (("model.py:make", "data.npz", "--lr", "-1"), "--lr"),
        (("model.py:make", "data.npz", "--optimizer", "adamm"), "adam"),
        (("model.py:classes", "labels.npz"), "label"),
        (("model.py:make", "data.npz", "--steps", "0"), "--steps"),
        (("model.py:make", "data.npz", "-o", "."), "folder"),
        (("model.py:make", "data.npz", "-o", "data.npz/page.html"), "is a file"),
        (("--example", "--lr", "0.1"), "--lr"),
        (("--example", "--optimizer", "adam"), "--optimizer"),
        (("--example", "model.py:make", "data.npz"), "leave out the model"),
        (("model.py:make",), "DATA.npz"),
    ],
)
def test_what_cannot_be_used_is_said_in_one_sentence(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    before = sorted(path.name for path in folder.iterdir() if path.name != "__pycache__")
    assert run(*arguments) == 2
    message = capsys.readouterr().err.strip()
    assert message.count("\n") == 0
    assert said in message
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == before
