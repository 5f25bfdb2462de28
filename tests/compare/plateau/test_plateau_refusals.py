"""What a plateau cannot be told of, and what to do then."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from plateau_networks import chain, task_of
from torch import nn

from foretrain.compare.plateau import plateau
from foretrain.compare.task import prepare
from foretrain.support.errors import InputError, NotSupportedError


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "learning rate"),
        ({"lr": -1.0}, "positive learning rate"),
        ({"lr": 0.1, "share": 0.95}, "between 0 and 0.9"),
        ({"lr": 0.1, "threshold": 10.0}, "the plateau is at"),
        ({"lr": 0.1, "batch_size": 1000}, "1 to 256"),
        ({"lr": 0.1, "batch_size": 2.5}, "batch_size is 2.5"),
        ({"lr": 0.1, "max_steps": math.inf}, "max_steps is inf"),
        (
            {"lr": 0.1, "loss": "hinge"},
            "'hinge'.*squared_error",
        ),
        ({"lr": 0.1, "loss": 3}, "loss is a int"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], part: str) -> None:
    model = chain(nn.Tanh, [6, 4, 1], [1.0, 1.0])
    with pytest.raises(InputError, match=part):
        plateau(model, *task_of(6), **options)


def test_bad_models_and_data_are_refused() -> None:
    x, y = task_of(6)
    model = chain(nn.Tanh, [6, 4, 1], [1.0, 1.0])
    with pytest.raises(InputError, match="target"):
        plateau(model, x, y[:-1], lr=0.1)
    with pytest.raises(InputError, match="shape of the outputs"):
        plateau(model, x, torch.cat([y, y], 1), lr=0.1)
    with pytest.raises(NotSupportedError, match="Adam"):
        plateau(model, x, y, optimizer=torch.optim.Adam(model.parameters()))
    with pytest.raises(NotSupportedError, match="weight decay"):
        plateau(model, x, y, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1))
    with pytest.raises(NotSupportedError, match="drops units"):
        plateau(nn.Sequential(model, nn.Dropout(0.1)), x, y, lr=0.1)
    with pytest.raises(NotSupportedError, match="batch normalisation"):
        plateau(nn.Sequential(nn.BatchNorm1d(6), model), x, y, lr=0.1)
    empty = copy.deepcopy(model)
    nn.init.zeros_(empty[0].weight)
    with pytest.raises(NotSupportedError, match="exactly zero"):
        plateau(empty, x, y, lr=0.1)
    with pytest.raises(InputError, match="returns"):
        plateau(model, x, y, lr=0.1, loss=lambda f, target: (f - target).square())


def test_labels_and_targets_that_cannot_be_learned_are_refused() -> None:
    x, y = task_of(6)
    model = chain(nn.Tanh, [6, 4, 3], [1.0, 1.0])
    with pytest.raises(InputError, match="0 to 2"):
        plateau(model, x, torch.arange(256) % 4, lr=0.1)
    with pytest.raises(InputError, match="nothing to learn"):
        plateau(chain(nn.Tanh, [6, 4, 1], [1.0, 1.0]), x, 0 * y, lr=0.1)


def test_data_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "10kB")
    with pytest.raises(MemoryError, match="fewer samples"):
        plateau(chain(nn.Tanh, [6, 64, 1], [0.1, 0.1]), *task_of(6), lr=0.1)


def test_what_is_no_array_or_rate_is_refused() -> None:
    model, (x, y) = nn.Linear(3, 1), task_of(3)
    with pytest.raises(InputError, match="y is a float"):
        plateau(model, x, 1.0, lr=0.1)
    with pytest.raises(InputError, match="y is a Tensor"):
        plateau(model, x, y + 1j, lr=0.1)
    with pytest.raises(NotSupportedError, match="x is a tuple"):
        plateau(model, (x, x), y, lr=0.1)
    with pytest.raises(InputError, match=r"\(0, 3\)"):
        plateau(model, x[:0], y[:0], lr=0.1)
    with pytest.raises(InputError, match="x is a NoneType"):
        plateau(model, None, y, lr=0.1)
    with pytest.raises(InputError, match="positive learning rate"):
        plateau(model, x, y, lr="0.1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="whole number"):
        plateau(model, x, y, lr=0.1, batch_size=2.5)  # type: ignore[arg-type]


def test_numbers_that_are_none_are_found_where_they_are() -> None:
    model, (x, y) = chain(nn.Tanh, [3, 8, 1], [0.3, 0.3]), task_of(3, samples=16)
    for place, (inputs, targets) in {"x": (x * math.nan, y), "y": (x, y * math.inf)}.items():
        with pytest.raises(InputError, match=f"^{place} has values"):
            plateau(model, inputs, targets, lr=0.1)
    with pytest.raises(InputError, match="look at its weights"):
        plateau(chain(nn.Tanh, [3, 8, 1], [math.nan, 1.0]), x, y, lr=0.1)
    with pytest.raises(InputError, match="lazy"):
        plateau(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1)), x, y, lr=0.1)
    with pytest.raises(InputError, match=r"\(16, 1\)"):
        prepare(model, x, y[:, 0], nn.functional.binary_cross_entropy)
    signs = (y[:, 0] > 0).long()
    assert prepare(model, x, signs, nn.BCEWithLogitsLoss()).y.shape == (16, 1)
