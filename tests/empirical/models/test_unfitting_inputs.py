"""Inputs that a model does not take are refused in one sentence, wherever a model is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical import predict_modes, tune_block
from foretrain.empirical.differentials import step_prediction
from foretrain.empirical.global_ntk import solve
from foretrain.empirical.imbalance import imbalance
from foretrain.empirical.models.model import call_with
from foretrain.support.errors import InputError


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))


class Rest(nn.Linear):
    """h = tanh(W h + b + x)."""

    def forward(self, h: Tensor, x: Tensor) -> Tensor:  # type: ignore[override]
        return h - torch.tanh(super().forward(h) + x)


MEASURES: dict[str, Callable[[Tensor], Any]] = {
    "ntk": lambda x: ft.ntk(network(), x),
    "ntk_operator": lambda x: ft.ntk_operator(network(), x),
    "dntk": lambda x: ft.dntk(network(), x),
    "ddntk": lambda x: ft.ddntk(network(), x),
    "step_prediction": lambda x: step_prediction(network(), x, torch.zeros(5, 2)),
    "imbalance": lambda x: imbalance(network(), x, torch.zeros(5, 2), nn.functional.mse_loss),
    "predict_modes": lambda x: predict_modes(network(), x, torch.ones(5, 2), lr=0.1, steps=1),
    "global_ntk of submodules": lambda x: ft.global_ntk(network(), x, states="1"),
    "global_ntk of a recurrent layer": lambda x: ft.global_ntk(
        nn.GRU(3, 4, batch_first=True), x[:, None].expand(5, 2, -1)
    ),
}


@pytest.mark.parametrize("name", MEASURES)
def test_precision_that_is_not_the_models(name: str) -> None:
    with pytest.raises(InputError, match=r"x is float64.*\.to\(torch\.float32\)"):
        MEASURES[name](torch.ones(5, 3, dtype=torch.float64))


@pytest.mark.parametrize("name", MEASURES)
def test_shapes_that_are_not_the_models(name: str) -> None:
    with pytest.raises(InputError, match=r"x of shape \(\d, .*7\) float32"):
        MEASURES[name](torch.ones(5, 7))


def test_the_second_side() -> None:
    with pytest.raises(InputError, match=r"x2 is float64.*float32"):
        ft.ntk(network(), torch.ones(5, 3), torch.ones(4, 3, dtype=torch.float64))
    with pytest.raises(InputError, match=r"x2 of shape \(4, 7\)"):
        ft.ntk(network(), torch.ones(5, 3), torch.ones(4, 7))


def test_equilibria() -> None:
    rest, state = Rest(4, 4), torch.zeros(3, 4)
    with pytest.raises(InputError, match=r"state or x is float64.*float32"):
        solve(rest, state.double(), torch.ones(3, 4))
    with pytest.raises(InputError, match=r"state or x is float64.*float32"):
        ft.global_ntk(rest, torch.ones(3, 4), equilibrium=state.double())


def test_blocks() -> None:
    with pytest.raises(InputError, match=r"z of shape \(5, 7\)"):
        tune_block(nn.Linear(3, 3), torch.ones(5, 7), gamma=0.5)


def test_models_that_convert_their_inputs_are_left_to_do_so() -> None:
    class Converting(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x.float())

    x = torch.randn(4, 3, dtype=torch.float64)
    model = Converting(3, 2)
    torch.testing.assert_close(ft.ntk(model, x).values, ft.ntk(model, x.float()).values)


def test_refusals_of_the_model_itself_keep_their_words() -> None:
    class Raises(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            raise NotImplementedError("not yet")

    with pytest.raises(NotImplementedError, match="not yet"):
        ft.ntk(Raises(3, 2), torch.ones(5, 3))


def test_how_arguments_are_handed_over() -> None:
    class Two(nn.Module):
        def forward(self, first: Any, second: Any = 0) -> Any:
            return first, second

    assert call_with(Two(), (1, 2)) == (1, 2)
    assert call_with(Two(), [1, 2]) == (1, 2)
    assert call_with(Two(), {"second": 2, "first": 1}) == (1, 2)
    assert call_with(Two(), {"other": 1}) == ({"other": 1}, 0)
    assert call_with(Two(), 3) == (3, 0)
    assert call_with(lambda p, x: (p, x), 3, ("parameters",)) == ("parameters", 3)


def test_a_dict_that_is_the_argument_itself() -> None:
    class OfDict(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.below, self.above = nn.Linear(3, 4), nn.Linear(4, 2)

        def forward(self, batch: dict[str, Tensor]) -> Tensor:
            return self.above(torch.tanh(self.below(batch["x"])))  # type: ignore[no-any-return]

    model, x = OfDict(), torch.randn(5, 3)
    plain = nn.Sequential(model.below, nn.Tanh(), model.above)
    found = imbalance(model, {"x": x}, torch.zeros(5, 2), nn.functional.mse_loss).data
    expected = imbalance(plain, x, torch.zeros(5, 2), nn.functional.mse_loss).data
    assert found["drift"].values == pytest.approx(expected["drift"].values)
