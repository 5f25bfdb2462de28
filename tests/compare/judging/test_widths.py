from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.judging.ladder import (
    Asked,
    check_scales,
    default_scales,
    extrapolation_weights,
    share_draws,
)
from foretrain.support.errors import InputError


@pytest.mark.parametrize(
    ("depth", "width", "scales"),
    [
        (5, 64, (0.5, 1, 2)),
        (5, 32, (1, 2, 4)),
        (5, 512, (0.25, 0.5, 1)),
        (5, 65, (1, 2, 4)),
        (3, [24, 12], (1, 2, 4)),
        (3, [240, 120], (0.25, 0.5, 1)),
    ],
)
def test_default_ladder(depth: int, width: int | list[int], scales: tuple[float, ...]) -> None:
    assert default_scales(ft.MLP("tanh", depth=depth, width=width)) == scales


def test_scaled_networks_keep_everything_but_the_widths() -> None:
    mlp = ft.MLP("tanh", depth=3, width=[24, 12], n_in=3, C_b=[0.1, 0.2, 0.3])
    rungs = Asked(100, scales=(0.5, 1.0, 2.0)).rungs(mlp)
    assert rungs.networks[2].hidden_widths == (48, 24)
    assert rungs.networks[2].C_b == mlp.C_b
    np.testing.assert_allclose(rungs.inverse, [2, 1, 0.5])


@pytest.mark.parametrize("widths", [3, 5])
def test_a_quadratic_is_extrapolated_exactly(widths: int) -> None:
    inverse = np.linspace(0.3, 2, widths)
    values = 4.0 - 3.0 * inverse + 0.7 * inverse**2
    errors = np.random.default_rng(0).uniform(0.1, 2.0, (widths, 2))
    weights = extrapolation_weights(inverse, errors)
    np.testing.assert_allclose(weights.T @ values, [4.0, 4.0], rtol=1e-11)


def test_weights_are_those_of_weighted_least_squares() -> None:
    inverse = np.array([0.25, 0.5, 1.0, 2.0])
    errors = np.array([0.4, 0.1, 0.2, 0.3])
    values = np.array([1.0, 1.3, 0.7, 2.0])
    fitted = np.polyfit(inverse, values, 2, w=1 / errors)
    assert extrapolation_weights(inverse, errors[:, None])[:, 0] @ values == pytest.approx(fitted[-1])


def test_entries_without_noise_are_extrapolated_too() -> None:
    inverse = np.array([0.5, 1.0, 2.0])
    weights = extrapolation_weights(inverse, np.zeros((3, 1)))[:, 0]
    assert weights @ np.full(3, 7.0) == pytest.approx(7.0)


def test_shares_minimise_the_noise_for_the_cost() -> None:
    inverse, costs = np.array([2.0, 1.0, 0.5]), np.array([1.0, 4.0, 16.0])
    best = np.array(share_draws(inverse, costs, 100_000), dtype=float)
    weights = extrapolation_weights(inverse, np.ones((3, 1)))[:, 0]
    assert best.mean() == pytest.approx(100_000, rel=1e-4)

    def noise_times_cost(draws: np.ndarray) -> float:
        return float((weights**2 / draws).sum() * (costs @ draws))

    for factor in (0.8, 1.25):
        for width in range(3):
            other = best.copy()
            other[width] *= factor
            assert noise_times_cost(other) > noise_times_cost(best)


@pytest.mark.parametrize(
    ("scales", "message"),
    [
        ((1, 2), "3 different .*multipliers"),
        ((1, 1, 2), "at least 3 different"),
        ((-1, 1, 2), "positive"),
        ((0.01, 1, 2), "fewer than two neurons"),
    ],
)
def test_bad_scales(scales: tuple[float, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        check_scales(ft.MLP("tanh", depth=3, width=20), scales)


def test_unequal_widths_must_keep_their_ratios() -> None:
    with pytest.raises(InputError, match="keep their ratios"):
        check_scales(ft.MLP("tanh", depth=3, width=[20, 25]), (0.5, 1, 2))
    with pytest.raises(InputError, match="no hidden layer"):
        check_scales(ft.MLP("tanh", depth=1), None)
