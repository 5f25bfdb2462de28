"""Shares of the layers in the tangent kernel: exact, by theory, and what starved layers cost."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mlp_networks import final_loss
from planted_networks import chain, default_mlp, digits, mlp, regression
from torch import Tensor, nn

from foretrain.doctor.checks.layer_shares import check
from foretrain.doctor.examine import Training, make_setup
from foretrain.doctor.finding import Examination, Severity
from foretrain.doctor.setup import Case, Setup
from foretrain.support.errors import NotSupportedError


def examined(model: nn.Module, x: Tensor, y: Tensor, optimizer: object = 0.05) -> tuple[Setup, Examination]:
    setup = make_setup(model, x, y, Training(optimizer=optimizer))
    return setup, check(Case(setup))


def slow_first(model: nn.Module, kind: type[torch.optim.Optimizer], rate: float, layers: int = 3):
    """The first layers have a rate of a ten-thousandth."""
    groups = [
        {"params": [p], "lr": 1e-4 * rate if place // 2 < layers else rate}
        for place, p in enumerate(model.parameters())
    ]
    return kind(groups, lr=rate)


def test_shares_are_the_squared_gradients_of_all_outputs() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()
    x = torch.randn(6, 3, dtype=torch.float64)
    groups = [{"params": [p], "lr": rate} for p, rate in zip(model.parameters(), (0.1, 0.2, 0.3, 0.4))]
    _, found = examined(model, x, torch.randn(6, 2, dtype=torch.float64), torch.optim.SGD(groups))
    sizes = []
    for parameter, rate in zip(model.parameters(), (0.1, 0.2, 0.3, 0.4)):
        rows = [torch.autograd.grad(out, parameter, retain_graph=True)[0] for out in model(x).ravel()]
        sizes.append(rate * sum(float(row.square().sum()) for row in rows))
    assert found.data is not None
    np.testing.assert_allclose(found.data["share"], np.array(sizes) / sum(sizes), rtol=1e-6)
    assert list(found.data["parameter"].values) == ["0.weight", "0.bias", "2.weight", "2.bias"]


def test_shares_of_a_deep_linear_network_by_hand() -> None:
    """Two layers of one unit: f = w2 w1 x, so that the shares are as w2^2 : w1^2."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    with torch.no_grad():
        model[0].weight.fill_(1.0)
        model[1].weight.fill_(3.0)
    _, found = examined(model, torch.ones(4, 1), torch.ones(4, 1))
    assert found.data is not None
    np.testing.assert_allclose(found.data["share"], [0.9, 0.1], rtol=1e-5)


def test_the_theory_agrees_with_a_wide_network() -> None:
    x, y = regression(100)
    _, found = examined(mlp(chain(10, 400, 3, 1), nn.Tanh, 1.0), x, y)
    assert found.data is not None
    np.testing.assert_allclose(found.data["relative"], found.data["theory_share"], rtol=0.15)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("kind", "rate"), [(torch.optim.SGD, 0.05), (torch.optim.Adam, 1e-3)])
@pytest.mark.parametrize(("activation", "gain"), [(nn.ReLU, 2.0), (nn.Tanh, 1.0)])
def test_layers_with_tiny_rates_are_found_and_given_their_part(kind, rate, activation, gain) -> None:
    x, y = digits(200)
    model = mlp(chain(64, 48, 4, 10), activation, gain)
    setup, seen = examined(model, x, y, slow_first(model, kind, rate))
    (found,) = seen.findings
    assert found.severity is Severity.WARNING, found
    assert found.where == ("0.weight", "2.weight", "4.weight")
    assert found.treatment is not None
    treated = found.treatment.apply(setup)
    assert check(Case(treated)).findings[0].severity > Severity.WARNING
    assert final_loss(treated, 100) < 0.9 * final_loss(setup, 100)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("factor", [100.0, 300.0])
def test_two_layers_out_of_balance_are_found_and_given_rates_of_their_own(factor) -> None:
    x, y = digits(200)
    model = mlp(chain(64, 48, 4, 10), nn.ReLU, 2.0)
    with torch.no_grad():
        model[2].weight.div_(factor)
        model[4].weight.mul_(factor)
    setup, seen = examined(model, x, y, None)
    (found,) = seen.findings
    assert found.severity is Severity.WARNING, found
    assert "4.weight" in found.where
    assert found.treatment is not None
    treated = found.treatment.apply(setup)
    assert final_loss(treated, 100) < 0.9 * final_loss(setup, 100)


