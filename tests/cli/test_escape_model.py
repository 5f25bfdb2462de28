from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrain.cli.escape import answer_for_model
from foretrain.cli.main import main
from foretrain.support.answers.folder import write_folder
from foretrain.support.answers.text import plain
from foretrain.support.errors import InputError

MODEL = """
import torch
from torch import nn

def chain(scale):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 20), nn.Tanh(), nn.Linear(20, 20), nn.Tanh(), nn.Linear(20, 1))
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight.mul_(scale)
    return model

def small():
    return chain(0.1)

def healthy():
    return chain(2.5)
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, Path]:
    (tmp_path / "model.py").write_text(MODEL)
    x = np.random.default_rng(0).normal(size=(128, 5))
    np.savez(tmp_path / "data.npz", x=x, y=np.tanh(x[:, 0]))
    return str(tmp_path / "model.py"), tmp_path / "data.npz"


def test_the_answer_predicts_advises_and_shows(files: tuple[str, Path], tmp_path: Path) -> None:
    model, data = files
    answer = answer_for_model(f"{model}:small", data, 0.02, batch=32)
    found = answer.document()
    assert found["plateau"] is True
    assert found["small_layers"] == 2
    assert list(found["factors"]) == ["0.weight", "2.weight"]
    for network in ("given", "rescaled"):
        assert found["measured"][network]["escape"] == pytest.approx(
            found["predicted"][network]["escape"], rel=0.1
        )
    assert found["measured"]["rescaled"]["escape"] < 0.5 * found["measured"]["given"]["escape"]
    text = plain(answer)
    assert "2 of 3 weight matrices" in text
    assert 'model.get_parameter("2.weight").mul_(' in text
    write_folder(tmp_path / "out", answer, overwrite=False)
    assert {path.name for path in (tmp_path / "out").iterdir()} >= {
        "answer.json",
        "answer.txt",
        "figure.png",
    }


def test_a_healthy_network_is_told_so_and_that_is_a_good_answer(files: tuple[str, Path]) -> None:
    model, data = files
    answer = answer_for_model(f"{model}:healthy", data, 0.02, train_steps=0)
    assert answer.holds
    assert answer.document()["plateau"] is False
    assert answer.document()["measured"] is None
    assert "No plateau" in plain(answer)


def test_what_is_missing_or_unknown_is_named(files: tuple[str, Path]) -> None:
    model, data = files
    with pytest.raises(InputError, match="--data"):
        answer_for_model(f"{model}:small", None, 0.1)
    with pytest.raises(InputError, match="--lr"):
        answer_for_model(f"{model}:small", data, None)
    with pytest.raises(InputError, match="cross_entropy"):
        answer_for_model(f"{model}:small", data, 0.1, loss="crossentropy")
    with pytest.raises(InputError, match="--train-steps"):
        answer_for_model(f"{model}:small", data, 0.1, train_steps=-1)
    with pytest.raises(InputError, match="--runs"):
        answer_for_model(f"{model}:small", data, 0.1, runs=0)
    with pytest.raises(InputError, match="--threshold"):
        answer_for_model(f"{model}:small", data, 0.1, threshold=-1.0)


def test_a_batch_larger_than_the_data_is_told_by_its_option(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = files
    options = ["--model", f"{model}:small", "--data", str(data), "--lr", "0.1", "--batch-size", "129"]
    assert main(["escape", *options]) == 2
    assert "--batch-size is 129" in capsys.readouterr().err
