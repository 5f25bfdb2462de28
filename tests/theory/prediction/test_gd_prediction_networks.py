"""Real networks of finite width, trained in a few lines of numpy, beside the predictions at infinite width."""

from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.theory.prediction.infinite_width import GradientDescent, expected_loss, hidden_update

X = 1.3 * np.array([(1, 0.2, -0.5), (-0.4, 1.1, 0.3), (0.1, -0.6, 1.2), (0.8, 0.7, 0.1), (-0.9, 0.3, 0.8)])
Y = np.array([(1, -0.5), (-0.7, 0.8), (0.4, 1.2)])
Y_TEST = np.array([(0.3, 0.1), (-0.2, 1.0)])
C_B, C_W, L_B, L_W = [0.1, 0.1, 0.05], [1.2, 1.3, 1.0], [0.2, 0.3, 0.1], [0.6, 0.8, 0.5]


class ThreeLayers:
    """Many networks 3 -> n -> n -> outputs at once: W[l] (draws, out, in), b[l] (draws, out, 1)."""

    def __init__(self, act: ft.Activation, width: int, draws: int, outputs: int, seed: int) -> None:
        rng, sizes = np.random.default_rng(seed), [X.shape[1], width, width, outputs]
        self.act, self.sizes = act, sizes
        self.W = [
            rng.normal(size=(draws, sizes[i + 1], sizes[i])) * np.sqrt(C_W[i] / sizes[i]) for i in range(3)
        ]
        self.b = [rng.normal(size=(draws, sizes[i + 1], 1)) * np.sqrt(C_B[i]) for i in range(3)]

    def forward(self, inputs: np.ndarray) -> tuple[list[np.ndarray], list[np.ndarray]]:
        """Preactivations, and what enters every layer."""
        signal, z, incoming = inputs.T[None], [], []
        for W, b in zip(self.W, self.b, strict=True):
            incoming.append(signal)
            z.append(W @ signal + b)
            signal = self.act.value(z[-1])
        return z, incoming

    def step(self, targets: np.ndarray, eta: float, layers: range = range(3)) -> None:
        """One step of full-batch gradient descent on half the sum of squares."""
        z, incoming = self.forward(X[: len(targets)])
        error, changes = z[2] - targets.T, {}
        for i in (2, 1, 0):
            changes[i] = error @ np.swapaxes(incoming[i], 1, 2), error.sum(axis=2, keepdims=True)
            if i:
                error = (np.swapaxes(self.W[i], 1, 2) @ error) * self.act.derivative(z[i - 1])
        for i in layers:
            self.W[i] = self.W[i] - eta * L_W[i] / self.sizes[i] * changes[i][0]
            self.b[i] = self.b[i] - eta * L_B[i] * changes[i][1]


def theory(act: str, width: int) -> ft.MLP:
    return ft.MLP(act, 3, width, n_out=2, C_b=C_B, C_W=C_W, lambda_b=L_B, lambda_W=L_W)


@pytest.mark.statistical
def test_trained_networks_have_the_predicted_mean_and_covariance() -> None:
    """After 3 steps and at the end; finite width shifts means by less than 1 / n, variances by less than 0.4 / n."""
    width, draws = 128, 800
    training = GradientDescent.of(theory("tanh", width), X[:3], Y, X[3:])
    networks = ThreeLayers(ft.activation("tanh"), width, draws, 2, seed=11)
    eta, found = training.rates.best, {}
    for step in range(1, 41):
        networks.step(Y, eta)
        if step in (3, 40):
            found[step] = np.swapaxes(networks.forward(X)[0][2], 1, 2)
    assert np.abs(found[40][:, :3] - Y).max() < 0.1
    for step, law in ((3, training.at_step(3)), (40, training.end())):
        z = found[step][:, 3:]
        assert law.standard_deviation is not None
        spread = law.standard_deviation.values
        assert (np.abs(z.mean(axis=0) - law.mean.values) < 4 * spread[:, None] / draws**0.5 + 1 / width).all()
        gaps = z - z.mean(axis=0)
        covariance = np.einsum("dbi,dci->bc", gaps, gaps) / (2 * (draws - 1))
        error = np.sqrt((np.outer(spread**2, spread**2) + law.covariance.values**2) / (2 * draws))
        assert (np.abs(covariance - law.covariance.values) < 4 * error + 0.4 / width).all()
        losses = np.sum((z - Y_TEST) ** 2, axis=(1, 2)) / 2
        expected = expected_loss(law, Y_TEST)
        assert abs(losses.mean() - expected.total) < 4 * losses.std() / draws**0.5 + 1 / width


@pytest.mark.statistical
@pytest.mark.parametrize("act", ["relu", "gelu"])
def test_last_hidden_layer_moves_as_predicted(act: str) -> None:
    """First-order change of layer 2 by differences; the printed covariance lacks the variance of the kernel."""
    width, draws, tiny = 150, 1200, 1e-5
    networks = ThreeLayers(ft.activation(act), width, draws, 2, seed=12)
    before = networks.forward(X)[0][1]
    networks.step(Y, tiny)
    change = (networks.forward(X)[0][1] - before) / tiny
    law = hidden_update(theory(act, width), X[:3], Y, X[3:])
    mean = change.mean(axis=(0, 1))
    error = change.mean(axis=1).std(axis=0) / draws**0.5
    assert (np.abs(mean - law.mean) < 4 * error + 3 * np.abs(law.mean) / width).all()
    square = np.mean(change**2, axis=1)
    size, noise = square.mean(axis=0), square.std(axis=0) / draws**0.5
    exact, printed = np.diagonal(law.covariance), np.diagonal(law.covariance_without_ntk_variance)
    assert (np.abs(size - exact) < 4 * noise + 6 * exact / width).all()
    assert (size > printed + 4 * noise).all()
