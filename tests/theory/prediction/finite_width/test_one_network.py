"""One network from its differentials: against the update equations iterated, and against really trained networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.support.errors import InputError
from foretrain.theory.prediction.algorithms import Descent, GradientFlow
from foretrain.theory.prediction.finite_width import OneNetwork

SAMPLES, TRAINED, OUTPUTS = 3, 2, 2


class Given:
    """Random outputs and kernels of a network with two outputs, on three samples, two of them trained on."""

    def __init__(self, seed: int = 3) -> None:
        rng, legs = np.random.default_rng(seed), SAMPLES * OUTPUTS
        root = rng.normal(size=(legs, 2 * legs))
        self.H = root @ root.T / legs
        self.dH = _symmetric(rng.normal(size=(legs,) * 3), [(0, 1, 2), (0, 2, 1)])
        after = [(1, 2, 3), (1, 3, 2), (2, 1, 3), (2, 3, 1), (3, 1, 2), (3, 2, 1)]
        self.dd_I = _symmetric(rng.normal(size=(legs,) * 4), [(0, *order) for order in after])
        self.dd_II = _symmetric(rng.normal(size=(legs,) * 4), [(0, 1, 2, 3), (1, 0, 3, 2)])
        self.z, self.y = rng.normal(size=(SAMPLES, OUTPUTS)), rng.normal(size=(TRAINED, OUTPUTS))

    def network(self, size: float) -> OneNetwork:
        parts = [_by_sample(size * part) for part in (self.dH, self.dd_I, self.dd_II)]
        return OneNetwork.of(self.z, self.y, _by_sample(self.H), *parts)

    def states(self, size: float, eta: float, time: int | None) -> tuple[np.ndarray, ...]:
        """Predicted outputs, kernel and differential."""
        found = self.network(size).trained(Descent(eta, time))
        return found.outputs, found.ntk, found.dntk

    def iterated(self, size: float, eta: float, steps: int) -> tuple[np.ndarray, ...]:
        """(∞.81)-(∞.83): outputs, kernel and differential after steps, by the update equations themselves."""
        z, H, dH = self.z.ravel(), self.H, size * self.dH
        dd_I, dd_II, A = size * self.dd_I, size * self.dd_II, slice(0, TRAINED * OUTPUTS)
        for _ in range(steps):
            e = z[A] - self.y.ravel()
            first, second = dH[:, :, A] @ e, (dd_I + dd_II)[..., A] @ e
            bent = dd_I[:, :, A, A] @ e @ e
            bilinear = dd_II[:, :, A, A] @ e @ e
            z = (
                z
                - eta * H[:, A] @ e
                + eta**2 / 2 * first[:, A] @ e
                - eta**3 / 6 * (dd_I[:, A, A, A] @ e @ e @ e)
            )
            H = H - eta * (first + first.T) + eta**2 / 2 * (bent + bent.T + 2 * bilinear)
            dH = dH - eta * (second + (dd_II[..., A] @ e).swapaxes(1, 2))
        return z.reshape(SAMPLES, OUTPUTS), _by_sample(H), _by_sample(dH)


def _symmetric(tensor: np.ndarray, orders: list[tuple[int, ...]]) -> np.ndarray:
    return np.asarray(sum(tensor.transpose(order) for order in orders) / len(orders))


def _by_sample(legs: np.ndarray) -> np.ndarray:
    """Axes of samples, then axes of outputs."""
    split = legs.reshape((SAMPLES, OUTPUTS) * legs.ndim)
    return split.transpose((*range(0, 2 * legs.ndim, 2), *range(1, 2 * legs.ndim, 2)))


def slopes(found: Any, size: float) -> list[np.ndarray]:
    """What is of first order in the differentials."""
    pairs = zip(found(size), found(-size), strict=True)
    return [(there - back) / (2 * size) for there, back in pairs]


@pytest.mark.parametrize("steps", [1, 2, 4, 600])
def test_steps_are_those_of_the_update_equations(steps: int) -> None:
    """Outputs, kernel and dNTK; 600 steps are the end of training, for which the closed form is used too."""
    given = Given()
    eta = 1.1 / given.network(0.0).rates.largest
    iterated = slopes(lambda size: given.iterated(size, eta, steps), 1e-6)
    for time in (steps, None) if steps > 100 else (steps,):
        predicted = slopes(lambda size, when=time: given.states(size, eta, when), 1e-6)
        for one, other in zip(predicted, iterated, strict=True):
            np.testing.assert_allclose(one, other, atol=2e-6 * np.abs(other).max())


def test_flow_is_the_limit_of_small_steps() -> None:
    given, time = Given(), 0.8
    exact = given.network(0.01).trained(GradientFlow(time))
    gaps = []
    for steps in (400, 800):
        near = given.network(0.01).trained(Descent(time / steps, steps))
        gaps.append(
            [np.abs(getattr(near, name) - getattr(exact, name)).max() for name in ("outputs", "ntk", "dntk")]
        )
    np.testing.assert_allclose(gaps[1], np.array(gaps[0]) / 2, rtol=0.02)
    assert max(gaps[1]) < 1e-2


def test_training_outputs_end_at_their_targets() -> None:
    given = Given()
    for algorithm in ("gradient_descent", "flow", "two_step"):
        found = given.network(0.05).trained(algorithm)
        np.testing.assert_allclose(found.outputs[:TRAINED], given.y, atol=1e-11)
        assert np.abs(found.outputs - found.free_outputs)[TRAINED:].max() > 1e-3


def test_two_steps_move_as_one_leap() -> None:
    """Kernels of the end are those of the one displacement -H^-1 eps, expanded as in (∞.6), (∞.9)."""
    given, A = Given(), slice(0, TRAINED * OUTPUTS)
    found = given.network(1.0).trained("two_step")
    a = np.linalg.solve(given.H[A, A], given.z.ravel()[A] - given.y.ravel())
    first, bent = given.dH[:, :, A] @ a, given.dd_I[:, :, A, A] @ a @ a
    kernel = given.H - first - first.T + (bent + bent.T) / 2 + given.dd_II[:, :, A, A] @ a @ a
    np.testing.assert_allclose(found.ntk, _by_sample(kernel), rtol=1e-9, atol=1e-9)


def test_without_second_differentials() -> None:
    given = Given()
    bare = OneNetwork.of(given.z, given.y, _by_sample(given.H), _by_sample(given.dH)).trained("flow")
    zero = np.zeros_like(_by_sample(given.dd_I))
    whole = OneNetwork.of(given.z, given.y, _by_sample(given.H), _by_sample(given.dH), zero, zero).trained(
        "flow"
    )
    np.testing.assert_array_equal(bare.outputs, whole.outputs)
    np.testing.assert_array_equal(bare.dntk, _by_sample(given.dH))


def gaps_after_training(width: int, seed: int) -> list[float]:
    """How far a really trained network ends from a frozen kernel and from (∞.141): outputs, then kernels."""
    torch = pytest.importorskip("torch")
    from foretrain.compare.build import build, parameter_groups

    x, y = torch.tensor([(-0.1, -0.7), (2.1, 0.25), (-1.2, -0.95)]).double(), np.array([(-0.3,), (1.6,)])
    mlp = ft.MLP("sin", 2, width, n_in=2, C_b=0.1, C_W=1.3, lambda_b=0.5)
    network = build(mlp, seed=seed)
    groups = parameter_groups(network, mlp, 1.0)
    H, dH, second = (find(network, x, rates=groups) for find in (ft.ntk, ft.dntk, ft.ddntk))
    kernels = [np.asarray(part) for part in (H, dH, second.dd_I, second.dd_II)]
    one = OneNetwork.of(network(x).detach().numpy(), y, *kernels)
    eta = 0.9 * one.rates.best
    optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta))
    for _ in range(60):
        optimizer.zero_grad()
        (0.5 * ((network(x[:2]) - torch.tensor(y)) ** 2).sum()).backward()
        optimizer.step()
    end, found = network(x).detach().numpy()[2], one.trained(Descent(eta))
    kernel = np.asarray(ft.ntk(network, x, rates=groups))
    pairs = [(end, found.free_outputs[2]), (end, found.outputs[2]), (kernel, kernels[0]), (kernel, found.ntk)]
    return [float(np.abs(one - other).max()) for one, other in pairs]


def test_really_trained_networks() -> None:
    """The prediction from differentials misses far less than a frozen kernel, and relatively less at larger width."""
    gaps = {
        width: np.mean([gaps_after_training(width, seed) for seed in range(3)], axis=0)
        for width in (64, 1024)
    }
    misses = {width: (gap[1] / gap[0], gap[3] / gap[2]) for width, gap in gaps.items()}
    assert max(misses[64]) < 0.5
    assert max(misses[1024]) < 0.2
    assert misses[1024][0] < misses[64][0] / 2
    assert misses[1024][1] < misses[64][1] / 2


def test_bad_input() -> None:
    given = Given()
    H, dH = _by_sample(given.H), _by_sample(given.dH)
    with pytest.raises(InputError, match=r"dntk .*\(3, 3, 3, 2, 2, 2\)"):
        OneNetwork.of(given.z, given.y, H, H)
    with pytest.raises(InputError, match="training samples come first"):
        OneNetwork.of(given.z[:1], given.y, H, dH)
    with pytest.raises(InputError, match=r"2 / lambda_max"):
        given.network(1.0).trained(Descent(10.0))
    flat = OneNetwork.of(given.z, given.y, np.zeros_like(H), dH)
    with pytest.raises(InputError, match="leave out repeated samples"):
        flat.trained("flow")
    assert "A network before training" in repr(given.network(1.0))
    assert "free_outputs" in repr(given.network(0.1).trained("flow"))
