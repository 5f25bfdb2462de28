"""``foretrain log``: a file in, an answer and an exit code out."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import foretrain as ft
from foretrain.cli import main as cli


@pytest.fixture
def files(tmp_path: Path) -> Path:
    dice = np.random.default_rng(0).normal(size=120)
    curves = {"healthy": 0.3 + 2 * np.exp(-np.arange(120) / 20) + 0.01 * dice, "stuck": 2.3 + 0.01 * dice}
    for name, losses in curves.items():
        rows = [f"{step},{loss},0.1" for step, loss in enumerate(losses)]
        (tmp_path / f"{name}.csv").write_text("\n".join(["step,train/loss,lr", *rows]))
    return tmp_path


def test_exit_codes_follow_the_worst_finding(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", str(files / "healthy.csv")]) == 0
    assert "Nothing is wrong" in capsys.readouterr().out
    assert cli.main(["log", str(files / "stuck.csv"), "--baseline", "2.3026"]) == 1
    text = capsys.readouterr().out
    assert "CRITICAL: baseline" in text
    assert "CRITICAL: plateau" in text


def test_json_picture_and_data(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, picture = files / "out", files / "log.png"
    arguments = ["log", str(files / "stuck.csv"), "--json", "--save", str(out), "--plot", str(picture)]
    assert cli.main(arguments) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["findings"]["plateau"]["severity"] == "critical"
    assert document["columns"] == ["losses", "learning rates"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert set(ft.load(out).variables) >= {"loss", "trend", "trend_error", "rate", "step"}


def test_a_file_that_cannot_be_read_is_one_sentence(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["log", str(files / "nowhere.csv")]) == 2
    assert "nowhere.csv cannot be read" in capsys.readouterr().err