def test_the_sum_of_shares_does_not_grow_where_the_network_is_why() -> None:
    x, y = digits(200)
    model = mlp(chain(64, 48, 4, 10), nn.ReLU, 2.0)
    with torch.no_grad():
        model[2].weight.div_(100.0)
        model[4].weight.mul_(100.0)
    setup, seen = examined(model, x, y, 1e-4)
    treatment, data = seen.findings[0].treatment, seen.data
    assert treatment is not None
    assert data is not None
    before, after = setup.recipe.rates, treatment.apply(setup).recipe.rates
    traces = dict(zip(data["parameter"].values, data["share_at_equal_rates"].values))
    total = [sum(rates[name] * trace for name, trace in traces.items()) for rates in (before, after)]
    assert total[1] <= 1.001 * total[0]


def test_the_code_makes_the_same_groups() -> None:
    x, y = digits(100)
    model = mlp(chain(64, 32, 4, 10), nn.ReLU, 2.0)
    optimizer = slow_first(model, torch.optim.SGD, 0.05)
    setup, seen = examined(model, x, y, optimizer)
    (found,) = seen.findings
    names = {"torch": torch, "model": model, "optimizer": optimizer}
    exec(found.code, names)
    assert found.treatment is not None
    wanted = found.treatment.apply(setup).recipe.rates
    made = {id(p): group["lr"] for group in names["optimizer"].param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        assert made[id(parameter)] == pytest.approx(wanted[name], rel=1e-6)


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh, nn.GELU])
def test_usual_networks_are_fair(activation) -> None:
    x, y = digits(200)
    for sizes in (chain(64, 64, 1, 10), chain(64, 100, 4, 10)):
        for model in (default_mlp(sizes, activation), mlp(sizes, activation, 1.5)):
            assert examined(model, x, y)[1].findings[0].severity >= Severity.NOTE


@pytest.mark.parametrize(
    ("model", "x"),
    [
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, 2)),
            torch.randn(8, 1, 8, 8),
        ),
        (nn.LSTM(3, 8, num_layers=2, batch_first=True), torch.randn(8, 6, 3)),
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), torch.randn(8, 6, 8)),
        (nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, 1)), torch.randint(0, 9, (8, 3))),
    ],
)
def test_other_architectures_are_examined(model, x) -> None:
    outputs = model(x)
    outputs = outputs[0] if isinstance(outputs, tuple) else outputs
    _, seen = examined(model, x, torch.randn_like(outputs))
    assert seen.findings[0].severity >= Severity.NOTE, seen.findings
    assert seen.data is not None
    assert float(seen.data["share"].sum()) == pytest.approx(1.0)


def test_a_head_that_starts_from_zero_is_no_fault() -> None:
    x, y = regression(60)
    model = default_mlp(chain(10, 32, 2, 1), nn.ReLU)
    with torch.no_grad():
        model[4].weight.zero_()
    (found,) = examined(model, x, y)[1].findings
    assert found.severity is Severity.NOTE
    assert found.where == ("0.weight", "2.weight")


def test_one_layer_has_nothing_to_share() -> None:
    with pytest.raises(NotSupportedError, match="fewer than two"):
        examined(nn.Linear(3, 1), torch.randn(8, 3), torch.randn(8, 1))


def test_adam_does_not_make_tiny_shares_good_news() -> None:
    x, y = regression(100)
    model = mlp(chain(x.shape[1], 16, 7, 1), nn.Tanh, 1.0)
    with torch.no_grad():
        for layer in list(model)[2:10:2]:
            layer.weight.mul_(1e-3)
    _, found = examined(model, x, y, torch.optim.Adam(model.parameters(), lr=1e-3))
    (finding,) = found.findings
    assert found.data is not None
    assert float(found.data["relative"].min()) < 1e-4
    assert finding.severity is Severity.NOTE
    assert "hardly change the outputs yet" in finding.title
    small = found.data["layer"].values[found.data["relative"].values < 1e-4]
    assert finding.where == tuple(small)
