"""Flows against a second implementation: the book's formulas letter by letter, on grids, with inverse kernels.

Nothing here uses the library's integrals, its local form of the recursions or its treatment of dependent inputs. The
grids are nested Gauss-Legendre rules in whitened variables, cut where an activation has a kink.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest
from scipy.special import erf, expit

import foretrain as ft
from foretrain.theory import couplings, finite_width

Function = Callable[[np.ndarray], np.ndarray]
ENDS = 9.0
WIDTHS = [12, 20, 7]
X_1, X_2 = np.array([1.0, -0.5, 0.7]), np.array([0.2, 0.9, -0.3])

ACTIVATIONS: dict[str, tuple[Function, tuple[float, ...]]] = {
    "perceptron": (lambda z: np.where(z >= 0, 1.0, 0.0), (0.0,)),
    "sign": (lambda z: np.where(z >= 0, 1.0, -1.0), (0.0,)),
    "sigmoid": (expit, ()),
    "tanh": (np.tanh, ()),
    "erf": (erf, ()),
    "softsign": (lambda z: z / (1 + abs(z)), (0.0,)),
    "sin": (np.sin, ()),
    "cos": (np.cos, ()),
    "linear": (lambda z: 1.0 * z, ()),
    "relu": (lambda z: np.maximum(z, 0), (0.0,)),
    "leaky_relu": (lambda z: np.where(z >= 0, z, 0.01 * z), (0.0,)),
    "abs": (np.abs, (0.0,)),
    "quadratic": (np.square, ()),
    "cubic": (lambda z: z**3, ()),
    "softplus": (lambda z: np.logaddexp(0, z), ()),
    "swish": (lambda z: z * expit(z), ()),
    "gelu": (lambda z: 0.5 * z * (1 + erf(z / np.sqrt(2))), ()),
    "mish": (lambda z: z * np.tanh(np.logaddexp(0, z)), ()),
    "elu": (lambda z: np.where(z >= 0, z, np.expm1(np.minimum(z, 0))), (0.0,)),
}


def panels(edges: np.ndarray, order: int) -> tuple[np.ndarray, np.ndarray]:
    """Gauss-Legendre nodes and normal weights on the panels between sorted edges (rows, edges)."""
    x, w = np.polynomial.legendre.leggauss(order)
    middle, half = (edges[:, 1:] + edges[:, :-1]) / 2, (edges[:, 1:] - edges[:, :-1]) / 2
    u = middle[..., None] + half[..., None] * x
    weights = half[..., None] * w * np.exp(-(u**2) / 2) / np.sqrt(2 * np.pi)
    return u.reshape(len(edges), -1), weights.reshape(len(edges), -1)


def grid(
    K: np.ndarray, kinks: tuple[float, ...], order: int = 14, pieces: int = 8
) -> tuple[np.ndarray, np.ndarray]:
    """Points (P, N) and weights of N(0, K), variable by variable; directions without variance are left out."""
    size = len(K)
    root, white, weights = np.zeros((size, size)), np.zeros((1, 0)), np.ones(1)
    for i in range(size):
        for j in range(i):
            root[i, j] = (K[i, j] - root[i, :j] @ root[j, :j]) / root[j, j] if root[j, j] else 0.0
        left = K[i, i] - root[i, :i] @ root[i, :i]
        root[i, i] = np.sqrt(left) if left > 1e-13 * K[i, i] else 0.0
        if root[i, i] == 0:
            white = np.column_stack([white, np.zeros(len(white))])
            continue
        cuts = [np.clip((kink - white @ root[i, :i]) / root[i, i], -ENDS, ENDS) for kink in kinks]
        uniform = np.broadcast_to(np.linspace(-ENDS, ENDS, pieces + 1), (len(white), pieces + 1))
        nodes, factors = panels(np.sort(np.column_stack([uniform, *cuts]), axis=1), order)
        white = np.column_stack([np.repeat(white, nodes.shape[1], axis=0), nodes.ravel()])
        weights = np.repeat(weights, nodes.shape[1]) * factors.ravel()
        white, weights = white[weights > 1e-22], weights[weights > 1e-22]
    return white @ root.T, weights


def squares(z: np.ndarray) -> np.ndarray:
    """z_a z_b at every point, (P, N^2)."""
    return (z[:, :, None] * z[:, None, :]).reshape(len(z), -1)


class Level(NamedTuple):
    K: np.ndarray
    V: np.ndarray
    G1: np.ndarray


def literal_step(
    f: Function, kinks: tuple[float, ...], old: Level, C_b: float, C_W: float, ratio: float
) -> Level:
    """(4.118), (4.119) and (4.115) with every index written out; ``ratio`` is n_l / n_(l-1), 0 after layer 1."""
    K, V, G1 = old
    size = len(K)
    z, weights = grid(K, kinks)
    pair, two = squares(f(z)), squares(z)
    centred = two - K.ravel()
    F = (weights @ pair).reshape(size, size)
    fourth = (pair.T @ (weights[:, None] * pair)).reshape((size,) * 4)
    source = C_W**2 * (fourth - np.einsum("ab,cd->abcd", F, F))
    if not ratio:
        return Level(C_b + C_W * F, source, np.zeros_like(K))
    inverse = np.linalg.inv(K)
    raised = np.einsum("ae,bf,cg,dh,efgh->abcd", inverse, inverse, inverse, inverse, V)
    slope = (pair.T @ (weights[:, None] * centred)).reshape((size,) * 4)
    bend = np.einsum("pa,pb,pc,p->abc", pair, centred, centred, weights, optimize=True).reshape((size,) * 6)
    plain = (pair.T @ (weights[:, None] * two)).reshape((size,) * 4)
    V_next = source + C_W**2 / 4 * ratio * np.einsum("efgh,abef,cdgh->abcd", raised, slope, slope)
    G1_next = (
        np.einsum("ef,abef->ab", inverse @ G1 @ inverse, slope) / 2
        + np.einsum("efgh,abefgh->ab", raised, bend) / 8
        + np.einsum("egfh,gh,abef->ab", raised, K, -2 * plain + np.einsum("ab,ef->abef", F, K)) / 4
    )
    return Level(C_b + C_W * F, V_next, ratio * C_W * G1_next)


def literal_flow(name: str, X: np.ndarray, C_b: np.ndarray, C_W: np.ndarray) -> list[Level]:
    f, kinks = ACTIVATIONS[name]
    size = len(X)
    levels = [Level(C_b[0] + C_W[0] * X @ X.T / X.shape[1], np.zeros((size,) * 4), np.zeros((size, size)))]
    for layer in range(1, len(C_b)):
        ratio = WIDTHS[layer - 1] / WIDTHS[layer - 2] if layer > 1 else 0.0
        levels.append(literal_step(f, kinks, levels[-1], C_b[layer], C_W[layer], ratio))
    return levels


def close(found: np.ndarray, expected: np.ndarray, rtol: float) -> None:
    """Compare to the largest entry: entries that symmetry makes zero are noise in a grid."""
    scale = float(np.max(np.abs(expected)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=max(rtol * scale, 1e-12))


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_two_inputs_against_the_formulas_with_inverse_kernels(name: str) -> None:
    C_b, C_W = np.array([0.1, 0.25, 0.05, 0.2]), np.array([1.0, 0.8, 1.2, 0.7])
    X = np.array([X_1, X_2])
    mlp = ft.MLP(name, depth=4, width=WIDTHS, C_b=list(C_b), C_W=list(C_W))
    found = ft.flow(mlp, X, ["K", "V", "G1", "norm_covariance", "entry_variance"])
    for number, level in enumerate(literal_flow(name, X, C_b, C_W), start=1):
        at = {key: found[key].sel(layer=number).values for key in found}
        close(at["K"], level.K, 1e-8)
        close(at["V"], level.V, 1e-6)
        close(at["G1"], level.G1, 1e-5)
        close(at["norm_covariance"], np.einsum("aabb->ab", level.V), 1e-6)
        close(at["entry_variance"], np.einsum("abab->ab", level.V), 1e-6)


@pytest.mark.slow
def test_three_inputs_of_which_two_are_opposite() -> None:
    """The kernel of layer 1 is singular, that of layer 2 is not: only then is (4.119) with inverses needed."""
    X = np.array([X_1, -X_1, X_2])
    C_b, C_W = np.zeros(3), np.full(3, 1.3)
    f, kinks = ACTIVATIONS["relu"]
    K = C_W[0] * X @ X.T / 3
    level = Level(K, np.zeros((3,) * 4), np.zeros((3, 3)))
    for ratio in (0.0, WIDTHS[1] / WIDTHS[0]):
        level = literal_step(f, kinks, level, 0.0, 1.3, ratio)
    quadruples = np.array([[0, 1, 2, 2], [0, 2, 1, 2], [0, 1, 0, 1], [1, 2, 2, 0]])
    mlp = ft.MLP("relu", depth=3, width=WIDTHS[:2], C_b=list(C_b), C_W=list(C_W))
    found = ft.flow(mlp, X, ["V"], quadruples=quadruples)["V"].sel(layer=3).values
    close(found, np.array([level.V[tuple(four)] for four in quadruples]), 1e-6)
    close(ft.flow(mlp, X, ["V"])["V"].sel(layer=3).values, level.V, 1e-6)
    A, B = np.random.default_rng(1).normal(size=(2, 3, 3))
    contracted = ft.flow(mlp, X, ["V"], contract=(A, B))["V"].sel(layer=3)
    np.testing.assert_allclose(contracted, np.einsum("ab,abcd,cd", A, level.V, B), rtol=1e-5)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    "name", ["sign", "perceptron", "relu", "leaky_relu", "abs", "elu", "selu", "softsign"]
)
@pytest.mark.parametrize("C_b", [0.0, 0.2])
def test_dependent_inputs_say_nothing_new(name: str, C_b: float) -> None:
    """A repeated input copies its rows; without biases a zero input of an activation with s(0) = 0 adds zeros."""
    names = ["V", "G1", "norm_covariance", "entry_variance"]
    mlp = ft.MLP(name, depth=4, width=WIDTHS, C_b=C_b, C_W=1.1)
    alone, repeated = ft.flow(mlp, [X_1, X_2], names), ft.flow(mlp, [X_1, X_2, X_1], names)
    for key in names:
        expected = alone[key].values
        expected = expected[np.ix_(range(4), *[[0, 1, 0]] * (expected.ndim - 1))]
        close(repeated[key].values, expected, 1e-8)
    if C_b == 0 and name not in {"sign", "perceptron"}:
        single, with_zero = ft.flow(mlp, [X_1], names), ft.flow(mlp, [0 * X_1, X_1], names)
        for key in names:
            expected = np.zeros_like(with_zero[key].values)
            expected[(slice(None), *[slice(1, 2)] * (expected.ndim - 1))] = single[key].values
            close(with_zero[key].values, expected, 1e-9)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", ["relu", "leaky_relu", "abs"])
@pytest.mark.parametrize("factor", [2.0, 0.7, 3.1])
def test_collinear_inputs_of_scale_invariant_activations(name: str, factor: float) -> None:
    """s(c z) = c s(z), so the two inputs have one metric up to factors, whose mean is K exactly."""
    mlp = ft.MLP(name, depth=4, width=WIDTHS, C_W=1.3)
    found, single = ft.flow(mlp, [X_1, factor * X_1], ["V", "G1"]), ft.flow(mlp, [X_1], ["V"])
    c = np.array([1.0, factor])
    V = float(single["V"].sel(layer=4).squeeze())
    np.testing.assert_allclose(
        found["V"].sel(layer=4), V * np.einsum("a,b,c,d->abcd", c, c, c, c), rtol=1e-11
    )
    np.testing.assert_allclose(found["G1"], 0, atol=1e-11)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("distance", [1.0, 1e-1, 1e-2, 1e-4])
def test_sign_activation_as_inputs_merge(distance: float) -> None:
    """<s_1 s_2> = (2/pi) arcsin(correlation) and (s_1 s_2)^2 = 1 close the recursions of the one entry that moves."""
    C_b, C_W = 0.1, 1.2
    X = np.array([X_1, X_1 + distance * X_2])
    found = ft.flow(ft.MLP("sign", depth=4, width=WIDTHS, C_b=C_b, C_W=C_W), X, ["V", "G1", "entry_variance"])
    K, V, G1 = C_b + C_W * X @ X.T / 3, 0.0, 0.0
    for layer in range(2, 5):
        ratio = WIDTHS[layer - 2] / WIDTHS[layer - 3] if layer > 2 else 0.0
        det = np.linalg.det(K)
        F = 1 - 2 / np.pi * np.arctan2(np.sqrt(det), K[0, 1])
        slope, bend = 2 / np.pi / np.sqrt(det), 2 / np.pi * K[0, 1] / det**1.5
        G1 = ratio * C_W * (slope * G1 + bend * V / 2)
        V = C_W**2 * (1 - F**2 + ratio * slope**2 * V)
        K = C_b + C_W * np.array([[1, F], [F, 1]])
        at = {key: found[key].sel(layer=layer).values for key in found}
        np.testing.assert_allclose([at["V"][0, 1, 1, 0], at["entry_variance"][1, 0]], V, rtol=1e-6)
        np.testing.assert_allclose(at["G1"][0, 1], G1, rtol=1e-6, atol=1e-14)
        np.testing.assert_allclose(at["V"][0, 0], 0, atol=1e-12)


def residual_vertex(
    name: str, K_1: float, C_b: np.ndarray, C_W: np.ndarray, gamma: np.ndarray, method: str
) -> list[float]:
    """V of one input: (B.26), or linear response with plain sums over a neuron's past, one grid for each pair."""
    f, kinks = ACTIVATIONS[name]
    K, chi, V, S, R = [K_1], [], [0.0], 0.0, 0.0
    for layer in range(1, len(C_b)):
        skip = gamma[layer] ** 2
        z, weights = grid(np.array([[K[-1]]]), kinks, 20, 12)
        square, z = f(z[:, 0]) ** 2, z[:, 0]
        g, fourth = weights @ square, weights @ square**2
        g_slope = weights @ (square * (z**2 - K[-1])) / (2 * K[-1] ** 2)
        chi.append(skip + C_W[layer] * g_slope)
        own = C_W[layer] ** 2 * (fourth - g**2)
        if method == "book":
            V.append(own + chi[-1] ** 2 * V[-1] + 4 * skip * C_W[layer] * g_slope * K[-1] ** 2)
        else:
            memory = 0.0
            for past in range(layer - 1):
                link = np.prod(gamma[past + 1 : layer]) * K[past]
                both, weights = grid(np.array([[K[past], link], [link, K[-1]]]), kinks)
                then, now = (f(both) ** 2).T
                overlap = weights @ (then * now) - (weights @ then) * (weights @ now)
                memory += np.prod(chi[past + 1 : layer - 1]) * C_W[past + 1] * C_W[layer] * overlap
            S = chi[-1] ** 2 * S + own + 2 * chi[-1] * memory
            R = skip * (chi[-1] * R + 2 * C_W[layer] * g_slope * K[-1] ** 2)
            V.append(S + 2 * R)
        K.append(C_b[layer] + C_W[layer] * g + skip * K[-1])
    return V


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", ["relu", "tanh", "elu", "softplus", "sign", "perceptron", "cos"])
@pytest.mark.parametrize("method", ["book", "complete"])
def test_residual_vertex_with_different_skips(name: str, method: str) -> None:
    C_b, C_W = np.array([0.1, 0.0, 0.2, 0.05, 0.1]), np.array([1.0, 0.6, 0.9, 0.5, 0.8])
    gamma = np.array([0.0, 0.7, -0.4, 0.5, 0.0])
    mlp = ft.MLP(name, depth=5, width=10, C_b=list(C_b), C_W=list(C_W), gamma=list(gamma))
    found = ft.flow(mlp, [X_1], ["V"], method=method)["V"].values.ravel()
    expected = residual_vertex(name, C_b[0] + C_W[0] * X_1 @ X_1 / 3, C_b, C_W, gamma, method)
    close(found, np.array(expected), 1e-8)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "relu", "softsign", "gelu", "perceptron", "cos"])
