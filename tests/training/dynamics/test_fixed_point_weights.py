"""Matrices with chosen fixed points: exact, counted, their stability by hand, and the same in nn.RNN."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.training.dynamics import (
    basis_points,
    fixed_point_weights,
    sign_points,
    spectral_radii,
)


@pytest.mark.parametrize("count", [0, 1, 2, 5])
@pytest.mark.parametrize("family", [basis_points, sign_points])
def test_points_are_fixed_and_mirrored(family, count: int) -> None:  # type: ignore[no-untyped-def]
    points = family(24, count, 1.5)
    weights = fixed_point_weights(points, gain=0.8, seed=1)
    assert len(weights.points) == 2 * count  # tanh is odd
    assert torch.equal(weights.points[:count], points)
    assert torch.equal(weights.points[count:], -points)
    if count:
        assert float(weights.residual.max()) < 1e-13
    by_hand = torch.stack([weights.matrix @ torch.tanh(h) for h in weights.points]) if count else points
    torch.testing.assert_close(by_hand, weights.points, rtol=0, atol=1e-13)


def test_a_function_that_is_not_odd_has_no_mirror_images() -> None:
    weights = fixed_point_weights(basis_points(6, 2, 1.3), activation=torch.nn.functional.gelu, seed=0)
    assert len(weights.points) == 2
    assert float(weights.residual.max()) < 1e-14


def test_the_random_part_has_its_gain_and_annihilates_the_images() -> None:
    units, gain = 200, 1.4
    points = sign_points(units, 3, 1.0)
    weights = fixed_point_weights(points, gain=gain, seed=2)
    images = torch.tanh(points)
    structured = sum(torch.outer(h, u) / (u @ u) for h, u in zip(points, images, strict=True))
    rest = weights.matrix - structured
    assert float((rest @ images.t()).abs().max()) < 1e-13
    # (units - 3) * units independent entries remain, and the variance of n squares is 2 / n
    mean_square = float(rest.square().sum()) / (units - 3)
    assert abs(mean_square / gain**2 - 1) < 4 * math.sqrt(2 / units**2)


def test_without_points_only_the_random_part_is_left() -> None:
    none = fixed_point_weights(torch.zeros(0, 7), gain=2.0, seed=3)
    twice = fixed_point_weights(torch.zeros(0, 7), gain=1.0, seed=3)
    torch.testing.assert_close(none.matrix, 2 * twice.matrix)
    assert "no fixed points" in repr(none)
    assert len(none.residual) == len(none.radius) == 0


def test_spectral_radii_by_hand_without_a_random_part() -> None:
    k = 1.5
    slope, ratio = 1 / math.cosh(k) ** 2, k / math.tanh(k)
    one = fixed_point_weights(basis_points(8, 1, k), gain=0.0)
    torch.testing.assert_close(one.radius, torch.full((2,), ratio * slope).double())
    two = fixed_point_weights(basis_points(8, 2, k), gain=0.0)
    torch.testing.assert_close(
        two.radius, torch.full((4,), ratio).double()
    )  # a saddle: the other unit is at 0
    assert not two.stable.any()
    signs = fixed_point_weights(sign_points(8, 2, k), gain=0.0)
    torch.testing.assert_close(signs.radius, torch.full((4,), ratio * slope).double())
    assert signs.stable.all()


def test_sums_of_basis_points_are_the_attractors() -> None:
    weights = fixed_point_weights(basis_points(32, 3, 1.2), gain=0.5, seed=4)
    signs = torch.cartesian_prod(*[torch.tensor([1.0, -1.0], dtype=torch.float64)] * 3)
    sums = signs @ weights.points[:3]
    torch.testing.assert_close(torch.tanh(sums) @ weights.matrix.t(), sums)
    assert bool((spectral_radii(weights.matrix, sums, torch.tanh) < 1).all())


def test_spectral_radius_is_that_of_the_jacobian() -> None:
    weights = fixed_point_weights(sign_points(8, 1, 0.7), gain=1.3, seed=5)
    point = weights.points[0]
    jacobian = torch.autograd.functional.jacobian(lambda h: weights.matrix @ torch.tanh(h), point)
    expected = torch.linalg.eigvals(jacobian).abs().max()
    torch.testing.assert_close(weights.radius[0], expected)
    shown = torch.autograd.functional.jacobian(lambda u: torch.tanh(weights.matrix @ u), torch.tanh(point))
    torch.testing.assert_close(torch.linalg.eigvals(shown).abs().max(), expected)


def test_a_module_of_torch_rests_at_the_images() -> None:
    weights = fixed_point_weights(sign_points(16, 2, 1.5), gain=0.7, seed=6)
    rnn = nn.RNN(3, 16, batch_first=True, dtype=torch.float64)
    weights.load_into(rnn)
    start = weights.images[None]
    states, _ = rnn(torch.zeros(4, 5, 3, dtype=torch.float64), start)
    torch.testing.assert_close(states, weights.images[:, None].expand(4, 5, 16))
    near, _ = rnn(torch.zeros(4, 80, 3, dtype=torch.float64), start + 0.05)
    torch.testing.assert_close(near[:, -1], weights.images)  # they attract


def test_sign_points_are_orthogonal_for_any_even_number_of_units() -> None:
    points = sign_points(12, 4, 2.0)
    assert set(points.unique().tolist()) == {-2.0, 2.0}
    torch.testing.assert_close(points @ points.t(), 48 * torch.eye(4, dtype=torch.float64))


def test_the_repr_teaches() -> None:
    found = fixed_point_weights(sign_points(8, 2, 1.5), gain=0.5)
    assert "8 units, 4 fixed points, 4 of them attracting: spectral radii 0.30 to 0.30." in repr(found)
    assert found.to_dataset()["matrix"].shape == (8, 8)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match=r"sigma\(0\) is 0.5, not 0"):
        fixed_point_weights(basis_points(5, 2, 1.0), activation=torch.sigmoid)
    with pytest.raises(InputError, match="not orthogonal"):
        fixed_point_weights(torch.ones(2, 5))
    with pytest.raises(InputError, match="6 points, but 5 units"):
        fixed_point_weights(torch.ones(6, 5))
    with pytest.raises(InputError, match="size is 0"):
        basis_points(5, 1, 0.0)
    with pytest.raises(InputError, match="zero everywhere"):
        fixed_point_weights(basis_points(5, 1, -1.0), activation=torch.relu)
    with pytest.raises(InputError, match="zero everywhere"):
        fixed_point_weights(torch.zeros(1, 5))
    with pytest.raises(InputError, match="count is 6"):
        basis_points(5, 6, 1.0)
    with pytest.raises(InputError, match="largest power of two"):
        sign_points(12, 5, 1.0)
    with pytest.raises(InputError, match="units is 0"):
        sign_points(0, 0, 1.0)
    with pytest.raises(InputError, match="gain is -1"):
        fixed_point_weights(basis_points(5, 1, 1.0), gain=-1)
    with pytest.raises(InputError, match="nan or infinite"):
        fixed_point_weights(torch.tensor([[1.0, math.nan]]))
    with pytest.raises(InputError, match="matrix"):
        fixed_point_weights(torch.ones(3))


def test_modules_that_do_not_fit_are_refused() -> None:
    weights = fixed_point_weights(basis_points(5, 1, 1.0))
    with pytest.raises(InputError, match="has 4 units"):
        weights.load_into(nn.RNN(3, 4))
    with pytest.raises(InputError, match="relu"):
        weights.load_into(nn.RNN(3, 5, nonlinearity="relu"))
    with pytest.raises(NotSupportedError, match="one layer"):
        weights.load_into(nn.RNN(3, 5, num_layers=2))
