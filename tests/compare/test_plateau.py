"""The plateau of real networks: scales, levels, predicted steps, advice; exactly solvable cases and real descent."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn

from foretrain.compare.plateau import plateau
from foretrain.compare.plateau.layers import find_bottleneck, is_chain, read_layers
from foretrain.compare.plateau.levels import escape_level, plateau_level, prepare
from foretrain.compare.plateau.prediction import first_below, stability, step_text
from foretrain.compare.plateau.rates import descent_of
from foretrain.compare.plateau.rescaling import ScalingLaw
from foretrain.support.errors import InputError, NotSupportedError


class Erf(nn.Module):
    def forward(self, z: torch.Tensor) -> torch.Tensor:
        return torch.erf(z)


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.second(torch.tanh(self.first(x)))


def chain(
    activation: type[nn.Module], sizes: list[int], scales: list[float], *, bias: bool = False, seed: int = 0
) -> nn.Sequential:
    """Gaussian layers whose entries have standard deviation scale / sqrt(fan-in)."""
    source = torch.Generator().manual_seed(seed)
    parts: list[nn.Module] = []
    for place, (inputs, outputs, scale) in enumerate(zip(sizes, sizes[1:], scales)):
        layer = nn.Linear(inputs, outputs, bias=bias)
        with torch.no_grad():
            layer.weight.copy_(torch.randn(outputs, inputs, generator=source) * scale / math.sqrt(inputs))
            if bias:
                layer.bias.zero_()
        parts += [activation()] * bool(place) + [layer]
    return nn.Sequential(*parts)


def task_of(
    inputs: int, samples: int = 256, seed: int = 1, mean: float = 0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(samples, inputs, generator=torch.Generator().manual_seed(seed))
    return x, torch.tanh(x[:, :1]) + mean


def product_of_scalars(depth: int, scale: float) -> tuple[nn.Sequential, torch.Tensor, torch.Tensor]:
    """f = w^L x with all w equal, one sample x = y = 1: the flow is exactly solvable."""
    model = nn.Sequential(*(nn.Linear(1, 1, bias=False) for _ in range(depth))).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(scale)
    return model, torch.ones(1, 1, dtype=torch.float64), torch.ones(1, 1, dtype=torch.float64)


@pytest.mark.parametrize("depth", [2, 3, 5])
def test_equal_scalar_layers_escape_when_the_integral_says(depth: int) -> None:
    """ẇ = 2 (1 - w^L) w^(L-1) for the squared error, integrated by an independent quadrature."""
    from scipy.integrate import quad

    model, x, y = product_of_scalars(depth, 0.1)
    found = plateau(model, x, y, lr=0.01)
    end = (1 - math.sqrt(0.5)) ** (1 / depth)  # the loss (1 - w^L)² is one half
    exact = quad(lambda w: 1 / (2 * (1 - w**depth) * w ** (depth - 1)), 0.1, end)[0] / 0.01
    assert found.forecast.level == 1.0
    assert found.forecast.escape == pytest.approx(exact, rel=2e-3)
    assert found.forecast.has_plateau
    assert found.bottleneck.count == depth
    assert found.bottleneck.epsilon == pytest.approx(0.1)


def test_the_law_and_the_flow_agree_on_what_halving_does() -> None:
    model, x, y = product_of_scalars(4, 0.05)
    law = plateau(model, x, y, lr=0.01).law
    assert law is not None
    assert law.applies
    assert (law.exponent, law.halving, law.formula) == (2, 4.0, "~ ε^-2")
    assert law.halving_here == pytest.approx(4, rel=0.01)
    assert law.exponent_here == pytest.approx(2, abs=0.02)


def test_the_law_of_two_and_one_small_layers() -> None:
    assert ScalingLaw(2, 0.1, math.nan, True).halving == pytest.approx(math.log(20) / math.log(10))
    assert ScalingLaw(1, 0.1, math.nan, True).halving == 1
    assert ScalingLaw(1, 0.1, math.nan, True).formula == "bounded"


def test_natural_scales_are_hes_for_rectifiers_and_unit_gain_for_the_first_layer() -> None:
    model = nn.Sequential(
        nn.Linear(50, 80), nn.ReLU(), nn.Linear(80, 70), nn.Tanh(), nn.Linear(70, 3), nn.Linear(3, 2)
    )
    layers = read_layers(model, torch.randn(4, 50))
    tanh = np.polynomial.hermite_e.hermegauss(80)
    square = np.sum(tanh[1] * np.cosh(tanh[0]) ** -4.0) / np.sum(tanh[1])
    gains = [1, math.sqrt(2), square**-0.5, 1]
    assert [layer.natural for layer in layers] == pytest.approx(
        [g * math.sqrt(n) for g, n in zip(gains, (80, 70, 3, 2))], rel=1e-4
    )
    assert [layer.activation for layer in layers] == ["none", "ReLU", "Tanh", "none"]


def test_the_bottleneck_is_nearer_to_the_smallest_layer_than_to_one() -> None:
    scales = [0.04, 0.05 * 1.47, 1.47, 0.3 * 1.47]
    layers = read_layers(chain(nn.Tanh, [40, 64, 64, 64, 40], scales), torch.randn(4, 40))
    found = find_bottleneck(layers)
    assert [layer.name for layer in found.layers] == ["0.weight", "2.weight"]
    assert found.epsilon == pytest.approx(math.sqrt(0.04 * 0.05), rel=0.05)
    healthy = read_layers(chain(nn.Tanh, [40, 64, 64, 1], [1.0, 1.47, 1.0]), torch.randn(4, 40))
    assert find_bottleneck(healthy).count == 0


def test_activations_that_are_functions_count_as_he() -> None:
    layers = read_layers(Residual(9), torch.randn(3, 9))
    assert layers[1].natural == pytest.approx(math.sqrt(2) * 3)
    assert layers[1].activation == "a function"


def test_only_networks_without_detours_are_chains() -> None:
    x = torch.randn(8, 6)
    model = chain(nn.GELU, [6, 8, 5, 2], [1.0, 1.0, 1.0], bias=True)
    assert is_chain(model, x, read_layers(model, x))
    residual = Residual(6)
    assert not is_chain(residual, x, read_layers(residual, x))


def test_the_level_is_that_of_zero_or_of_the_best_constant() -> None:
    x, y = task_of(5, mean=2.0)
    sizes, scales = [5, 8, 8, 1], [0.1, 0.1, 0.1]
    variance, square = float(y.var(unbiased=False)), float(y.square().mean())
    for activation, bias, level in (
        (nn.Tanh, False, square),
        (nn.Tanh, True, variance),
        (nn.Sigmoid, False, variance),  # W_L σ(0) is a constant that can be learned
    ):
        model = chain(activation, sizes, scales, bias=bias)
        assert plateau_level(model, prepare(model, x, y, None)) == pytest.approx(level, rel=1e-5)


def test_the_level_of_labels_is_the_entropy_of_their_shares() -> None:
    labels = torch.tensor([0] * 5 + [1] * 3 + [2] * 2)
    model = chain(nn.Tanh, [4, 6, 3], [0.1, 0.1], bias=True)
    task = prepare(model, torch.randn(10, 4), labels, None)
    shares = np.array([0.5, 0.3, 0.2])
    assert task.loss_name == "cross-entropy"
    assert plateau_level(model, task) == pytest.approx(-np.sum(shares * np.log(shares)), rel=1e-4)


def test_crossings_lie_on_straight_lines() -> None:
    steps, losses = np.array([0.0, 2.0, 4.0]), np.array([3.0, 2.0, 0.0])
    assert first_below(steps, losses, 1.0) == 3.0
    assert first_below(steps, losses, 3.5) == 0.0
    assert first_below(steps, losses, -1.0) == math.inf


def test_rate_times_curvature_is_exact_for_linear_regression() -> None:
    x = torch.randn(40, 5, dtype=torch.float64)
    model = nn.Linear(5, 1, bias=False).double()
    task = prepare(model, x, x[:, 0], None)
    exact = 0.3 * 2 * float(torch.linalg.eigvalsh(x.T @ x / 40)[-1])
    assert stability(model, task, descent_of(model, 0.3, None)) == pytest.approx(exact, rel=1e-2)


def test_at_a_saddle_the_positive_curvature_is_found() -> None:
    """f = u v at u = v = 0 with target 1: the Hessian of (uv - 1)² is [[0, -2], [-2, 0]]."""
    model, x, y = product_of_scalars(2, 0.0)
    found = stability(model, prepare(model, x, y, None), descent_of(model, 1.0, None))
    assert found == pytest.approx(2, rel=1e-2)


def test_rates_of_groups_and_momentum_set_the_clock() -> None:
    model = chain(nn.Tanh, [6, 16, 16, 1], [0.15, 0.15, 0.15])
    x, y = task_of(6)
    slow = plateau(model, x, y, lr=0.01).forecast.escape
    momentum = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.75)
    assert plateau(model, x, y, optimizer=momentum).forecast.escape == pytest.approx(slow / 4, rel=1e-3)
    groups = torch.optim.SGD([{"params": [p], "lr": 0.02} for p in model.parameters()], lr=1.0)
    assert plateau(model, x, y, optimizer=groups).forecast.escape == pytest.approx(slow / 2, rel=1e-3)


def test_momentum_is_predicted_on_long_plateaus_and_doubted_on_short_ones() -> None:
    model = chain(nn.Tanh, [6, 16, 16, 16, 1], [0.2] * 4)
    x, y = task_of(6)
    slow = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.5)
    found = plateau(model, x, y, optimizer=slow)
    assert "Momentum" not in repr(found)
    assert abs(found.verify().networks["given"].error) < 0.05
    fast = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    assert "Momentum 0.9 remembers about 10 steps" in repr(plateau(model, x, y, optimizer=fast))


def test_descent_of_a_small_network_escapes_when_predicted_and_the_advice_shortens_it() -> None:
    model = chain(nn.Tanh, [6, 24, 24, 24, 1], [0.25] * 4)
    before = copy.deepcopy(model.state_dict())
    x, y = task_of(6)
    found = plateau(model, x, y, lr=0.02, batch_size=32)
    trained = found.verify(runs=2, seed=3)
    given, rescaled = trained.networks["given"], trained.networks["rescaled"]
    assert given.measured > 200
    assert abs(given.error) < 0.05
    assert abs(rescaled.error) < 0.15
    assert trained.speedup == pytest.approx(found.speedup, rel=0.15)
    assert trained.speedup > 10
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    again = found.verify(runs=2, seed=3).to_dataset()
    np.testing.assert_array_equal(trained.to_dataset().loss, again.loss)
    assert dict(again.sizes)["run"] == 2


def test_the_code_of_the_advice_makes_the_rescaled_network() -> None:
    model = chain(Erf, [6, 24, 24, 1], [0.2] * 3)
    found = plateau(model, *task_of(6), lr=0.02)
    copied = copy.deepcopy(model)
    exec(found.code, {"torch": torch, "model": copied})
    for own, expected in zip(copied.parameters(), found.rescaled_model().parameters()):
        torch.testing.assert_close(own, expected, rtol=1e-3, atol=1e-6)
    layers = read_layers(found.rescaled_model(), torch.randn(2, 6))
    assert [layer.relative for layer in layers] == pytest.approx([1, 1, 1], rel=1e-5)


def test_a_healthy_network_has_no_plateau_and_no_advice() -> None:
    found = plateau(chain(nn.Tanh, [6, 32, 32, 1], [1.0, 1.4, 1.0]), *task_of(6), lr=0.05)
    assert not found.forecast.has_plateau
    assert found.law is None
    assert found.code == ""
    assert math.isnan(found.speedup)
    assert found.verdict.startswith("No plateau")
    assert list(found.verify().networks) == ["given"]
    assert "rescaled_loss" not in found.to_dataset()


def test_a_network_that_has_learned_already_is_told_so() -> None:
    x, _ = task_of(6)
    model = nn.Linear(6, 1, bias=False)
    with torch.no_grad():
        found = plateau(model, x, model(x), lr=0.1)
    assert found.forecast.escape == 0
    assert "from the start" in found.verdict
    assert not found.forecast.has_plateau


def test_a_flow_that_stays_is_told_with_numbers() -> None:
    model = chain(nn.Tanh, [6, 16, 16, 16, 1], [0.01] * 4)
    found = plateau(model, *task_of(6), lr=0.01, max_steps=2000)
    assert found.forecast.escape == math.inf
    assert found.forecast.has_plateau
    assert "has not left it after 2,000 steps" in found.verdict
    trained = found.verify(max_steps=60)
    assert "not escaped within 60 steps" in repr(trained)


def test_a_threshold_below_what_can_be_learned_is_not_called_a_plateau() -> None:
    x, _ = task_of(6)
    noise = torch.randn(len(x), 1, generator=torch.Generator().manual_seed(5))
    found = plateau(nn.Linear(6, 1, bias=False), x, 0.3 * x[:, :1] + noise, lr=0.05, max_steps=4000)
    assert not found.forecast.has_plateau
    assert "without reaching" in found.verdict


def test_a_rate_that_is_too_large_is_said_and_seen() -> None:
    model = chain(nn.Tanh, [6, 24, 24, 24, 1], [0.25] * 4)
    found = plateau(model, *task_of(6), lr=3.0, batch_size=64)
    assert "too large for the rescaled network" in repr(found)
    assert not found.rescaled_forecast.stable  # type: ignore[union-attr]


def test_the_text_names_layers_law_and_code() -> None:
    told = repr(plateau(chain(nn.Tanh, [6, 16, 16, 1], [0.1] * 3), *task_of(6), lr=0.05))
    for part in (
        "A plateau",
        "3 of 3 weight matrices",
        "2.weight",
        "<- bottleneck",
        "~ ε^-1",
        'model.get_parameter("0.weight").mul_(',
    ):
        assert part in told


def test_readings_of_the_theory_are_in_the_data_where_they_are_defined() -> None:
    data = plateau(chain(nn.Tanh, [6, 16, 16, 1], [0.3] * 3), *task_of(6), lr=0.05).to_dataset()
    assert data.X_norm.values[0] == pytest.approx(data.norm.values[0] / 4)
    assert np.isfinite(data.X_signal).all()
    several = plateau(chain(nn.Tanh, [6, 16, 12, 1], [0.3] * 3), *task_of(6), lr=0.05).to_dataset()
    assert "X_norm" not in several


def test_convolutions_flow_too() -> None:
    model = nn.Sequential(nn.Conv1d(1, 6, 3), nn.Tanh(), nn.Conv1d(6, 6, 3), nn.Flatten(), nn.Linear(24, 1))
    with torch.no_grad():
        model[0].weight.mul_(0.2)
        model[2].weight.mul_(0.2)
    x, y = task_of(8)
    found = plateau(model, x[:, None], y, lr=0.05)
    assert [layer.name for layer in found.bottleneck.layers] == ["0.weight", "2.weight"]
    assert math.isfinite(found.forecast.escape)


def test_normalised_networks_get_no_rescaling() -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, 16), nn.Linear(16, 1))
    with torch.no_grad():
        for place in (3, 4):
            model[place].weight.mul_(1e-3)
    found = plateau(model, *task_of(6), lr=0.05)
    assert found.forecast.has_plateau
    assert found.factors == {}
    assert "normalisation layers undo the scales" in found.verdict


@pytest.mark.parametrize(
    ("options", "part"),
    [
        ({}, "give a learning rate"),
        ({"lr": -1.0}, "positive learning rate"),
        ({"lr": 0.1, "share": 0.95}, "between 0 and 0.9"),
        ({"lr": 0.1, "threshold": 10.0}, "the plateau is at"),
        ({"lr": 0.1, "batch_size": 1000}, "1 to 256"),
        ({"lr": 0.1, "max_steps": math.inf}, "positive number of steps"),
    ],
)
def test_bad_options_are_refused(options: dict[str, float], part: str) -> None:
    model = chain(nn.Tanh, [6, 4, 1], [1.0, 1.0])
    with pytest.raises(InputError, match=part):
        plateau(model, *task_of(6), **options)  # type: ignore[arg-type]


def test_bad_models_and_data_are_refused() -> None:
    x, y = task_of(6)
    model = chain(nn.Tanh, [6, 4, 1], [1.0, 1.0])
    with pytest.raises(InputError, match="one target for each input"):
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
    with pytest.raises(InputError, match="one finite number"):
        plateau(model, x, y, lr=0.1, loss=lambda f, target: (f - target).square())


def test_labels_and_targets_that_cannot_be_learned_are_refused() -> None:
    x, y = task_of(6)
    model = chain(nn.Tanh, [6, 4, 3], [1.0, 1.0])
    with pytest.raises(InputError, match="labels from 0 to 2"):
        plateau(model, x, torch.arange(256) % 4, lr=0.1)
    with pytest.raises(InputError, match="nothing to learn"):
        plateau(chain(nn.Tanh, [6, 4, 1], [1.0, 1.0]), x, 0 * y, lr=0.1)


def test_whole_numbers_for_one_output_are_numbers_not_labels() -> None:
    model = chain(nn.Tanh, [6, 4, 1], [1.0, 1.0])
    task = prepare(model, task_of(6)[0], torch.arange(256), None)
    assert task.loss_name == "mean squared error"
    assert task.y.shape == (256, 1)


def test_shared_weights_are_rescaled_once() -> None:
    shared = nn.Linear(6, 6, bias=False)
    model = nn.Sequential(shared, nn.Tanh(), shared, nn.Tanh(), nn.Linear(6, 1))
    assert [layer.name for layer in read_layers(model, torch.randn(2, 6))] == ["0.weight", "4.weight"]


def test_levels_for_the_escape() -> None:
    assert escape_level(2.0, None, 0.5) == 1.0
    assert escape_level(2.0, 0.3, 0.5) == 0.3


def test_data_that_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "10kB")
    with pytest.raises(MemoryError, match="fewer samples"):
        plateau(chain(nn.Tanh, [6, 64, 1], [0.1, 0.1]), *task_of(6), lr=0.1)


class Squeezed(nn.Sequential):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).squeeze(-1)


def test_targets_are_never_broadcast() -> None:
    model, (x, y) = chain(nn.Tanh, [3, 8, 8, 1], [0.3, 0.3, 0.3]), task_of(3, samples=64)
    expected = plateau(model, x, y, lr=0.1).forecast.escape
    assert plateau(model, x, y[:, 0], lr=0.1, loss=nn.MSELoss()).forecast.escape == expected
    assert plateau(Squeezed(*model), x, y, lr=0.1).forecast.escape == pytest.approx(expected, rel=1e-5)
    with pytest.raises(InputError, match="broadcasts against outputs"):
        prepare(model, x, y[:, 0], lambda outputs, targets: ((outputs - targets) ** 2).mean())
    own = prepare(model, x, y[:, 0], lambda outputs, targets: ((outputs[:, 0] - targets) ** 2).mean())
    assert own.value(model) == pytest.approx(prepare(model, x, y, None).value(model))


def test_targets_in_another_order_of_axes_are_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 6), nn.Unflatten(1, (2, 3)))
    with pytest.raises(InputError, match=r"shape \(3, 2\) but an output \(2, 3\)"):
        prepare(model, torch.randn(8, 3), torch.randn(8, 3, 2), None)


def test_labels_may_stand_in_a_column_and_be_of_any_whole_type() -> None:
    model, x = nn.Linear(3, 4), torch.randn(8, 3)
    labels = torch.arange(8) % 4
    expected = prepare(model, x, labels, None).value(model)
    for given in (labels[:, None], labels.int()):
        for loss in (None, nn.functional.cross_entropy, nn.CrossEntropyLoss()):
            assert prepare(model, x, given, loss).value(model) == expected
    with pytest.raises(InputError, match="labels run from 1 to 4"):
        prepare(model, x, labels + 1, nn.CrossEntropyLoss())
    with pytest.raises(InputError, match=r"labels have shape \(2,\)"):
        prepare(model, x, torch.ones(8, 2, dtype=torch.long), nn.CrossEntropyLoss())


def test_what_is_no_array_or_rate_is_refused() -> None:
    model, (x, y) = nn.Linear(3, 1), task_of(3)
    with pytest.raises(InputError, match="y is a float"):
        plateau(model, x, 1.0, lr=0.1)
    with pytest.raises(InputError, match="x is a NoneType"):
        plateau(model, None, y, lr=0.1)
    with pytest.raises(InputError, match="positive learning rate"):
        plateau(model, x, y, lr="0.1")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="whole number"):
        plateau(model, x, y, lr=0.1, batch_size=2.5)  # type: ignore[arg-type]


def test_the_law_does_not_apply_to_a_matrix_that_is_used_twice() -> None:
    shared, last = nn.Linear(3, 3, bias=False), nn.Linear(3, 1, bias=False)
    twice, once = nn.Sequential(shared, nn.Tanh(), shared, last), nn.Sequential(shared, nn.Tanh(), last)
    x = torch.randn(16, 3)
    assert not is_chain(twice, x, read_layers(twice, x))
    assert is_chain(once, x, read_layers(once, x))


def test_few_steps_are_told_with_digits() -> None:
    assert [step_text(step) for step in (0.0123, 0.29, 9.4, 1234.5)] == ["0.012", "0.29", "9.4", "1,234"]


def test_numbers_that_are_none_are_found_where_they_are() -> None:
    model, (x, y) = chain(nn.Tanh, [3, 8, 1], [0.3, 0.3]), task_of(3, samples=16)
    for place, (inputs, targets) in {"x": (x * math.nan, y), "y": (x, y * math.inf)}.items():
        with pytest.raises(InputError, match=f"^{place} has values"):
            plateau(model, inputs, targets, lr=0.1)
    with pytest.raises(InputError, match="look at its weights"):
        plateau(chain(nn.Tanh, [3, 8, 1], [math.nan, 1.0]), x, y, lr=0.1)
    with pytest.raises(InputError, match="lazy"):
        plateau(nn.Sequential(nn.LazyLinear(4), nn.Linear(4, 1)), x, y, lr=0.1)
    with pytest.raises(InputError, match=r"does not take outputs of shape \(16, 1\)"):
        prepare(model, x, y[:, 0], nn.functional.binary_cross_entropy)
    signs = (y[:, 0] > 0).long()
    assert prepare(model, x, signs, nn.BCEWithLogitsLoss()).y.shape == (16, 1)
