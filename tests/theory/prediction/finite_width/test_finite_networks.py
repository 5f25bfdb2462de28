"""Really trained networks beside the mean prediction: many at once in numpy, in antithetic pairs."""

from __future__ import annotations

import numpy as np
import pytest
from finite_width_values import RATES, X_TEST, X_TRAIN, Y, network

from foretrain.theory.prediction.algorithms import Descent
from foretrain.theory.prediction.finite_width import FiniteWidth

pytestmark = pytest.mark.statistical

X = np.concatenate([X_TRAIN, X_TEST])
OVERLAP = X @ X.T / 2
C_B, C_W, L_B, L_W = 0.1, 1.3, 0.5, 1.0


class TwoLayers:
    """Networks 2 -> n -> 1 with sin: pairs that differ in the sign of the output, so that odd moments cancel."""

    def __init__(self, width: int, pairs: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.width = width
        both = np.repeat(np.arange(pairs), 2)
        sign = np.tile([1.0, -1.0], pairs)
        self.W1 = (rng.normal(size=(pairs, width, 2)) * np.sqrt(C_W / 2))[both]
        self.b1 = (rng.normal(size=(pairs, width)) * np.sqrt(C_B))[both]
        self.W2 = (rng.normal(size=(pairs, width)) * np.sqrt(C_W / width))[both] * sign[:, None]
        self.b2 = (rng.normal(size=pairs) * np.sqrt(C_B))[both] * sign

    def outputs(self) -> np.ndarray:
        return np.einsum("sj,sja->sa", self.W2, np.sin(self._hidden())) + self.b2[:, None]

    def kernel(self) -> np.ndarray:
        hidden = self._hidden()
        value, slope = np.sin(hidden), self.W2[:, :, None] * np.cos(hidden)
        below = L_B + L_W * OVERLAP
        own = L_B + L_W / self.width * np.einsum("sja,sjb->sab", value, value, optimize=True)
        return own + below * np.einsum("sja,sjb->sab", slope, slope, optimize=True)

    def step(self, eta: float) -> None:
        hidden = self._hidden()[:, :, :2]
        value = np.sin(hidden)
        error = np.einsum("sj,sja->sa", self.W2, value) + self.b2[:, None] - Y[:, 0]
        back = np.cos(hidden) * self.W2[:, :, None] * error[:, None, :]
        self.W2 = self.W2 - eta * L_W / self.width * np.einsum("sja,sa->sj", value, error)
        self.b2 = self.b2 - eta * L_B * error.sum(axis=1)
        self.W1 = self.W1 - eta * L_W / 2 * back @ X_TRAIN
        self.b1 = self.b1 - eta * L_B * back.sum(axis=2)

    def _hidden(self) -> np.ndarray:
        return self.W1 @ X.T + self.b1[:, :, None]


def frozen(H: np.ndarray, z: np.ndarray, eta: float, steps: int | None) -> np.ndarray:
    """The test output of every network if its kernel stayed: z - H f(H_AA) (z_A - y)."""
    values, vectors = np.linalg.eigh(H[:, :2, :2])
    done = 1 / values if steps is None else (1 - (1 - eta * values) ** steps) / values
    error = np.einsum("sap,sa->sp", vectors, z[:, :2] - Y[:, 0]) * done
    return z[:, 2] - np.einsum("sa,sap,sp->s", H[:, 2, :2], vectors, error)


def first_order(H: np.ndarray, z: np.ndarray, eta: float, steps: int | None) -> np.ndarray:
    """What is linear in the scatter of H, whose mean over antithetic pairs is zero: taken out, it is no noise."""
    size, mean = 1e-4, H.mean(axis=0)
    moved = [frozen(mean + sign * size * (H - mean), z, eta, steps) for sign in (1, -1)]
    return (moved[0] - moved[1]) / (2 * size)


def estimate(values: np.ndarray, width: int) -> tuple[float, float]:
    """n times the mean over antithetic pairs, and its standard error."""
    pairs = width * values.reshape(-1, 2).mean(axis=1)
    return float(pairs.mean()), float(pairs.std(ddof=1) / np.sqrt(len(pairs)))


@pytest.mark.parametrize("steps", [3, None])
def test_trained_networks_have_the_predicted_mean(steps: int | None) -> None:
    """Interaction and kernel fluctuations apart, after three steps and at the end; at n = 256 what is left out is
    3 % of the interaction in size."""
    width, pairs, eta = 256, 3000, RATES["sin", 2]
    terms = FiniteWidth.of(network(width=width), X_TRAIN, Y, X_TEST).predict(Descent(eta, steps)).terms
    networks = TwoLayers(width, pairs, seed=21)
    z, H = networks.outputs(), networks.kernel()
    for _ in range(60 if steps is None else steps):
        networks.step(eta)
    free = frozen(H, z, eta, steps)
    mean, error = estimate(networks.outputs()[:, 2] - free, width)
    parts = [width * terms[name].item() for name in ("dntk", "ddntk_1", "ddntk_2")]
    left_out = 0.03 * sum(map(abs, parts))
    assert abs(mean - sum(parts)) < 3 * error + left_out
    assert error < 0.3 * max(map(abs, parts))
    around = frozen(np.broadcast_to(H.mean(axis=0), H.shape), z, eta, steps)
    mean, error = estimate(free - around - first_order(H, z, eta, steps), width)
    expected = width * terms["ntk_variance"].item()
    assert abs(mean - expected) < 3 * error + 0.03 * abs(expected)
    assert error < 0.2 * abs(expected)


def test_trained_networks_have_the_predicted_change_of_kernel() -> None:
    """In norm: what is left out falls as 1/n and is about 6 % at n = 256."""
    width, eta = 256, RATES["sin", 2]
    expected = FiniteWidth.of(network(width=width), X_TRAIN, Y, X_TEST).predict(Descent(eta)).ntk_change
    networks = TwoLayers(width, 3000, seed=22)
    before = networks.kernel()
    for _ in range(60):
        networks.step(eta)
    change = (networks.kernel() - before).reshape(-1, 2, 3, 3).mean(axis=1)
    noise = change.std(axis=0, ddof=1) / np.sqrt(len(change))
    size = np.linalg.norm(expected)
    assert np.linalg.norm(change.mean(axis=0) - expected[:, :, 0, 0]) < 3 * np.linalg.norm(noise) + 0.1 * size
    assert np.linalg.norm(noise) < 0.05 * size


def test_trained_networks_have_the_predicted_covariance() -> None:
    """What initial outputs, kernel fluctuations and interaction add to the variance, each with its standard error.

    u = [z] and l = -[H - Theta] Theta^-1 eps are known before training; the noisy mean of 2 u l is left out.
    """
    width, eta = 256, RATES["sin", 2]
    trained = FiniteWidth.of(network(width=width), X_TRAIN, Y, X_TEST)
    parts = width * trained.predict(Descent(eta)).covariance_correction
    kernels = trained.store.kernels
    inverse = np.linalg.inv(kernels.Theta_train)
    project = np.array([*(-(kernels.Theta_cross @ inverse)[0]), 1.0])
    networks = TwoLayers(width, 3000, seed=23)
    z, H = networks.outputs(), networks.kernel()
    u, fitted = z @ project, (z[:, :2] - Y[:, 0]) @ inverse
    rows = H[:, :, :2] - np.concatenate([kernels.Theta_train, kernels.Theta_cross])
    linear = -np.einsum("x,sxa,sa->s", project, rows, fitted)
    for _ in range(60):
        networks.step(eta)
    moved = networks.outputs()[:, 2] - u + project[:2] @ Y[:, 0]
    mean, error = estimate(linear**2, width)
    assert abs(mean - parts["ntk_variance"].item()) < 3 * error
    assert error < 0.05 * mean
    mean, error = estimate(2 * u * (moved - linear), width)
    expected = (parts["mean_response"] + parts["dntk_and_output"]).item()
    assert abs(mean - expected) < 3 * error + 0.05 * abs(expected)
    assert error < 0.2 * abs(mean)