def test_six_point_vertex_with_unequal_widths(name: str) -> None:
    """Third cumulant of the metric, U / n^2, each term with the powers of the widths that its order in 1/n gives."""
    f, kinks = ACTIVATIONS[name]
    C_b, C_W = np.array([0.1, 0.25, 0.05, 0.2]), np.array([1.0, 0.8, 1.2, 0.7])
    mlp = ft.MLP(name, depth=4, width=WIDTHS, C_b=list(C_b), C_W=list(C_W))
    found = ft.flow(mlp, [X_1], ["six_point"])["six_point"].values.ravel()
    K, V, U, expected = C_b[0] + C_W[0] * X_1 @ X_1 / 3, 0.0, 0.0, [0.0]
    for layer in range(1, 4):
        ratio = WIDTHS[layer - 1] / WIDTHS[layer - 2] if layer > 1 else 0.0
        z, weights = grid(np.array([[K]]), kinks, 20, 16)
        z = z[:, 0]
        power = {p: f(z) ** p for p in (2, 4, 6)}
        mean = {p: weights @ power[p] for p in power}
        slope = {p: weights @ (power[p] * (z**2 - K)) / (2 * K**2) for p in power}
        bend = weights @ (power[2] * (z**4 - 6 * K * z**2 + 3 * K**2)) / (4 * K**4)
        variance, variance_slope = mean[4] - mean[2] ** 2, slope[4] - 2 * mean[2] * slope[2]
        third = mean[6] - 3 * mean[4] * mean[2] + 2 * mean[2] ** 3
        carried = ratio**2 * (slope[2] ** 3 * U + 3 * slope[2] ** 2 * bend * V**2)
        U = C_W[layer] ** 3 * (third + 3 * ratio * slope[2] * variance_slope * V + carried)
        V = C_W[layer] ** 2 * (variance + ratio * slope[2] ** 2 * V)
        K = C_b[layer] + C_W[layer] * mean[2]
        expected.append(U)
    close(found, np.array(expected), 1e-9)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "relu", "elu"])
