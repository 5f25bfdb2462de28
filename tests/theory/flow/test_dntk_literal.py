"""The recursions of P, Q, R, S, T, U written out with inverse kernels and plain quadrature, against ft.flow."""

from __future__ import annotations

import numpy as np

from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

X = np.array([[1, 0.5, -0.7], [0.2, -1.1, 0.9]])
WIDTHS = [11, 17, 8]
C_B, C_W = (0.1, 0.05, 0.2, 0.1), (1.0, 1.5, 1.3, 1.2)
RATE_B, RATE_W = (0.3, 0.2, 0.5, 0.1), (1.0, 0.7, 1.2, 0.5)


class Trapezoid:
    """Means over two Gaussian inputs of covariance K, in whitened variables."""

    def __init__(self, K: np.ndarray) -> None:
        u = np.arange(-9, 9.01, 0.08)
        weight = np.exp(-(u**2) / 2)
        self.weight = np.outer(weight, weight).ravel() / weight.sum() ** 2
        grid = np.stack(np.meshgrid(u, u, indexing="ij")).reshape(2, -1)
        z = np.linalg.cholesky(K) @ grid
        s = np.tanh(z)
        slope = 1 - s**2
        self.raised = np.linalg.inv(K) @ z
        self.derivatives = (s, slope, -2 * s * slope, slope * (6 * s**2 - 2))

    def __call__(self, *parts: tuple[int, int]) -> float:
        """The mean of s^(order) at inputs, for parts (order, input)."""
        return self.weighted(1.0, *parts)

    def weighted(self, more: np.ndarray | float, *parts: tuple[int, int]) -> float:
        values = np.prod([self.derivatives[order][place] for order, place in parts], axis=0)
        return float(np.sum(self.weight * values * more))

    def tilted(self, place: int, *parts: tuple[int, int]) -> float:
        """sum_i K^{place i} <z_i ...>."""
        return self.weighted(self.raised[place], *parts)


