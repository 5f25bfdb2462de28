"""P, Q, R, S, T, U of the second layer, exact at any width, against derivatives of random networks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

X = np.array([[1.0, 0.5], [-0.4, 1.1]])
WIDTH, RATE_B, RATE_W = 3, (0.5, 0.3), (1.0, 0.7)
C_B, C_W = (0.1, 0.2), (1.3, 1.5)
DERIVATIVES = {
    "tanh": (
        np.tanh,
        lambda z: 1 - np.tanh(z) ** 2,
        lambda z: -2 * np.tanh(z) * (1 - np.tanh(z) ** 2),
        lambda z: (1 - np.tanh(z) ** 2) * (6 * np.tanh(z) ** 2 - 2),
    ),
    "sin": (np.sin, np.cos, lambda z: -np.sin(z), lambda z: -np.cos(z)),
    "relu": (lambda z: np.maximum(z, 0), lambda z: 1.0 * (z > 0), np.zeros_like, np.zeros_like),
}


class Networks:
    """Many networks of two layers and two outputs; a leg is (output, input), g its gradient times the rates.

    ``s[k]`` (draws, hidden, inputs) are derivatives of the hidden neurons. Moving the parameters along g of a leg
    moves the hidden preactivation of input a by Theta_{a b} W_{i j} s'_{j b}: all that the chain rule needs.
    """

    def __init__(self, name: str, draws: int, seed: int) -> None:
        source = np.random.default_rng(seed)
        gram = X @ X.T / 2
        root = np.linalg.cholesky(C_B[0] + C_W[0] * gram)
        hidden = source.standard_normal((draws, WIDTH, 2)) @ root.T
        self.s = [f(hidden) for f in DERIVATIVES[name]]
        self.W = source.standard_normal((draws, 2, WIDTH)) * np.sqrt(C_W[1] / WIDTH)
        self.z = np.sqrt(C_B[1]) * source.standard_normal((draws, 2, 1)) + self.W @ self.s[0]
        self.Theta, self.rate = RATE_B[0] + RATE_W[0] * gram, RATE_W[1] / WIDTH

    def moved(self, a: int, leg: tuple[int, int]) -> np.ndarray:
        """The hidden preactivations of input a, along g of a leg: (draws, hidden)."""
        i, b = leg
        return self.Theta[a, b] * self.W[:, i] * self.s[1][..., b]

    def derivative(self, leg: tuple[int, int], *along: tuple[int, int]) -> np.ndarray:
        """D^k z of a leg along g of k others."""
        i, a = leg
        moves = [self.moved(a, other) for other in along]
        total = (self.W[:, i] * self.s[len(along)][..., a] * np.prod(moves, axis=0)).sum(axis=1)
        for k, (j, b) in enumerate(along):
            if i == j:
                rest = np.prod(moves[:k] + moves[k + 1 :], axis=0)
                total = total + self.rate * (self.s[0][..., b] * self.s[len(along) - 1][..., a] * rest).sum(
                    axis=1
                )
        return total

    def second(self, *legs: tuple[int, int]) -> np.ndarray:
        """The second differential of the second kind: u_13 . lambda u_24, u_ac the Hessian of z_a times g_c."""
        one, two, three, four = legs

        def bend(leg: tuple[int, int], along: tuple[int, int]) -> np.ndarray:
            (i, a), (j, c) = leg, along
            direct = self.rate * self.s[0][..., c] * self.s[1][..., a] if i == j else 0.0
            return self.W[:, i] * self.s[2][..., a] * self.moved(a, along) + direct

        total = self.Theta[one[1], two[1]] * (bend(one, three) * bend(two, four)).sum(axis=1)
        if one[0] == two[0]:
            left, right = (
                self.s[1][..., leg[1]] * self.moved(leg[1], to) for leg, to in ((one, three), (two, four))
            )
            total = total + self.rate * (left * right).sum(axis=1)
        return total


def samples(nets: Networks, name: str, e: int, f: int, g: int, h: int) -> np.ndarray:
    """n times what has the mean of one entry, in stored order, by the outputs that single it out."""
    found: Any = {
        "P": lambda: nets.derivative((0, e), (1, f), (1, g)) * nets.z[:, 0, h],
        "Q": lambda: nets.derivative((0, e), (0, f), (1, g)) * nets.z[:, 1, h],
        "R": lambda: nets.derivative((0, e), (0, f), (1, g), (1, h)),
        "S": lambda: nets.second((0, e), (0, f), (1, g), (1, h)),
        "T": lambda: nets.second((0, e), (1, h), (0, f), (1, g)),  # stored as 1, 3, 4, 2
        "U": lambda: nets.second((0, e), (1, g), (1, h), (0, f)),  # stored as 1, 4, 2, 3
    }
    return WIDTH * np.asarray(found[name]())


@pytest.mark.statistical
@pytest.mark.parametrize(("activation", "names"), [("tanh", "PQRSTU"), ("sin", "PQRSTU"), ("relu", "PQ")])
def test_second_layer_is_exact_at_any_width(activation: str, names: str) -> None:
    """Width 3: errors of the mean about 1 % of the largest entry; all entries within their standard errors."""
    draws = 60_000
    nets = Networks(activation, draws, seed=7)
    net = MLP(activation, depth=2, width=WIDTH, C_b=C_B, C_W=C_W, lambda_b=RATE_B, lambda_W=RATE_W)
    found = flow(net, X, list(names), kinks="almost_everywhere")
    for name in names:
        theory, pulls = found[name].values[-1], []
        for places in np.ndindex(2, 2, 2, 2):
            values = samples(nets, name, *places)
            error = values.std() / np.sqrt(draws)
            if error == 0:
                assert theory[places] == 0
                continue
            assert error < 0.05 * np.abs(theory).max()
            pulls.append((values.mean() - theory[places]) / error)
        bound = norm.isf(0.5 * (1 - 0.99 ** (1 / 16)))
        assert not pulls or (np.abs(pulls).max() < bound and np.sqrt(np.mean(np.square(pulls))) < 2.0), name