def test_observables_and_couplings_from_scores(name: str) -> None:
    """(4.61), (4.64) by Hermite tensors of the full inverse kernel, and the couplings (4.109), (4.108), (4.82)."""
    X, n = np.array([X_1, X_2]), 10 * WIDTHS[1]
    K, V, G1 = literal_flow(name, X, np.full(3, 0.15), np.full(3, 1.2))[-1]
    mlp = ft.MLP(name, depth=3, width=[10 * WIDTHS[0], n], C_b=0.15, C_W=1.2)
    inverse = np.linalg.inv(K)
    z, weights = grid(K, ())
    u = z @ inverse
    first = np.einsum("pa,pb->pab", u, u) - inverse
    second = np.einsum("pab,pcd->pabcd", first, first)
    for axes in ("pa,pc,bd->pabcd", "pa,pd,bc->pabcd", "pb,pc,ad->pabcd", "pb,pd,ac->pabcd"):
        second -= np.einsum(axes, u, u, inverse)
    second += np.einsum("ac,bd->abcd", inverse, inverse) + np.einsum("ad,bc->abcd", inverse, inverse)
    values = {"F": np.cos(z[:, 0]) * np.cos(2 * z[:, 1]), "H": np.tanh(z[:, 0]) * np.sin(z[:, 1])}
    slope = {key: np.einsum("p,pab->ab", weights * value, first) / 2 for key, value in values.items()}
    bend = np.einsum("p,pabcd->abcd", weights * values["F"], second) / 4
    F, H = [np.cos, lambda t: np.cos(2 * t)], ["tanh", "sin"]
    mean = finite_width.mean_of(F, mlp, X)
    np.testing.assert_allclose(mean.leading, weights @ values["F"], rtol=1e-8)
    np.testing.assert_allclose(
        mean.correction, (np.sum(slope["F"] * G1) + np.sum(bend * V) / 2) / n, rtol=1e-6
    )
    covariance = np.einsum("ab,abcd,cd", slope["F"], V, slope["H"]) / n
    np.testing.assert_allclose(finite_width.covariance_of(F, H, mlp, X).value, covariance, rtol=1e-6)
    raised = np.einsum("ae,bf,cg,dh,efgh->abcd", inverse, inverse, inverse, inverse, V)
    for kept in (1, 3):
        action = couplings.layer_action(mlp, X, neurons=kept)
        loops = np.einsum("cd,abcd->ab", K, kept / 2 * raised) + np.einsum("cd,acbd->ab", K, raised)
        close(action.quadratic, inverse + (loops - inverse @ G1 @ inverse) / n, 1e-7)
        close(action.metric, K + (G1 - K @ loops @ K) / n, 1e-7)
        close(action.quartic, raised / n, 1e-6)


def test_one_layer_is_gaussian() -> None:
    found = ft.flow(ft.MLP("relu", depth=1, C_b=0.3, C_W=2.0), [[1, -2], [3, 1]], ["K", "V", "G1"])
    np.testing.assert_allclose(found["K"].values, [[[5.3, 1.3], [1.3, 10.3]]])
    assert not found["V"].values.any()
    assert not found["G1"].values.any()
