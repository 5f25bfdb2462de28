"""Functions of the kernel from values alone, against the rules of the Gaussian room."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.activations import activation
from foretrain.theory.criticality import criticality
from foretrain.theory.criticality.fixed_points import fixed_points
from foretrain.theory.kernel_functions import coarse_means, is_measured, precise_means

KERNELS = np.geomspace(1e-6, 50.0, 9)


def tilted(z: np.ndarray) -> np.ndarray:
    return np.tanh(z) + 0.3 * np.tanh(z) ** 2


def shifted(z: np.ndarray) -> np.ndarray:
    return np.log1p(np.exp(z))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("function", [tilted, shifted])
def test_eight_digits(function: object) -> None:
    act = activation(function)
    assert is_measured(act)
    coarse, exact = coarse_means(act, KERNELS), precise_means(act, KERNELS, 1e-11)
    for name in ("square", "square_slope", "slope_square"):
        np.testing.assert_allclose(getattr(coarse, name), getattr(exact, name), rtol=1e-8)


def test_fast_growth_and_narrow_features_end_the_range() -> None:
    assert 0 < len(coarse_means(activation(np.exp), KERNELS).square) < len(KERNELS)
    assert len(coarse_means(activation(lambda z: np.tanh(2000 * z)), KERNELS).square) < len(KERNELS)


def test_the_exponential_has_no_criticality() -> None:
    found = criticality(lambda z: np.exp(z))
    assert not found.exists
    assert "searched from" in found.reason


def test_a_constant_passes_no_signal() -> None:
    assert "slope is zero" in criticality(lambda z: np.full_like(z, 0.3)).reason


@pytest.mark.slow
def test_fixed_points_of_a_user_function_are_those_of_the_catalogue() -> None:
    (own,), (known,) = (fixed_points(f, C_b=0.3, C_W=1.5) for f in (lambda z: np.tanh(z), "tanh"))
    assert pytest.approx(known.K, rel=1e-8) == own.K
    assert own.chi_parallel == pytest.approx(known.chi_parallel, rel=1e-7)
