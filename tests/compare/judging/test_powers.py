"""Powers of the width in sizes that are known, with and without noise."""

from __future__ import annotations

import numpy as np
import pytest
import xarray

from foretrain.compare.judging.powers import Sizes, log_root_mean_square, power_of, sizes_of, slope_of


def test_powers_of_the_width() -> None:
    widths = np.array([32.0, 64.0, 128.0, 256.0])
    exact = Sizes((3.0 / widths) ** 2, 1e-3 * (3.0 / widths) ** 2)
    power = power_of(widths, exact)
    assert power is not None
    assert power.value == pytest.approx(-1.0, abs=1e-6)
    bent = Sizes((3.0 / widths * (1 - 8 / widths)) ** 2, 1e-3 / widths**2)
    power = power_of(widths, bent)
    assert power is not None
    assert power.value == pytest.approx(-1.0, abs=1e-3)
    assert power_of(widths[:3], Sizes(np.array([1.0, -0.2, 0.1]), np.array([0.1, 0.2, 0.2]))) is None


def test_sizes_are_freed_of_noise() -> None:
    source = np.random.default_rng(0)
    covariance = np.array([[0.5, 0.2], [0.2, 0.3]])
    true = np.array([0.4, -0.7])
    noisy = source.multivariate_normal(true, covariance, 4000)
    found = sizes_of(noisy, [covariance] * 4000)
    error = found.square.std() / np.sqrt(4000)
    assert abs(found.square.mean() - np.mean(true**2)) < 4 * error
    assert np.sqrt(np.mean(found.standard_error**2)) == pytest.approx(found.square.std(), rel=0.3)


def test_powers_of_known_sizes() -> None:
    widths, draws = np.array([32, 64, 128, 256]), 400
    noise = np.random.default_rng(0).normal(size=(4, draws))
    values = np.abs(noise) * 3.0 / widths[:, None] ** 2 * (1 + 5 / widths[:, None])
    sizes = xarray.DataArray(values, dims=("width", "draw"), coords={"width": widths})
    found = slope_of(sizes)
    assert found.agrees(-2.0)
    assert not found.agrees(-1.0)
    share = slope_of(sizes, xarray.full_like(sizes, 1.0) / sizes.width)
    assert share.value == pytest.approx(found.value + 1, abs=1e-9)
    value, error = log_root_mean_square(np.abs(noise))
    assert np.abs(value / error).max() < 4
    assert error == pytest.approx(np.full(4, (2 / draws) ** 0.5 / 2), rel=0.3)
    both, none = log_root_mean_square(values, values)
    assert not both.any()
    assert none == pytest.approx(np.zeros(4), abs=1e-15)