def literal_step(
    K: np.ndarray, Theta: np.ndarray, old: dict[str, np.ndarray], C: float, rate: float, r: float
) -> dict[str, np.ndarray]:
    """(8.79), (8.89), (11.49), (11.52), (∞.177), (∞.179)-(∞.181), one entry at a time, in stored order."""
    mean, new = Trapezoid(K), {name: np.zeros((2,) * 4) for name in old}
    F, B, P, Q = (old[name] for name in "FBPQ")
    both = [(i, j) for i in (0, 1) for j in (0, 1)]
    for a, c, b, d in np.ndindex(2, 2, 2, 2):
        through = sum(
            mean.tilted(i, (0, a), (1, c)) * mean.tilted(j, (0, b), (1, d)) * F[i, c, j, d] for i, j in both
        )
        new["F"][a, c, b, d] = C**2 * (mean((0, a), (0, b), (1, c), (1, d)) * Theta[c, d] + r * through)
        new["B"][a, c, b, d] = C**2 * mean((1, a), (1, b), (1, c), (1, d)) * Theta[a, b] * Theta[c, d]
        new["B"][a, c, b, d] += r * C**2 * mean((1, a), (1, c)) * mean((1, b), (1, d)) * B[a, c, b, d]
    for e, f, g, h in np.ndindex(2, 2, 2, 2):
        source = C**2 * mean((2, e), (1, f), (1, g), (0, h)) * Theta[e, f] * Theta[e, g]
        bracket = mean((2, e), (0, h)) * P[e, f, g, e] + mean((1, e), (1, h)) * P[e, f, g, h]
        bracket += mean((2, e), (0, h)) * B[e, e, f, g]
        new["P"][e, f, g, h] = source + r * C**2 * mean((1, f), (1, g)) * bracket
        bracket = mean((2, g), (0, h)) * Q[e, f, g, g] + mean((1, g), (1, h)) * Q[e, f, g, h]
        through = sum(
            mean.tilted(i, (2, e), (1, f)) * mean.tilted(j, (1, g), (0, h)) * F[i, e, j, g] for i, j in both
        )
        new["Q"][e, f, g, h] = (
            source
            + rate / C * new["F"][f, e, h, g]
            + r * C**2 * (mean((1, e), (1, f)) * bracket + Theta[e, f] * through)
        )
        new["R"][e, f, g, h] = (
            rate * C * mean((2, e), (0, f), (1, g), (1, h)) * Theta[e, g] * Theta[e, h]
            + C**2 * mean((3, e), (1, f), (1, g), (1, h)) * Theta[e, f] * Theta[e, g] * Theta[e, h]
            + r
            * C
            * mean((1, g), (1, h))
            * (rate * mean((2, e), (0, f)) + C * Theta[e, f] * mean((3, e), (1, f)))
            * (B[e, e, g, h] + P[e, g, h, e])
            + r
            * C
            * mean((1, g), (1, h))
            * (rate * mean((1, e), (1, f)) + C * Theta[e, f] * mean((2, e), (2, f)))
            * P[e, g, h, f]
            + r * C**2 * mean((1, e), (1, f)) * mean((1, g), (1, h)) * old["R"][e, f, g, h]
        )
    for one, two, three, four in np.ndindex(2, 2, 2, 2):
        triple = Theta[one, two] * Theta[one, three] * Theta[two, four]
        bent = C**2 * mean((2, one), (2, two), (1, three), (1, four)) * triple
        new["S"][one, two, three, four] = (
            C * rate * mean((1, one), (1, two), (1, three), (1, four)) * Theta[one, three] * Theta[two, four]
            + bent
            + r * C * rate * mean((1, three), (1, four)) * mean((1, one), (1, two)) * B[one, two, three, four]
            + r
            * C**2
            * mean((1, three), (1, four))
            * Theta[one, two]
            * mean((2, one), (2, two))
            * B[one, two, three, four]
            + r
            * C**2
            * mean((1, one), (1, two))
            * mean((1, three), (1, four))
            * old["S"][one, two, three, four]
        )
        new["U"][one, four, two, three] = bent + r * C**2 * (
            mean((1, one), (1, four)) * mean((1, two), (1, three)) * old["U"][one, four, two, three]
        )
        value = bent + rate**2 * mean((1, one), (1, two), (0, three), (0, four)) * Theta[one, two]
        value += (
            C * rate * mean((1, one), (2, two), (0, three), (1, four)) * Theta[one, two] * Theta[two, four]
        )
        value += (
            C * rate * mean((1, two), (2, one), (0, four), (1, three)) * Theta[one, two] * Theta[one, three]
        )
        for i, j in both:  # the four terms with F
            left = rate * mean.tilted(i, (1, one), (0, three))
            left += C * Theta[one, three] * mean.tilted(i, (2, one), (1, three))
            right = rate * mean.tilted(j, (1, two), (0, four))
            right += C * Theta[two, four] * mean.tilted(j, (2, two), (1, four))
            value += r * left * right * F[i, one, j, two]
        for i, k, j, m in ((one, three, two, four), (two, four, one, three)):
            first = rate * mean((2, i), (0, k)) + C * Theta[i, k] * mean((3, i), (1, k))
            second = rate * mean((1, i), (1, k)) + C * Theta[i, k] * mean((2, i), (2, k))
            value += r * C * mean((1, j), (1, m)) * (first * Q[j, m, i, i] + second * Q[j, m, i, k])
        value += (
            r
            * C**2
            * mean((1, one), (1, three))
            * mean((1, two), (1, four))
            * old["T"][one, three, four, two]
        )
        new["T"][one, three, four, two] = value
    return new


def test_flow_is_the_printed_recursion() -> None:
    net = MLP("tanh", depth=4, width=WIDTHS, C_b=C_B, C_W=C_W, lambda_b=RATE_B, lambda_W=RATE_W)
    names = list("FBPQRSTU")
    found = flow(net, X, ["K", "Theta", *names])
    old = {name: np.zeros((2, 2, 2, 2)) for name in names}
    for index in (1, 2, 3):
        ratio = 1.0 if index == 1 else WIDTHS[index - 1] / WIDTHS[index - 2]
        K, Theta = (found[name].values[index - 1] for name in ("K", "Theta"))
        old = literal_step(K, Theta, old, C_W[index], RATE_W[index], ratio)
        for name in names:
            np.testing.assert_allclose(
                found[name].values[index], old[name], rtol=1e-8, atol=1e-10, err_msg=f"{name} {index}"
            )
