from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.differentials import step_prediction
from foretrain.support.errors import InputError


class Bilinear(nn.Module):
    """z = Σ_k v_k tanh(w_k · x) x_0, not a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.v = nn.Parameter(torch.randn(4, 3)), nn.Parameter(torch.randn(4))

    def forward(self, x: Tensor) -> Tensor:
        return (torch.tanh(x @ self.w.T) @ self.v * x[:, 0])[:, None]


def case(name: str) -> tuple[nn.Module, Tensor, Tensor, dict[str, float] | None]:
    torch.manual_seed(1)
    if name == "chain":
        model: nn.Module = nn.Sequential(
            nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 2)
        )
        rates = {"0.weight": 0.4, "2.*": 0.7, "4.bias": 1.3}
    else:
        model, rates = Bilinear(), None
    model, x = model.double(), torch.randn(3, 3, dtype=torch.float64)
    return model, x, torch.randn_like(model(x)), rates


@pytest.mark.parametrize("name", ["chain", "other"])
def test_errors_fall_with_the_order_of_the_step(name: str) -> None:
    """Halving η divides them by 2^(order + 1), (11.9), (11.10), (∞.4), (∞.6)."""
    model, x, y, rates = case(name)
    coarse, fine = (step_prediction(model, x, y, lr, order=3, rates=rates) for lr in (4e-3, 2e-3))
    for before, after in (
        (coarse.output_errors, fine.output_errors),
        (coarse.ntk_errors, fine.ntk_errors),
    ):
        for order, error in before.items():
            assert error / after[order] == pytest.approx(2 ** (order + 1), rel=0.06), order
    assert list(coarse.output_errors) == [1, 2, 3]
    assert list(coarse.ntk_errors) == [1, 2]


def test_the_step_is_the_one_an_optimizer_makes() -> None:
    model, x, y, rates = case("chain")
    found = step_prediction(model, x, y, 0.05, rates=rates)
    torch.testing.assert_close(found.ntk_before, ft.ntk(model, x, rates=rates).values)
    torch.testing.assert_close(found.outputs_before, model(x).detach())
    by_name = {"0.weight": 0.4, "0.bias": 1.0, "2.weight": 0.7, "2.bias": 0.7, "4.weight": 1.0, "4.bias": 1.3}
    groups = [{"params": [p], "lr": 0.05 * by_name[n]} for n, p in model.named_parameters()]
    loss = 0.5 * (model(x) - y).square().sum()
    loss.backward()
    torch.optim.SGD(groups, lr=0.0).step()
    torch.testing.assert_close(found.outputs_after, model(x).detach())
    torch.testing.assert_close(found.ntk_after, ft.ntk(model, x, rates=rates).values)
    assert "order 2" in repr(found)


def test_cotangents_of_any_loss_and_samples_that_are_only_watched() -> None:
    model, x, y, _ = case("chain")
    slopes = torch.zeros_like(y)
    slopes[:2] = (model(x) - y).detach()[:2]
    alone = step_prediction(model, x[:2], y[:2], 0.01)
    watched = step_prediction(model, x, cotangents=slopes, lr=0.01)
    torch.testing.assert_close(watched.outputs_after[:2], alone.outputs_after)
    torch.testing.assert_close(watched.predicted_outputs[2][:2], alone.predicted_outputs[2])
    torch.testing.assert_close(watched.predicted_ntk[1][:2, :2], alone.predicted_ntk[1])
    assert float((watched.outputs_after[2] - watched.predicted_outputs[2][2]).abs().max()) < 1e-3
    assert watched.output_errors[2] < 0.2 * watched.output_errors[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "cotangents"),
        ({"y": torch.zeros(2)}, r"y has shape \(2,\)"),
        ({"y": torch.zeros(3, 2), "order": 4}, "2, by the dNTK"),
        ({"y": torch.zeros(3, 2), "lr": float("nan")}, "learning rate"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    model, x, _, _ = case("chain")
    with pytest.raises(InputError, match=message):
        step_prediction(model, x, **options)
