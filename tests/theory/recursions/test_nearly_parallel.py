"""H1 between nearly parallel inputs with kinks: against 90 digits, and against the basis of the inputs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import pairwise
from math import comb

import numpy as np
import pytest
from mpmath import atan2, cos, expj, gamma, matrix, mp, mpf, pi, sqrt

from foretrain.activations import activation
from foretrain.support.errors import AccuracyWarning
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow
from foretrain.theory.recursions import nearly_parallel

SLOPES = {"relu": (0.0, 1.0), "leaky_relu": (0.01, 1.0), "abs": (-1.0, 1.0)}
WIDTHS = [12, 20, 15]
C_B, C_W, RATE_B, RATE_W = 0.1, 1.7, 0.4, 1.2


def two_inputs(psi: float, ratio: float = 1.0) -> np.ndarray:
    return 1.3 * np.array([[1.0, 0.0], [ratio * np.cos(psi), ratio * np.sin(psi)]])


def network(name: str, **changes: object) -> MLP:
    plain = MLP(name, depth=4, width=WIDTHS, C_b=C_B, C_W=C_W, lambda_b=RATE_B, lambda_W=RATE_W)
    return plain.replace(**changes)


class Literal:
    """The recursions of one pair in the basis of its inputs (A, C, B), with all the digits that this takes."""

    def __init__(self, minus: float, plus: float, inputs: np.ndarray) -> None:
        self.m, self.p = mpf(minus), mpf(plus)
        x = [[mpf(float(entry)) for entry in row] for row in inputs]
        dots = [sum(s * t for s, t in zip(u, v)) / 2 for u, v in ((x[0], x[0]), (x[0], x[1]), (x[1], x[1]))]
        self.K = [mpf(C_B) + mpf(C_W) * dot for dot in dots]
        self.Theta = mpf(RATE_B) + mpf(RATE_W) * dots[1]
        self.V, self.D, self.F, self.G1, self.H1 = (
            matrix(3, 3),
            matrix(3, 1),
            matrix(2, 2),
            matrix(3, 1),
            mpf(0),
        )

    def psi(self, K: list) -> mpf:
        return atan2(sqrt(K[0] * K[2] - K[1] ** 2), K[1])

    def values(self, K: list) -> mpf:
        """<s_a s_b>."""
        root, jump = sqrt(K[0] * K[2] - K[1] ** 2), (self.p - self.m) ** 2
        return jump * (root + K[1] * (pi - self.psi(K))) / (2 * pi) + self.p * self.m * K[1]

    def slopes(self, K: list) -> mpf:
        """<s'_a s'_b>."""
        return (self.p - self.m) ** 2 * (pi - self.psi(K)) / (2 * pi) + self.p * self.m

    def taylor(self, f: Callable[[list], mpf]) -> tuple[mpf, matrix, matrix]:
        """Value, gradient and second derivatives with respect to K, by differences far below the angle."""
        h = (self.K[0] * self.K[2] - self.K[1] ** 2) * mpf(10) ** -20

        def at(*moved: int) -> mpf:
            """f with these entries of K raised by h, lowered where written as ~entry."""
            steps = [moved.count(i) - moved.count(~i) for i in range(3)]
            return f([k + h * step for k, step in zip(self.K, steps)])

        gradient = matrix([(at(i) - at(~i)) / (2 * h) for i in range(3)])
        bend = matrix(3, 3)
        for i in range(3):
            for j in range(3):
                bend[i, j] = (at(i, j) - at(i, ~j) - at(~i, j) + at(~i, ~j)) / (4 * h * h)
        return f(self.K), gradient, bend

    def moment(self, i: int, j: int, slopes: int) -> mpf:
        """<s_a^i s_b^j (s'_a s'_b)^slopes>, in polar coordinates."""
        psi, total = self.psi(self.K), mpf(0)
        edges = [-pi / 2, psi - pi / 2, pi / 2, psi + pi / 2, 3 * pi / 2]
        for low, high in pairwise(edges):
            middle = (low + high) / 2
            at_a, at_b = (self.p if cos(angle) > 0 else self.m for angle in (middle, middle - psi))
            total += at_a ** (i + slopes) * at_b ** (j + slopes) * cosines(i, j, low, high, psi)
        radial = mpf(2) ** (mpf(i + j) / 2) * gamma(mpf(i + j) / 2 + 1)
        return total * radial * sqrt(self.K[0]) ** i * sqrt(self.K[2]) ** j / (2 * pi)

    def shift(self, first: matrix, second: matrix) -> mpf:
        """What G1 and V add to a mean with these derivatives."""
        bent = sum(second[i, j] * self.V[i, j] for i in range(3) for j in range(3))
        return (first.T * self.G1)[0] + bent / 2

    def step(self, r: mpf) -> None:
        A, _, B = self.K
        W, rate, Theta, V, D, F = mpf(C_W), mpf(RATE_W), self.Theta, self.V, self.D, self.F
        f, df, ddf = self.taylor(self.values)
        g, dg, ddg = self.taylor(self.slopes)
        through_F = 2 * dg[0] * F[0, 0] + dg[1] * (F[0, 1] + F[1, 0]) + 2 * dg[2] * F[1, 1]
        H1 = r * (
            rate * self.shift(df, ddf)
            + W * (Theta * self.shift(dg, ddg) + g * self.H1 + (dg.T * D)[0] + through_F)
        )
        square, powers = (self.m**2 + self.p**2) / 2, [(2, 0), (1, 1), (0, 2)]
        means = matrix([self.moment(*power, 0) for power in powers])
        M = matrix([[square, 0, 0], list(df), [0, 0, square]])
        cov = matrix(3, 3)
        for i in range(3):
            for j in range(3):
                both = [s + t for s, t in zip(powers[i], powers[j])]
                cov[i, j] = self.moment(*both, 0) - means[i] * means[j]
        with_slopes = matrix([self.moment(*power, 1) for power in powers])
        source = rate * cov[:, 1] + W * Theta * (with_slopes - g * means)
        edge = (self.p - self.m) ** 2 * sqrt(A * B - self.K[1] ** 2) / (2 * pi)
        left, right = matrix([[square, 0], [edge / A, g]]), matrix([[g, edge / B], [0, square]])
        spread = matrix([[with_slopes[0], with_slopes[1]], [with_slopes[1], with_slopes[2]]])
        self.G1 = r * W * matrix([square * self.G1[0], self.shift(df, ddf), square * self.G1[2]])
        self.D = W * (source + r * M * (V * (rate * df + W * Theta * dg) + W * g * D))
        self.V = W**2 * (cov + r * M * V * M.T)
        self.F = W**2 * (spread * Theta + r * left * F * right.T)
        self.H1, self.Theta = H1, mpf(RATE_B) + rate * f + W * g * Theta
        self.K = [mpf(C_B) + W * k for k in (square * A, f, square * B)]


def cosines(i: int, j: int, low: mpf, high: mpf, psi: mpf) -> mpf:
    """The integral of cos(t)^i cos(t - psi)^j."""
    total = mp.mpc(0)
    for x in range(i + 1):
        for y in range(j + 1):
            k = (i - 2 * x) + (j - 2 * y)
            part = (expj(k * high) - expj(k * low)) / mp.mpc(0, k) if k else high - low
            total += comb(i, x) * comb(j, y) * expj(-(j - 2 * y) * psi) * part / mpf(2) ** (i + j)
    return total.real


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", SLOPES)
@pytest.mark.parametrize(("psi", "ratio"), [(0.3, 1.1), (1e-2, 1.0), (3e-3, 1.001), (1e-4, 1.0), (1e-6, 1.0)])
def test_all_digits_at_small_angles(name: str, psi: float, ratio: float) -> None:
    """H1 is of order psi here: its first-order term is kept as far as rounding of K lets the angle be known."""
    with mp.workdps(90):
        reference = Literal(*SLOPES[name], two_inputs(psi, ratio))
        for r in (mpf(1), mpf(WIDTHS[1]) / WIDTHS[0], mpf(WIDTHS[2]) / WIDTHS[1]):
            reference.step(r)
        expected = float(reference.H1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", AccuracyWarning)
        found = flow(network(name), two_inputs(psi, ratio), ["H1"])["H1"].values[-1, 0, 1]
    assert found == pytest.approx(expected, rel=max(1e-9, 1e-15 / psi**2))


def follow_below(monkeypatch: pytest.MonkeyPatch, angle: float) -> None:
    """Pairs at angles below this one in coordinates of their own."""
    monkeypatch.setattr(nearly_parallel, "_NEAR", {"closed form": angle, "quadrature": angle})


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "psi", "C_b"),
    [
        ("relu", 0.25, 0.1),
        ("abs", 0.25, 0.1),
        ("abs", np.pi - 0.25, 0.0),
        ("selu", 0.25, 0.1),
        ("softsign", np.pi - 0.25, 0.0),
    ],
)
def test_both_bases_agree_at_moderate_angles(
    name: str, psi: float, C_b: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the initialisation is corrected, for inputs of unequal size and for nearly opposite ones."""
    net, corrections = network(name, C_b=C_b), {"C_b_1": 0.3, "C_W_1": -0.4}
    found = []
    for angle in (0.0, 0.4):
        follow_below(monkeypatch, angle)
        flown = flow(net, two_inputs(psi, 1.2), ["H1"], tolerance=1e-12, **corrections)
        found.append(flown["H1"].values[:, 0, 1])
    assert (found[0] != found[1]).any()
    np.testing.assert_allclose(found[1], found[0], rtol=1e-8, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("net", "psi", "limit"),
    [
        (MLP("relu", depth=10, width=30, C_W=2.0), 0.5, 0.4),
        (MLP("selu", depth=4, width=30, C_b=0.0, C_W=6.0), 0.1, 0.108),
    ],
    ids=["comes near", "goes far"],
)
def test_a_pair_that_passes_the_limit(
    net: MLP, psi: float, limit: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    flown = []
    for angle in (0.0, limit):
        follow_below(monkeypatch, angle)
        flown.append(flow(net, two_inputs(psi), ["K", "H1"]))
    K = flown[0]["K"].values
    sines = np.sqrt(1 - K[:, 0, 1] ** 2 / (K[:, 0, 0] * K[:, 1, 1]))
    assert sines.min() < limit < sines.max()
    first, second = (each["H1"].values[:, 0, 1] for each in flown)
    assert (first != second).any()
    np.testing.assert_allclose(first, second, rtol=3e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["selu", "leaky_relu"])
def test_the_limit_is_that_of_copies(name: str) -> None:
    net = network(name)
    copies = flow(net, two_inputs(0.0), ["H1"])["H1"].values[-1]
    assert copies[0, 1] == pytest.approx(copies[0, 0], rel=1e-9, abs=1e-9)
    steps = [
        (flow(net, two_inputs(psi), ["H1"])["H1"].values[-1, 0, 1] - copies[0, 1]) / psi
        for psi in (1e-3, 1e-4)
    ]
    assert steps[1] == pytest.approx(steps[0], rel=0.01, abs=2e-3)  # of H1 itself: 2e-7


def test_many_pairs_at_once_are_the_pairs_alone() -> None:
    inputs = np.concatenate([two_inputs(1e-3), two_inputs(0.7), 2 * two_inputs(1e-5)])
    together = flow(network("relu"), inputs, ["H1"])["H1"].values[-1]
    assert (together == together.T).all()
    for a, b in ((0, 1), (0, 3), (1, 2), (4, 5), (0, 4)):
        alone = flow(network("relu"), inputs[[a, b]], ["H1"])["H1"].values[-1, 0, 1]
        assert together[a, b] == pytest.approx(alone, rel=1e-9, abs=1e-12)


@pytest.mark.slow
def test_a_kink_elsewhere_says_how_many_digits_there_are() -> None:
    shifted = activation(lambda z: np.where(z > 0.5, z - 0.5, 0.0), kinks=(0.5,), name="shifted")
    net = network("relu").replace(activation=shifted)
    copies, wide = (flow(net, two_inputs(psi), ["H1"])["H1"].values[-1, 0, 1] for psi in (0.0, 1e-2))
    slope = (wide - copies) / 1e-2
    with pytest.warns(AccuracyWarning, match="three digits"):
        near = flow(net, two_inputs(1e-4), ["H1"])["H1"].values[-1, 0, 1]
    assert near == pytest.approx(copies + 1e-4 * slope, rel=1e-3)
