from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from foretrain.cli.main import main
from foretrain.cli.models import as_inputs, check_takes, takes_time_first
from foretrain.support.errors import InputError


class Silent(nn.Linear):
    def forward(self, input: torch.Tensor) -> None:  # type: ignore[override]
        super().forward(input)


@pytest.mark.parametrize("kind", ["float16", "float32", "float64", "longdouble", "bool", "uint8", "int64"])
def test_numbers_of_every_kind_become_those_of_the_model(kind: str) -> None:
    values = np.array([[0.0, 1.0], [1.0, 2.0]]).astype(kind)
    for model in (nn.Linear(2, 1), nn.Linear(2, 1).double()):
        made = as_inputs(values, model)
        assert made.dtype == model.weight.dtype
        assert torch.equal(made, torch.tensor(values.astype(float), dtype=made.dtype))


def test_whole_numbers_stay_such_for_embeddings() -> None:
    assert as_inputs(np.arange(3, dtype=np.uint16), nn.Embedding(3, 2)).dtype == torch.int64


def test_what_a_model_does_not_take_or_give_is_said() -> None:
    check_takes(nn.Linear(2, 1), torch.ones(3, 2))
    with pytest.raises(InputError, match=r"\(4,\)"):
        check_takes(nn.Linear(2, 1), torch.ones(3, 4))
    with pytest.raises(InputError, match="returns nothing"):
        check_takes(Silent(2, 1), torch.ones(3, 2))


def test_looking_leaves_the_model_and_the_random_numbers_as_they_were() -> None:
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout(0.5), nn.Linear(2, 1))
    torch.manual_seed(0)
    expected, before = torch.rand(1), model[0].running_mean.clone()
    torch.manual_seed(0)
    check_takes(model, torch.ones(3, 2))
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(model[0].running_mean, before)


def test_a_recurrent_layer_alone_takes_time_first() -> None:
    assert takes_time_first(nn.RNN(2, 3), torch.ones(5, 4, 2))
    assert not takes_time_first(nn.RNN(2, 3), torch.ones(5, 2))
    assert not takes_time_first(nn.RNN(2, 3, batch_first=True), torch.ones(5, 4, 2))
    assert not takes_time_first(nn.Linear(2, 3), torch.ones(5, 4, 2))


UNSEEDED = """
from torch import nn

def make():
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 1))
"""


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("ntk", ["{model}", "{data}"]),
        ("global", ["{model}", "{data}"]),
        ("escape", ["--model", "{model}", "--data", "{data}", "--lr", "0.1", "--train-steps", "0"]),
        ("doctor", ["{model}", "{data}", "--checks", "initialisation"]),
    ],
)
def test_the_seed_of_a_command_is_that_of_the_model(
    command: str, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "model.py").write_text(UNSEEDED)
    x = np.random.default_rng(0).normal(size=(12, 4))
    np.savez(tmp_path / "data.npz", x=x, y=np.tanh(x[:, :1]))
    places = {"model": f"{tmp_path / 'model.py'}:make", "data": tmp_path / "data.npz"}
    arguments = [option.format(**places) for option in options]

    def numbers(seed: str) -> str:
        assert main([command, *arguments, "--seed", seed, "--json"]) in (0, 1)
        document = json.loads(capsys.readouterr().out)
        return str({key: value for key, value in document.items() if "seconds" not in key and key != "seed"})

    first, again, other = (numbers(seed) for seed in ("3", "3", "4"))
    assert first == again
    assert first != other
