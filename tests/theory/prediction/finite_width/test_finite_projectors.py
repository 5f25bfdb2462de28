"""Projectors of training algorithms, against the printed expressions, closed cases and explicit sums over steps."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import InputError
from foretrain.theory.prediction import nearly_kernel
from foretrain.theory.prediction.algorithms import Clock, Descent, Newton, named_algorithm
from foretrain.theory.prediction.finite_width import Projectors, algorithm_projectors

VALUES = np.array([0.3, 0.9, 2.5])
ETA = 0.6
NAMES = ("A", "B", "IA", "IB", "IIA", "IIB")


def printed(values: np.ndarray, eta: float) -> dict[str, np.ndarray]:
    """(∞.135), (∞.138)-(∞.147) letter by letter, with eta = 0 for the flow (∞.149)-(∞.153)."""
    a, b, c = values[:, None, None], values[None, :, None], values[None, None, :]
    x = lambda a, b: 1 / (a + b - eta * a * b)  # noqa: E731
    xxx = 1 / (a + b + c - eta * (a * b + a * c + b * c) + eta**2 * a * b * c)
    Y_1, Y_4 = (x(a, b) - xxx) / c, x(b, c) / a - x(b, c) * xxx
    Y_3 = 1 / (a * b * c) - x(a, b) / (b * c) - x(b, c) / (a * c) + x(b, c) * xxx / c
    p, q = values[:, None], values[None, :]
    Y_2 = 1 / (p * q) - x(p, q) / q
    exchanged = Y_3.transpose(1, 0, 2) + Y_3.transpose(0, 2, 1)
    return {
        "A": Y_2,
        "B": Y_2 + eta / 2 * x(p, q),
        "IA": -Y_3 - eta / 2 * Y_4,
        "IB": -Y_3 - eta / 2 * (Y_4 + Y_1) - eta**2 / 6 * xxx,
        "IIA": -Y_3,
        "IIB": -Y_3 - exchanged - eta * Y_4 - eta * Y_1,
    }


@pytest.mark.parametrize(("algorithm", "eta"), [("gradient_descent", ETA), ("flow", None)])
def test_projectors_are_the_printed_ones(algorithm: str, eta: float | None) -> None:
    found, expected = (
        algorithm_projectors(named_algorithm(algorithm, eta), VALUES),
        printed(VALUES, eta or 0.0),
    )
    for name in NAMES:
        np.testing.assert_allclose(getattr(found, name), expected[name], rtol=1e-11, err_msg=name)


def test_one_sample() -> None:
    """(∞.168), (∞.169)."""
    H, eta = 1.7, 0.4
    flow = algorithm_projectors("flow", [H])
    for name, value in zip(NAMES, (1 / 2, 1 / 2, -1 / 6, -1 / 6, -1 / 6, -1 / 2), strict=True):
        power = 2 if name in ("A", "B") else 3
        assert getattr(flow, name).item() == pytest.approx(value / H**power, rel=1e-14)
    steps = algorithm_projectors(Descent(eta), [H])
    assert steps.A.item() == pytest.approx((1 - eta * H) / (H**2 * (2 - eta * H)), rel=1e-13)
    assert steps.B.item() == pytest.approx(1 / (2 * H**2), rel=1e-13)


@pytest.mark.parametrize("eta", [0.05, 0.4, 0.79])
def test_symmetric_parts_do_not_depend_on_the_rate(eta: float) -> None:
    """That of Z_B is 1/(2ab), that of Z_IB -1/(6abc): what two-step training has."""
    steps, leap = (
        algorithm_projectors(Descent(eta), VALUES),
        algorithm_projectors("two_step", VALUES),
    )
    np.testing.assert_allclose(steps.B + steps.B.T, 2 * leap.B, rtol=1e-12)
    orders = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]
    np.testing.assert_allclose(sum(steps.IB.transpose(order) for order in orders), 6 * leap.IB, rtol=1e-12)
    assert not any(getattr(leap, name).any() for name in ("A", "IA", "IIA", "IIB"))


def test_the_first_two_are_those_of_quadratic_models() -> None:
    for algorithm, other in (
        ("gradient_descent", "gradient_descent"),
        ("flow", "flow"),
        ("two_step", "direct"),
    ):
        eta = ETA if algorithm == "gradient_descent" else None
        found, known = (
            algorithm_projectors(named_algorithm(algorithm, eta), VALUES),
            nearly_kernel.projectors(other, VALUES, eta),
        )
        np.testing.assert_allclose(found.A, known.A, rtol=1e-13)
        np.testing.assert_allclose(found.B, known.B, rtol=1e-13)


def test_slow_steps_are_the_flow() -> None:
    flow = algorithm_projectors("flow", VALUES)
    gaps = []
    for eta in (1e-3, 1e-4):
        steps = algorithm_projectors(Descent(eta), VALUES)
        gaps.append(max(np.abs(getattr(steps, name) / getattr(flow, name) - 1).max() for name in NAMES))
    assert gaps[0] < 1e-2
    assert gaps[1] == pytest.approx(gaps[0] / 10, rel=0.05)


def test_sums_are_those_over_steps() -> None:
    """Equal rates too, and the rate of the output that is looked at."""
    steps, a, b, c = 7, 0.9, 0.9, 1.7
    clock = Clock(ETA, steps)
    x, y, z, out = (1 - ETA * w for w in (a, b, c, 0.4))
    three = sum(
        out ** (steps - 1 - s) * x**s * y**u * z**v for s in range(steps) for u in range(s) for v in range(u)
    )
    rates = np.array(a), clock.together(np.array(a), np.array(b))
    all_three = clock.together(np.array(a), np.array(b), np.array(c))
    assert float(clock.nested(0.4, *rates, all_three)) == pytest.approx(ETA**3 * three, rel=1e-12)
    plain = sum(out ** (steps - 1 - s) * x**s for s in range(steps))
    assert float(clock.sums(0.4, np.array(a))) == pytest.approx(ETA * plain, rel=1e-13)


def test_flow_is_the_limit_of_many_steps() -> None:
    time, rates = 1.3, (np.array(0.9), np.array(1.4), np.array(2.0))
    exact = float(Clock(0.0, time).nested(0.2, *rates))
    errors = [float(Clock(time / n, n).nested(0.2, *rates)) - exact for n in (2000, 4000)]
    assert abs(errors[0]) < 2e-3 * exact
    assert errors[1] == pytest.approx(errors[0] / 2, rel=0.01)


def test_long_times_are_the_end() -> None:
    for algorithm, eta, time in (("gradient_descent", ETA, 400), ("flow", None, 300.0)):
        end, late = (named_algorithm(algorithm, eta, when).plan(VALUES).course() for when in (None, time))
        np.testing.assert_allclose(late.mean, end.mean, rtol=1e-12)
        np.testing.assert_allclose(late.variance, end.variance, rtol=1e-12)
        for name in NAMES:
            np.testing.assert_allclose(
                getattr(late.projectors, name), getattr(end.projectors, name), rtol=1e-11
            )
        assert (
            np.abs(named_algorithm(algorithm, eta, time).plan(VALUES).course(0.3).projectors.IIB).max()
            < 1e-20
        )


def test_small_eigenvalues_cost_no_digits() -> None:
    """The printed differences would lose all of them."""
    tiny = 1e-9
    found = algorithm_projectors("flow", [tiny, 1.0])
    assert found.A[1, 0] == pytest.approx(1 / (1 + tiny), rel=1e-14)
    assert found.IIA[1, 0, 0] == pytest.approx(-1 / ((1 + tiny) * (1 + 2 * tiny)), rel=1e-14)


def test_bad_input() -> None:
    with pytest.raises(InputError, match=r"2 / lambda_max = 0\.8"):
        algorithm_projectors(Descent(0.8), VALUES)
    with pytest.raises(InputError, match="did you mean 'two_step'"):
        algorithm_projectors("twostep", VALUES)
    with pytest.raises(InputError, match="positive numbers"):
        algorithm_projectors("flow", [0.0, 1.0])
    with pytest.raises(InputError, match="infinite width only"):
        algorithm_projectors(Newton(), VALUES)
    with pytest.raises(InputError, match="give one of"):
        algorithm_projectors(lambda values: values, VALUES)
    good = algorithm_projectors("flow", VALUES)
    wrong = Projectors(good.A, good.B, good.IA, good.IB, good.IIA, good.IIB[:2])
    with pytest.raises(InputError, match=r"IIB .*\(2, 3, 3\).*\(3, 3, 3\)"):
        algorithm_projectors(wrong, VALUES)
    assert "3 × 3 × 3 numbers" in repr(good)
