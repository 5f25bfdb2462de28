"""Gains through the blocks of models that are no MLP: what vanishes or explodes is found and mended."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from mlp_networks import network, only, run_code, same_weights, setup_of, task, with_and_without
from torch import Tensor, nn

from foretrain.doctor.blocks import branches_of, passage, shrinking_factors
from foretrain.doctor.checks.gains import check
from foretrain.doctor.finding import Severity
from foretrain.doctor.setup import Case
from foretrain.support.errors import NotSupportedError

X, Y = task()


def images() -> tuple[Tensor, Tensor]:
    """Stripes, lying or standing, with noise."""
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(96) % 2
    wave = torch.sin(torch.arange(8) * 1.6)
    stripes = torch.where(labels[:, None, None] == 0, wave[None, :, None], wave[None, None, :])
    return (stripes + 0.3 * torch.randn(96, 8, 8, generator=source))[:, None], labels


def convolutions(depth: int, scale: float, seed: int = 0, channels: int = 12) -> nn.Sequential:
    torch.manual_seed(seed)
    parts: list[nn.Module] = []
    for number in range(depth):
        layer = nn.Conv2d(channels if number else 1, channels, 3, padding=1)
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
        with torch.no_grad():
            layer.weight.mul_(scale)
        parts += [layer, nn.ReLU(inplace=True)]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 2))


class Residual(nn.Module):
    def __init__(self, width: int, scale: float) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        with torch.no_grad():
            self.second.weight.mul_(scale)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.second(torch.relu(self.first(x)))


def residual(blocks: int, scale: float, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(10, 32), *[Residual(32, scale) for _ in range(blocks)], nn.Linear(32, 1))


MORE = [pytest.param(*one, marks=pytest.mark.statistical) for one in [(20, 0.5, 0), (16, 2.0, 2)]]


@pytest.mark.parametrize(("depth", "scale", "seed"), [(14, 0.4, 1), (10, 2.5, 0), *MORE])
def test_convolutions_off_scale_are_found_and_mended(depth: int, scale: float, seed: int) -> None:
    x, y = images()
    case = Case(setup_of(convolutions(depth, scale, seed), x, y))
    finding = only(check(case))
    assert finding.severity <= Severity.WARNING
    assert finding.treatment is not None
    treated = finding.treatment.apply(case.setup)
    assert only(check(Case(treated))).severity == Severity.GOOD
    assert same_weights(run_code(finding, case.setup.model, x), treated.model)


@pytest.mark.slow
def test_the_advice_trains_better() -> None:
    x, y = images()
    given, treated = with_and_without(check, convolutions(12, 0.4), x, y, steps=60, rate=0.05)
    assert treated < 0.75 * given
    given, treated = with_and_without(check, residual(16, 9.0), X, Y, steps=60, rate=0.01)
    assert treated < 0.75 * given


def test_growing_residual_branches_are_shrunk_and_keep_their_skip() -> None:
    case = Case(setup_of(residual(16, 9.0), X, Y))
    finding = only(check(case))
    assert finding.severity <= Severity.WARNING
    assert "grow" in finding.title
    assert finding.treatment is not None
    after = passage(finding.treatment.apply(case.setup).model, X[:64], 0)
    assert 0.5 < after.distance_ratio < 3
    assert 0.5 < after.gradient_ratio < 3


def encoder(layers: int, norm_first: bool) -> nn.Module:
    one = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=norm_first)
    return nn.TransformerEncoder(one, layers, enable_nested_tensor=False)


@pytest.mark.slow(after=4)
@pytest.mark.parametrize(
    "model",
    [
        convolutions(3, 1.0),
        convolutions(10, 1.0),
        nn.Sequential(nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 2)),
        nn.Sequential(nn.Flatten(2), nn.Linear(64, 16), encoder(3, False), nn.Flatten(), nn.Linear(16, 2)),
        nn.Sequential(nn.Flatten(2), nn.Linear(64, 16), encoder(8, True), nn.Flatten(), nn.Linear(16, 2)),
    ],
)
def test_healthy_models_pass(model: nn.Module) -> None:
    x, y = images()
    try:
        finding = only(check(Case(setup_of(model, x, y))))
    except NotSupportedError:
        return
    assert finding.severity == Severity.GOOD


def test_residual_networks_as_torch_makes_them_pass() -> None:
    assert only(check(Case(setup_of(residual(16, 1.0), X, Y)))).severity == Severity.GOOD


class Spelled(nn.Module):
    """Residual branches in ways that people write them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(10, 10, bias=False) for _ in range(3))
        self.norm, self.head = nn.LayerNorm(10), nn.Linear(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.5 * self.first(torch.relu(x))
        x = torch.add(nn.functional.dropout(self.second(x), 0.1, self.training), x)
        inner = self.norm(self.third(x))
        inner += x
        return self.head(inner + torch.ones_like(inner))


def test_branches_are_found_however_they_are_written() -> None:
    torch.manual_seed(0)
    model = Spelled().eval()
    found = branches_of(model, X)
    assert [one.weights for one in found] == [
        ("first.weight",),
        ("second.weight",),
        ("norm.weight", "norm.bias"),
    ]
    branch = 0.5 * model.first(torch.relu(X)).detach()
    assert found[0].ratio == pytest.approx(float(branch.norm() / X.norm()), rel=1e-5)
    assert not branches_of(nn.Sequential(nn.Linear(10, 10), nn.ReLU(), nn.Linear(10, 1)), X)


def test_shrunk_branches_add_equal_shares() -> None:
    torch.manual_seed(0)
    model = Spelled().eval()
    with torch.no_grad():
        model.first.weight.mul_(50)
    assert set(shrinking_factors(model, X)) == {"first.weight", "norm.weight", "norm.bias"}
    assert [one.ratio for one in branches_of(model, X)][::2] == pytest.approx([3**-0.5] * 2, rel=1e-3)


class Tower(nn.Module):
    """Skip connections outside of the blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(10, 10, bias=False) for _ in range(3))
        self.head = nn.Linear(10, 1)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = 2 * x + block(x)
        return self.head(x)


def test_signals_and_gradients_against_a_direct_computation() -> None:
    model = Tower()
    with torch.no_grad():
        for block in model.blocks:
            block.weight.copy_(torch.eye(10))  # type: ignore[operator, union-attr]
    found = passage(model, X, 0)
    assert found.names == ("blocks.0", "blocks.1", "blocks.2")
    np.testing.assert_allclose(found.size / found.size[0], [1, 3, 9], rtol=1e-5)
    np.testing.assert_allclose(found.distance / found.distance[0], [1, 3, 9], rtol=1e-5)
    np.testing.assert_allclose(found.gradient, [9, 3, 1], rtol=1e-5)
    assert np.ptp(found.alikeness) < 1e-6


def test_samples_that_all_look_alike_are_told() -> None:
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for number in range(4):
        layer = nn.Conv1d(4 if number else 1, 4, 1)
        nn.init.constant_(layer.bias, 300.0 if number else 0.0)  # type: ignore[arg-type]
        parts += [layer, nn.ReLU()]
    model = nn.Sequential(*parts, nn.Flatten(), nn.Linear(40, 1))
    finding = only(check(Case(setup_of(model, X[:, None, :], Y))))
    assert finding.severity == Severity.WARNING
    assert "alike" in finding.title


def test_an_mlp_is_left_to_the_check_of_its_initialisation() -> None:
    with pytest.raises(NotSupportedError, match="is an MLP"):
        check(Case(setup_of(network(nn.Tanh, 4, 16, 1.0), X, Y)))


def test_measurements_are_labelled_by_block() -> None:
    data = check(Case(setup_of(residual(4, 1.0), X, Y))).data
    assert data is not None
    assert list(data["block"].values) == ["0", "1", "2", "3", "4"]
    np.testing.assert_allclose(
        data["forward_gain"].values[1:], data["distance"].values[1:] / data["distance"].values[:-1]
    )
    np.testing.assert_allclose(
        data["backward_gain"].values[1:], data["gradient"].values[:-1] / data["gradient"].values[1:]
    )
