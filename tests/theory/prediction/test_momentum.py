"""Steps with momentum at infinite width: explicit steps, powers over millions of them, rates, the end, bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from trained_network import TANH, X, Y

import foretrain as ft
from foretrain.support.errors import InputError
from foretrain.theory.prediction.algorithms import Descent, GradientFlow, LearningRates
from foretrain.theory.prediction.infinite_width import GradientDescent
from foretrain.theory.prediction.infinite_width.gradient_descent import undone_by_steps
from foretrain.theory.prediction.infinite_width.other_losses import check_step

DATA = (X[:3], Y, X[3:])
KINDS = [(0.0, False), (0.5, False), (0.9, False), (0.9, True), (0.99, False)]
DOUBLE = (1 - 0.9**0.5) ** 2  # eta w where the two roots of momentum 0.9 meet


def errors_left(w: np.ndarray, eta: float, steps: int, m: float, nesterov: bool) -> np.ndarray:
    """What is left of a unit error, step after step as torch.optim.SGD makes them."""
    e, v = np.ones_like(w), np.zeros_like(w)
    for _ in range(steps):
        v = m * v + e
        e = e - eta * w * (e + m * v if nesterov else v)
    return e


def radius(w: float, eta: float, m: float, nesterov: bool) -> float:
    """By how much a step shrinks what is left in the long run: a root of the step of (error, velocity)."""
    factor = 1 + m if nesterov else 1.0
    memory = m * m if nesterov else m
    step = np.array([[1 - eta * w * factor, -eta * w * memory], [1.0, m]])
    return float(np.abs(np.linalg.eigvals(step)).max())


@pytest.mark.parametrize(("m", "nesterov"), KINDS)
@pytest.mark.parametrize("steps", [0, 1, 2, 7, 64, 1001])
def test_powers_are_the_steps_one_by_one(m: float, nesterov: bool, steps: int) -> None:
    descent = Descent(0.8, steps, m, nesterov)
    w = np.array([1e-9, 1e-3, DOUBLE / 0.8, 0.3, 1.0, 0.999 * 2 * descent.stretch / 0.8])
    left = errors_left(w, 0.8, steps, m, nesterov)
    np.testing.assert_allclose(1 - w * undone_by_steps(w, descent), left, rtol=1e-12, atol=1e-12)


def test_slow_directions_keep_their_digits_over_millions_of_steps() -> None:
    """Along w with eta w << 1 the slower root is 1 - d, d = eta w / (1 - m) to leading order, and alone survives."""
    eta, m, steps = 0.5, 0.9, 10_000_000
    w = np.array([1e-13, 1e-10, 1e-8, 1e-7])
    a, gap = eta * w, 1 - m + eta * w
    root = np.sqrt(gap**2 - 4 * a)
    slow = 2 * a / (gap + root)
    share = (gap / 2 + root / 2 - a) / root  # of the start in the slower root
    done = 1 - share + share * -np.expm1(steps * np.log1p(-slow))
    # 1 - share is of order a, known to rounding of 1: what is compared is of order steps * a.
    np.testing.assert_allclose(undone_by_steps(w, Descent(eta, steps, m)), done / w, rtol=2e-10)
    assert undone_by_steps(np.zeros(1), Descent(eta, steps, m)) == pytest.approx(
        eta * steps / (1 - m), rel=1e-5
    )


def test_without_momentum_it_is_the_power_of_a_number() -> None:
    w = np.array([1e-9, 0.1, 0.7, 0.99])
    np.testing.assert_allclose(
        undone_by_steps(w, Descent(1.0, 300)), -np.expm1(300 * np.log1p(-w)) / w, rtol=1e-12
    )


@pytest.mark.parametrize(("m", "nesterov"), KINDS)
def test_largest_rates_are_where_steps_stop_converging_and_the_best_is_best(m: float, nesterov: bool) -> None:
    rates = LearningRates(0.02, 1.7)
    limit = Descent(momentum=m, nesterov=nesterov).stretch * rates.limit
    assert radius(1.7, limit * (1 - 1e-6), m, nesterov) < 1 < radius(1.7, limit * (1 + 1e-6), m, nesterov)
    with pytest.raises(InputError, match=f"{limit:.6g}: give a smaller"):
        Descent(limit, momentum=m, nesterov=nesterov).rate(rates)
    best = Descent(momentum=m, nesterov=nesterov).rate(rates)
    slowest = [
        max(radius(w, eta, m, nesterov) for w in rates) for eta in best * np.array([1.0, 0.7, 0.99, 1.01])
    ]
    if nesterov:
        assert slowest[0] < 1
    else:
        assert slowest[0] <= min(slowest[1:]) + 1e-12


@pytest.mark.parametrize(("m", "nesterov"), KINDS[1:4])
def test_predictions_are_the_iteration_of_all_networks_outputs(m: float, nesterov: bool) -> None:
    """The map z(0) -> z(t) is affine: iterate it on a basis, then push N(0, K) through it."""
    flow = ft.flow(TANH, X, ["K", "Theta"])
    K, Theta = flow["K"].values[-1], flow["Theta"].values[-1]
    z = np.concatenate([np.eye(5), np.zeros((5, 2))], axis=1)
    targets, v = np.concatenate([np.zeros((3, 5)), Y], axis=1), np.zeros((3, 7))
    for _ in range(9):
        error = z[:3] - targets
        v = m * v + error
        z = z - 0.3 * Theta[:, :3] @ (error + m * v if nesterov else v)
    M = z[3:, :5]
    way = Descent(0.3, 9, m, nesterov)
    found = ft.predict(TANH, *DATA, algorithm=way)
    np.testing.assert_allclose(found.mean, z[3:, 5:], atol=1e-12)
    np.testing.assert_allclose(found.covariance, M @ K @ M.T, atol=1e-12)
    if not nesterov:
        named = ft.predict(TANH, *DATA, eta=0.3, time=9, momentum=m)
        np.testing.assert_array_equal(named.mean, found.mean)
        assert f"after 9 steps at eta 0.3 with momentum {m:g}" in repr(named)


def test_all_ends_are_one() -> None:
    end = ft.predict(TANH, *DATA)
    for options in (
        {"momentum": 0.9},
        {"momentum": 0.9, "time": 3000},
        {"momentum": 0.5, "eta": 2.0, "time": 900},
    ):
        other = ft.predict(TANH, *DATA, **options)  # type: ignore[arg-type]
        np.testing.assert_allclose(other.mean, end.mean, atol=1e-12)
        np.testing.assert_allclose(other.covariance, end.covariance, atol=1e-12)


def test_small_steps_follow_the_flow_at_eta_over_one_minus_momentum() -> None:
    """As the refusal of momentum in the flow says; the gap is of first order in eta."""
    training = GradientDescent.of(TANH, *DATA)
    flow = training.after(GradientFlow(1.0, 0.5 / (1 - 0.6))).mean.values
    gaps = [np.abs(training.after(Descent(0.5 / n, n, 0.6)).mean.values - flow).max() for n in (400, 800)]
    assert gaps[0] < 0.01
    assert gaps[0] / gaps[1] == pytest.approx(2, rel=0.02)


def test_cross_entropy_with_momentum_is_stepped() -> None:
    task: Any = (TANH.replace(n_out=3), X[:3], [2, 0, 1], X[3:])
    options: Any = {"loss": "cross_entropy", "draws": 60, "momentum": 0.9}
    found = ft.predict(*task, **options, eta=0.01, time=400)
    flow = ft.predict(*task, loss="cross_entropy", draws=60, algorithm="flow", eta=0.1, time=400)
    np.testing.assert_allclose(found.mean, flow.mean, atol=0.05)
    assert np.abs(found.mean).max() > 1
    soft, plain = (
        ft.predict(*task, loss="cross_entropy", label_smoothing=0.2, momentum=m).mean for m in (0.9, 0.0)
    )
    np.testing.assert_array_equal(soft, plain)
    kernels = GradientDescent.of(TANH, *DATA).kernels
    largest = np.linalg.eigvalsh(kernels.Theta_train)[-1]
    assert check_step(kernels, Descent(7.5 / largest, momentum=0.9)) == pytest.approx(7.5 / largest)
    with pytest.raises(InputError, match=r"7\.6 / lambda_max"):
        check_step(kernels, Descent(7.7 / largest, momentum=0.9))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"momentum": 1.0}, "momentum is 1"),
        ({"momentum": -0.1}, "momentum is -0.1"),
        ({"momentum": "much"}, "momentum is 'much'"),
        ({"momentum": 0.9, "eta": 3.0}, r"2 \(1 \+ momentum\) / lambda_max = 2\.9"),
        ({"momentum": 0.9, "eta": 3.0, "time": 5}, r"2 \(1 \+ momentum\) / lambda_max"),
        ({"momentum": 0.9, "algorithm": "flow", "time": 1.0}, r"the flow at the rate eta / \(1 - m\)"),
        ({"momentum": 0.9, "algorithm": "newton"}, "momentum is for algorithm='gradient_descent'"),
        ({"momentum": 0.9, "algorithm": Descent(0.1)}, "leave eta, time and momentum out"),
        ({"momentum": 0.9, "learner": "bayes"}, "time and momentum out"),
        ({"momentum": 0.9, "regime": "finite"}, "momentum is known at infinite width only"),
    ],
)
def test_bad_input(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        ft.predict(TANH, *DATA, **change)


def test_momentum_of_nesterov_needs_momentum() -> None:
    with pytest.raises(InputError, match="nesterov is a kind of momentum"):
        Descent(0.1, 3, nesterov=True)
    with pytest.raises(InputError, match=r"2 \(1 \+ momentum\) / \(\(1 \+ 2 momentum\) lambda_max\)"):
        ft.predict(TANH, *DATA, algorithm=Descent(2.0, 3, 0.9, nesterov=True))
