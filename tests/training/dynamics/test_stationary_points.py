"""Fixed points of recurrent layers: planted ones are fixed and stable, and a search finds those that are known."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from scipy.optimize import brentq
from torch import Tensor, nn

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.training.dynamics import FixedPoints, fixed_points, plant_fixed_points
from foretrain.training.tasks.memory_pro import Recurrent


def gru(units: int, dtype: torch.dtype = torch.float64, seed: int = 0) -> nn.GRU:
    model = Recurrent(3, units, 3, seed=seed, dtype=dtype)
    assert isinstance(model.recurrent, nn.GRU)
    return model.recurrent


def one_step(layer: nn.RNNBase, state: Tensor, x: Tensor | None = None) -> Tensor:
    """By the framework itself, one sample at a time."""
    given = torch.zeros(layer.input_size, dtype=state.dtype) if x is None else x
    _, after = layer(given[None, None], state[None, None])
    return after[0, 0]


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(("units", "count"), [(16, 3), (64, 5), (256, 5)])
def test_planted_points_are_fixed_stable_distinct_and_not_zero(units: int, count: int) -> None:
    layer = gru(units)
    before = layer.weight_hh_l0.detach().clone()
    found = plant_fixed_points(layer, count, amplitude=0.9, seed=1)
    assert len(found) == count
    for point in found.points:
        assert float((one_step(layer, point) - point).detach().abs().max()) < 1e-12
        jacobian = torch.autograd.functional.jacobian(lambda h: one_step(layer, h), point)
        radius = float(torch.linalg.eigvals(jacobian).abs().max())
        assert radius < 1
        assert math.isclose(radius, float(found.radius[(found.points == point).all(1)][0]), rel_tol=1e-9)
        torch.testing.assert_close(point.abs(), torch.full_like(point, 0.9))
    apart = torch.cdist(found.points, found.points) + 10 * torch.eye(count)
    assert float(apart.min()) > 1
    assert torch.equal(layer.weight_hh_l0[: 2 * units], before[: 2 * units])  # the gates r and z stay


def test_what_is_orthogonal_to_the_points_keeps_its_weights() -> None:
    layer = gru(32)
    before = layer.weight_hh_l0[64:].detach().clone()
    points = plant_fixed_points(layer, 4, amplitude=0.8).points
    free = torch.linalg.svd(points)[2][4:]
    torch.testing.assert_close(layer.weight_hh_l0[64:] @ free.t(), before @ free.t())


def test_a_disturbed_point_comes_back_and_single_precision_is_followed() -> None:
    layer = gru(64, torch.float32)
    found = plant_fixed_points(layer, amplitude=0.9, seed=2)
    assert found.points.dtype == torch.float64
    assert float(found.residual.max()) < 1e-14
    source = torch.Generator().manual_seed(0)
    state = found.points + 0.05 * torch.randn(found.points.shape, generator=source, dtype=torch.float64)
    _, after = layer(torch.zeros(5, 400, 3), state.float()[None])
    torch.testing.assert_close(after[0], found.points.float(), rtol=0, atol=1e-5)


def test_biases_are_taken_into_account() -> None:
    layer = gru(48)
    source = torch.Generator().manual_seed(3)
    for bias in (layer.bias_hh_l0, layer.bias_ih_l0):
        bias.data = 0.2 * torch.randn(bias.shape, generator=source, dtype=torch.float64)
    for point in plant_fixed_points(layer, 2).points:
        assert float((one_step(layer, point) - point).detach().abs().max()) < 1e-12


def test_one_unit_has_the_points_of_a_scalar_equation() -> None:
    """h = tanh(w h) with w > 1: zero is unstable, ± the positive root are stable, with Jacobian w (1 - h^2)."""
    layer, w = nn.RNN(1, 1, dtype=torch.float64), 1.7
    with torch.no_grad():
        layer.weight_hh_l0.fill_(w)
        layer.bias_hh_l0.zero_()
        layer.bias_ih_l0.zero_()
    root = brentq(lambda h: math.tanh(w * h) - h, 0.1, 1)
    found = fixed_points(layer, starts=20)
    assert found.stable.tolist() == [True, True, False]
    assert sorted(found.points[:, 0].tolist()) == pytest.approx([-root, 0, root], abs=1e-10)
    assert found.radius.tolist() == pytest.approx([w * (1 - root**2)] * 2 + [w])


def test_independent_units_have_all_combinations() -> None:
    """Two bistable units: 3 x 3 points, of which the four with both units on are stable."""
    layer = nn.RNN(1, 2, dtype=torch.float64)
    with torch.no_grad():
        layer.weight_hh_l0.copy_(torch.diag(torch.tensor([1.5, 2.5])))
        layer.bias_hh_l0.zero_()
        layer.bias_ih_l0.zero_()
    found = fixed_points(layer, starts=200, seed=1)
    assert len(found) == 9
    assert int(found.stable.sum()) == 4
    assert "Fixed points: 9, stable: 4, slow points: 0" in repr(found)
    assert int(found.hits.sum()) <= 4 * 200


def test_a_constant_input_moves_the_point_of_a_weak_layer() -> None:
    layer, x = nn.GRU(2, 6, dtype=torch.float64), torch.tensor([0.7, -1.2], dtype=torch.float64)
    found = fixed_points(layer, x, starts=10)
    assert len(found) == 1
    state = torch.zeros(6, dtype=torch.float64)
    for _ in range(400):
        state = one_step(layer, state, x)
    torch.testing.assert_close(found.points[0], state.detach(), rtol=0, atol=1e-9)


def test_planted_points_are_found_again_beside_zero() -> None:
    layer = gru(24)
    planted = plant_fixed_points(layer, 2, amplitude=0.9, seed=4)
    near = torch.cat([planted.points + 0.1, torch.zeros(1, 24, dtype=torch.float64)])
    found = fixed_points(layer, starts=near)
    distances = torch.cdist(near[:2] - 0.1, found.points).amin(1)
    assert float(distances.max()) < 1e-8
    zero = int(found.points.norm(dim=1).argmin())
    assert float(found.points[zero].norm()) < 1e-9
    assert not bool(found.stable[zero])
    data = found.to_dataset()
    assert data.state.dims == ("point", "unit")
    assert bool(data.stable.any())
    assert len(found.plot().axes) == 4  # with the bar of the colours


def test_nothing_found_is_an_empty_result() -> None:
    layer = nn.RNN(1, 1, dtype=torch.float64, nonlinearity="relu")
    with torch.no_grad():  # h -> relu(h + 1) has no fixed point
        layer.weight_hh_l0.fill_(1.0)
        layer.bias_hh_l0.fill_(1.0)
        layer.bias_ih_l0.zero_()
    found = fixed_points(layer, starts=4, steps=5)
    assert len(found) == 0
    assert repr(found).startswith(
        "Fixed points: 0, stable: 0, slow points: 0; residuals up to 0. 8 of 8 candidates ended"
    )


@pytest.mark.slow
def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="room for 1 to 4"):
        plant_fixed_points(gru(4), 5)
    with pytest.raises(InputError, match="between -1 and 1"):
        plant_fixed_points(gru(4), 1, amplitude=1.0)
    crowded = gru(12)
    before = crowded.weight_hh_l0.detach().clone()
    with pytest.raises(InputError, match="were all stable: choose"):
        plant_fixed_points(crowded, 10, amplitude=0.3)
    assert torch.equal(crowded.weight_hh_l0, before)  # a failure leaves the layer alone
    with pytest.raises(NotSupportedError, match="candidate"):
        plant_fixed_points(nn.RNN(2, 4))
    with pytest.raises(NotSupportedError, match="bidirectional"):
        fixed_points(nn.LSTM(2, 4, bidirectional=True))
    with pytest.raises(InputError, match="a step takes"):
        fixed_points(gru(4), torch.zeros(2))
    with pytest.raises(InputError, match="real tensor"):
        fixed_points(gru(4), starts=torch.zeros(3))
    for wrong in (0, True, 2.5):
        with pytest.raises(InputError, match=r"starts is"):
            fixed_points(gru(4), starts=wrong)  # type: ignore[arg-type]


def scalar(
    function: Callable[[Tensor], Tensor], low: float = -0.5, high: float = 0.5, **options: Any
) -> FixedPoints:
    return fixed_points(function, starts=torch.linspace(low, high, 9).double()[:, None], **options)


def test_two_points_that_vanished_leave_a_slow_one() -> None:
    """h -> h + e + h^2: two fixed points at ± sqrt(-e) for e < 0, a minimum of the speed e at zero beyond."""
    ghost = scalar(lambda h: h + 1e-3 + h**2, steps=0)
    assert ghost.fixed.tolist() == [False]
    assert float(ghost.points) == pytest.approx(0, abs=1e-6)
    assert float(ghost.speed) == pytest.approx(1e-3, rel=1e-9)
    assert ghost.unfinished == 0
    assert len(scalar(lambda h: h + 1e-3 + h**2, steps=0, slow=1e-4)) == 0
    pair = scalar(lambda h: h - 1e-3 + h**2, steps=0)  # one start is the maximum of the speed between them
    assert pair.fixed.tolist() == [True, True]
    assert sorted(pair.points[:, 0].tolist()) == pytest.approx([-(1e-3**0.5), 1e-3**0.5], abs=1e-12)
    assert int(pair.hits.sum()) == 9


def test_linear_dynamics_around_a_point() -> None:
    """A rotation that grows and a direction that shrinks: h -> b + A h has the point (1 - A)^-1 b."""
    angle, b = 0.4, torch.tensor([0.3, -0.2, 0.5], dtype=torch.float64)
    a = torch.zeros(3, 3, dtype=torch.float64)
    a[:2, :2] = 1.1 * torch.tensor([[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]])
    a[2, 2] = 0.5
    found = fixed_points(lambda h, x: h @ a.t() + x, b, starts=torch.randn(4, 3).double(), steps=3, dt=0.01)
    torch.testing.assert_close(found.points[0], torch.linalg.solve(torch.eye(3).double() - a, b))
    assert found.unstable_dimension.tolist() == [2]
    torch.testing.assert_close(found.eigenvalues[0].abs(), torch.tensor([1.1, 1.1, 0.5]).double())
    torch.testing.assert_close(found.eigenvalues[0, :2].angle().abs(), torch.full((2,), angle).double())
    expected = [-0.01 / math.log(1.1), -0.01 / math.log(1.1), 0.01 / math.log(2)]
    assert found.time_constants[0].tolist() == pytest.approx(expected)
    assert len(found) == 1
    assert not bool(found.stable)


def test_a_line_of_fixed_points_is_marginal() -> None:
    found = fixed_points(lambda h: h * torch.tensor([1.0, 0.5]).double(), starts=torch.randn(6, 2).double())
    assert len(found) == 6
    torch.testing.assert_close(found.points[:, 1], torch.zeros(6).double(), atol=1e-9, rtol=0)
    assert not bool(found.stable.any())


def test_states_that_a_model_visits_are_starts() -> None:
    model = Recurrent(3, 16, 3, seed=3, dtype=torch.float64)
    x = torch.randn(5, 12, 3, dtype=torch.float64)
    found = fixed_points(model, trials=x, starts=10)
    assert len(found) >= 1
    assert found.searched == 40
    visited = torch.cat([torch.zeros(5, 1, 16).double(), model.recurrent(x)[0].detach()], 1).flatten(0, 1)
    torch.testing.assert_close(found.distance, torch.cdist(found.points, visited).amin(1))
    for point in found.points[found.fixed]:
        torch.testing.assert_close(one_step(model.recurrent, point), point, atol=1e-9, rtol=0)
    assert "distance" in found.to_dataset()


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize("layers", [1, 2])
def test_points_and_eigenvalues_of_every_layer(kind: Any, layers: int) -> None:
    torch.manual_seed(1)
    module, x = kind(2, 3, layers, batch_first=True, dtype=torch.float64), torch.tensor([0.4, -1.0]).double()
    found = fixed_points(module, x, starts=5)
    parts = 2 if kind is nn.LSTM else 1

    def step(state: Tensor) -> Tensor:
        given = tuple(part.reshape(layers, 1, 3) for part in state.split(layers * 3))
        _, after = module(x[None, None], given if parts == 2 else given[0])
        return torch.cat([part.flatten() for part in (after if parts == 2 else (after,))])

    point = found.points[0]
    torch.testing.assert_close(step(point), point, atol=1e-9, rtol=0)
    expected = (
        torch.linalg.eigvals(torch.autograd.functional.jacobian(step, point)).abs().sort(descending=True)[0]
    )
    torch.testing.assert_close(found.eigenvalues[0].abs(), expected, atol=1e-9, rtol=0)


def test_cells_leaky_loops_and_single_precision() -> None:
    cell = nn.GRUCell(2, 4)
    by_cell, by_function = (
        fixed_points(cell, starts=6),
        fixed_points(lambda h: cell(torch.zeros(len(h), 2), h), starts=torch.randn(6, 4)),
    )
    assert len(by_cell) == len(by_function) == 1
    torch.testing.assert_close(by_function.points, by_cell.points.float(), atol=1e-4, rtol=0)
    w = torch.randn(4, 4).double() * 0.4
    leaky = fixed_points(
        lambda h, x: 0.9 * h + 0.1 * torch.tanh(h @ w.t() + x), torch.ones(4).double(), starts=by_cell.points
    )
    point = leaky.points[0]
    torch.testing.assert_close(torch.tanh(point @ w.t() + 1), point)
