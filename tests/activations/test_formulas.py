"""Every catalogue member against arbitrary-precision arithmetic."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import mpmath as mp
import numpy as np
import pytest

from foretrain.activations import activation, catalogue

RIGHT, LEFT = 1, -1
Reference = Callable[[Any], Any]


def logistic(z: Any) -> Any:
    return 1 / (1 + mp.exp(-z))


def selu(z: Any) -> Any:
    alpha, scale = mp.mpf("1.6732632423543772848170429916717"), mp.mpf("1.0507009873554804934193349852946")
    return scale * (z if z >= 0 else alpha * mp.expm1(z))


REFERENCES: dict[str, Reference] = {
    "perceptron": lambda z: mp.mpf(z >= 0),
    "sign": lambda z: mp.mpf(1 if z >= 0 else -1),
    "sigmoid": logistic,
    "tanh": mp.tanh,
    "erf": mp.erf,
    "softsign": lambda z: z / (1 + abs(z)),
    "sin": mp.sin,
    "cos": mp.cos,
    "linear(slope=0.75)": lambda z: 0.75 * z,
    "relu": lambda z: z if z >= 0 else mp.mpf(0),
    "leaky_relu(slope=0.25)": lambda z: z if z >= 0 else z / 4,
    "scale_invariant(minus=-0.5, plus=2)": lambda z: 2 * z if z >= 0 else -z / 2,
    "abs": abs,
    "monomial(power=4)": lambda z: z**4,
    "quadratic": lambda z: z**2,
    "cubic": lambda z: z**3,
    "softplus": lambda z: mp.log1p(mp.exp(z)),
    "swish": lambda z: z * logistic(z),
    "swish(beta=1.75)": lambda z: z * logistic(1.75 * z),
    "gelu": lambda z: z * mp.erfc(-z / mp.sqrt(2)) / 2,
    "gelu_tanh": lambda z: z * logistic(2 * mp.sqrt(2 / mp.pi) * (z + mp.mpf(0.044715) * z**3)),
    "mish": lambda z: z * mp.tanh(mp.log1p(mp.exp(z))),
    "elu": lambda z: z if z >= 0 else mp.expm1(z),
    "elu(alpha=0.625)": lambda z: z if z >= 0 else 0.625 * mp.expm1(z),
    "selu": selu,
}


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def reference(name: str, z: float, order: int, side: int = RIGHT, digits: int = 30) -> Any:
    with mp.workdps(digits):
        point = mp.mpf(z)
        return mp.diff(REFERENCES[name], point, order, direction=side) if order else REFERENCES[name](point)


def test_every_member_has_a_reference() -> None:
    covered = {label.partition("(")[0] for label in REFERENCES}
    assert covered == set(catalogue())


@pytest.mark.parametrize("name", REFERENCES)
def test_derivatives_at_random_points_and_zero(name: str) -> None:
    points = np.concatenate([2.0 * np.random.default_rng(7).normal(size=7), [0.0, 1e-8, -1e-4, 5.0, -5.0]])
    act = activation(name)
    for order in range(7):
        expected = np.array([float(reference(name, z, order)) for z in points])
        scale = float(np.max(np.abs(expected)))
        np.testing.assert_allclose(act.derivative(points, order), expected, rtol=1e-13, atol=1e-14 * scale)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "swish", "gelu", "mish", "gelu_tanh", "softsign", "erf"])
def test_high_orders(name: str) -> None:
    points = np.array([-2.3, -0.9, 0.0, 0.4, 1.7])
    act = activation(name)
    for order in (7, 8, 9, 10):
        expected = np.array([float(reference(name, z, order)) for z in points])
        scale = float(np.max(np.abs(expected)))
        np.testing.assert_allclose(act.derivative(points, order), expected, rtol=1e-11, atol=1e-13 * scale)


EXPONENTIAL_TAILS = [
    (name, z) for name in ("sigmoid", "tanh", "softplus", "swish", "mish") for z in (-30.0, 30.0)
]
GAUSSIAN_TAILS = [(name, z) for name in ("erf", "gelu", "gelu_tanh") for z in (-14.0, 14.0)]


@pytest.mark.slow(after=10)
@pytest.mark.parametrize(("name", "z"), EXPONENTIAL_TAILS + GAUSSIAN_TAILS)
def test_relative_accuracy_in_the_tails(name: str, z: float) -> None:
    act = activation(name)
    for order in range(6):
        exact = reference(name, z, order, digits=160)
        assert float(abs(act.derivative(z, order) / exact - 1)) < 2e-14


def test_tanh_prime_at_twenty_keeps_its_digits() -> None:
    exact = 1.69934170211664e-17  # sech(20)^2
    assert float(activation("tanh").derivative(20.0)) == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize("name", REFERENCES)
def test_no_trouble_far_out(name: str) -> None:
    points = np.array([-1e3, -300.0, 745.0, 1e3])
    act = activation(name)
    for order in range(act.max_order + 1):
        values = act.derivative(points, order)
        assert np.isfinite(values).all()
        if order < 6:
            expected = np.array([float(reference(name, z, order, digits=30)) for z in points])
            np.testing.assert_allclose(values, expected, rtol=1e-12, atol=1e-25)
        assert np.isfinite(act.derivative(points.astype(np.float32), order)).all()


@pytest.mark.parametrize("name", [name for name in REFERENCES if activation(name).kinks])
def test_jumps_are_differences_of_one_sided_derivatives(name: str) -> None:
    (kink,) = activation(name).kinks
    assert kink.location == 0.0
    for order in range(8):
        if order == 0:
            below, above = (reference(name, step, 0) for step in (-1e-30, 0.0))
        else:
            below, above = (_one_sided(name, order, side) for side in (LEFT, RIGHT))
        assert kink.jump(order) == pytest.approx(float(above - below), rel=1e-13, abs=1e-20)


def _one_sided(name: str, order: int, side: int) -> Any:
    """Differences that start a hair away from 0, so that they never touch the value at 0."""
    with mp.workdps(60):
        return mp.diff(REFERENCES[name], mp.mpf(side) * mp.mpf(10) ** -50, order, direction=side)


@pytest.mark.parametrize("name", REFERENCES)
def test_float32_is_the_same_function_in_float32(name: str) -> None:
    points = np.linspace(-6.0, 6.0, 41, dtype=np.float32)
    act = activation(name)
    for order in range(6):
        single = act.derivative(points, order)
        double = act.derivative(points.astype(np.float64), order)
        assert single.dtype == np.float32
        np.testing.assert_allclose(
            single, double, rtol=1e-4, atol=2e-5 * max(1.0, float(np.abs(double).max()))
        )
