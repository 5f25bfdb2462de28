"""Residual networks: V and the three-point function against the reference, exact cases and random networks."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.activations import activation
from foretrain.support.errors import InputError, NotEnoughMemoryError
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import Ensemble
from foretrain.theory.flow import flow
from foretrain.theory.recursions.expectations import PairExpectations, Step
from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.recursions.residual import ThreePoint, quadratic_part, residual_flow

TWO_INPUTS = np.array([[1.0, 0.2, -0.5], [0.4, 1.1, 0.3]])
TWO_KERNEL = np.array([[1.0, 0.4], [0.4, 0.8]])
ALL = ("K", "V", "three_point")


def one_input(
    name: str, gamma: float, C_W: float, method: str = "complete", depth: int = 11
) -> dict[str, np.ndarray]:
    """Observables of one input with K^(1) = 1 by layer number; the output layer, without skip, is cut off."""
    net = MLP(name, depth=depth, width=10, gamma=gamma, C_W=C_W)
    found = residual_flow(net, np.ones((1, 1)), method, ALL)
    return {key: np.concatenate([[np.nan], values.ravel()[:-1]]) for key, values in found.items()}


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    ("name", "gamma", "method", "layers", "expected"),
    [
        ("relu", 0.6, "book", (2, 3, 10), (2.9696, 5.9392, 26.7264)),
        ("relu", 0.6, "complete", (2, 3, 10), (2.9696, 7.2674158, 47.8969797)),
        ("relu", -0.6, "complete", (3, 10), (4.6109842, 19.6636423)),
        ("tanh", 0.6, "book", (2, 3, 10), (0.207490473, 0.186881755, 0.0516013124)),
        ("tanh", 0.6, "complete", (2, 3, 10), (0.207490473, 0.189757949, 0.0520486962)),
    ],
)
def test_single_input_vertices_of_the_reference(
    name: str, gamma: float, method: str, layers: tuple[int, ...], expected: tuple[float, ...]
) -> None:
    C_W = (2.0 if name == "relu" else 1.0) * (1 - gamma**2)
    found = one_input(name, gamma, C_W, method)["V"]
    np.testing.assert_allclose(found[list(layers)], expected, rtol=1e-8)


def test_leaky_relu_of_the_reference() -> None:
    C_W = (1 - 0.36) / ((1 + 0.2**2) / 2)
    book, complete = (one_input("leaky_relu(slope=0.2)", 0.6, C_W, m, 4)["V"] for m in ("book", "complete"))
    assert book[3] == pytest.approx(5.5756497, abs=1e-7)
    assert complete[3] == pytest.approx(6.70738388, abs=1e-8)


def test_three_point_and_kernel_of_the_reference() -> None:
    T = one_input("relu", 0.6, 1.28)["three_point"]
    np.testing.assert_allclose(T[[2, 3, 10]], [0.612775343, 0.980440548, 1.51649995], rtol=1e-8)
    assert one_input("relu", -0.6, 1.28)["three_point"][3] == pytest.approx(-0.245110137, abs=1e-9)
    K = one_input("tanh", 0.6, 0.64)["K"]
    np.testing.assert_allclose(K[[2, 3, 10]], [0.612348474, 0.417197584, 0.106077445], rtol=1e-8)


def test_susceptibilities_of_the_reference() -> None:
    K = one_input("tanh", 0.6, 0.64)["K"][2]
    layer = PairExpectations(activation("tanh"), np.array([[K]]))
    response = layer.response @ np.ones(1)
    assert 0.36 + 0.64 * response[0] == pytest.approx(0.53809078, abs=1e-8)
    assert 0.36 + 0.64 * layer.of(1, 1)[0, 0] == pytest.approx(0.714862171, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "C_W", "expected"),
    [
        ("tanh", 0.64, (0.274139928, 0.186928820, 0.283706465)),
        ("relu", 1.28, (0.7504, 0.538391952, 0.822933333)),
    ],
)
def test_two_input_kernels_of_the_reference(
    name: str, C_W: float, expected: tuple[float, float, float]
) -> None:
    net = MLP(name, depth=5, width=10, C_b=0.05, C_W=C_W, gamma=0.6)
    K = residual_flow(net, net.first_kernel(TWO_INPUTS), wanted=("K",))["K"][3]
    np.testing.assert_allclose([K[0, 0], K[0, 1], K[1, 1]], expected, atol=1e-9)


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("book", (0.7440215, 0.3934985, 0.1382811, 0.8795965, 0.6472848)),
        # The reference prints 0.7540956 first; quadrature of one input alone gives 0.75409506 (tested below).
        ("complete", (0.7540951, 0.3966940, 0.1385834, 0.8886871, 0.6548820)),
    ],
)
def test_two_input_vertices_of_the_reference(method: str, expected: tuple[float, ...]) -> None:
    net = MLP("tanh", depth=4, width=10, C_b=0.05, C_W=1.1, gamma=0.7)
    V = residual_flow(net, TWO_KERNEL, method)["V"][2]
    np.testing.assert_allclose([V[0, 0], V[0, 1], V[0, 2], V[1, 1], V[2, 2]], expected, atol=2e-7)


class ByTrapezoid:
    """The complete recursion of one input written out anew, with sums over a fine grid in the plane."""

    x = np.linspace(-9, 9, 451)
    weight = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])

    def mean(self, f: np.ufunc, K: float) -> float:
        return float(self.weight @ f(np.sqrt(K) * self.x))

    def covariance(self, f: np.ufunc, late: float, early: float, shared: float) -> float:
        rho = shared / np.sqrt(late * early)
        other = np.sqrt(early) * (rho * self.x[:, None] + np.sqrt(1 - rho**2) * self.x)
        both = self.weight @ (f(np.sqrt(late) * self.x) * (f(other) @ self.weight))
        return float(both) - self.mean(f, late) * self.mean(f, early)

    def vertices(self, s: np.ufunc, slope: np.ufunc, mlp: MLP, K: float) -> list[float]:
        K_list, chi, gammas, V, S, R = [K], [np.nan], [0.0], [0.0], 0.0, 0.0
        for layer in mlp.layers[1:]:
            now, g_slope = len(K_list) - 1, self.mean(lambda z: z * s(z) * slope(z), K) / K
            X = layer.gamma**2 + layer.C_W * g_slope
            P = 0.0
            for m in range(now):
                passed = np.prod([chi[j + 1] for j in range(m + 1, now)])
                shared = np.prod(gammas[m + 1 : now + 1]) * K_list[m]
                c_2 = self.covariance(lambda z: s(z) ** 2, K, K_list[m], shared)
                P += passed * mlp.C_W[m + 1] * c_2
            c_2 = self.mean(lambda z: s(z) ** 4, K) - self.mean(lambda z: s(z) ** 2, K) ** 2
            S = X**2 * S + layer.C_W**2 * c_2 + 2 * X * layer.C_W * P
            R = layer.gamma**2 * (X * R + 2 * layer.C_W * K**2 * g_slope)
            K = layer.C_b + layer.C_W * self.mean(lambda z: s(z) ** 2, K) + layer.gamma**2 * K
            K_list, chi, gammas, V = [*K_list, K], [*chi, X], [*gammas, layer.gamma], [*V, S + 2 * R]
        return V


def test_every_layer_with_its_own_couplings_against_a_plain_sum() -> None:
    def slope(z: np.ndarray) -> np.ndarray:
        return 1 / (1 + np.exp(-z))

    net = MLP(
        "softplus",
        depth=8,
        width=10,
        C_b=[0.1, 0.2, 0, 0.1, 0.3, 0, 0.1, 0.1],
        C_W=[1, 0.5, 0.8, 0.6, 0.9, 0.4, 0.7, 1.0],
        gamma=[0, 0.6, -0.4, 0.8, 0, 0.5, 0.7, 0],
    )
    found = residual_flow(net, np.ones((1, 1)), wanted=("V",))["V"].ravel()
    expected = ByTrapezoid().vertices(lambda z: np.logaddexp(0, z), slope, net, 1.0)
    np.testing.assert_allclose(found, expected, rtol=1e-8)


def test_complete_tanh_by_a_plain_sum() -> None:
    net = MLP("tanh", depth=4, width=10, C_b=0.05, C_W=1.1, gamma=0.7)
    V = ByTrapezoid().vertices(np.tanh, lambda z: 1 - np.tanh(z) ** 2, net, 1.0)
    assert V[2] == pytest.approx(0.7540950628, abs=1e-9)


def test_scale_invariant_source_has_the_closed_form() -> None:
    """c_2 = [2 A_2^2 c^2 + (A_4 - A_2^2) O(c)] K K' inside V at layer 3, where one c_2 with memory enters."""
    gamma, C_W = 0.6, 1.28
    A_2 = A_4 = 0.5
    c = gamma  # K stays 1 at criticality
    odd = 2 / np.pi * ((1 + 2 * c**2) * np.arcsin(c) + 3 * c * np.sqrt(1 - c**2))
    c_2 = 2 * A_2**2 * c**2 + (A_4 - A_2**2) * odd
    diagonal = 3 * A_4 - A_2**2
    S = C_W**2 * diagonal
    R = gamma**2 * 2 * C_W * A_2
    expected = S + C_W**2 * diagonal + 2 * C_W**2 * c_2 + 2 * gamma**2 * (R + 2 * C_W * A_2)
    assert one_input("relu", gamma, C_W, depth=4)["V"][3] == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("method", ["book", "complete"])
def test_deep_linear_residual_is_the_leading_order_of_the_exact_one(method: str) -> None:
    """E[z_1^2 z_2^2] = K^2 (1 + 2 (1 - gamma^4) / n)^(l-1) at C_W = 1 - gamma^2."""
    gamma = 0.7
    V = one_input("linear", gamma, 1 - gamma**2, method)["V"]
    np.testing.assert_allclose(V[1:], 2 * (1 - gamma**4) * np.arange(10), atol=1e-12)


@pytest.mark.parametrize("method", ["book", "complete"])
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_without_skip_connections_it_is_the_plain_vertex(name: str, method: str) -> None:
    net = MLP(name, depth=4, width=[12, 24, 16], n_out=20, C_b=0.15, C_W=1.6)
    found = residual_flow(net, net.first_kernel(TWO_INPUTS), method, ALL)
    plain = flow(net, TWO_INPUTS, ["K", "V"])
    np.testing.assert_allclose(found["K"], plain["K"].values, atol=1e-12)
    np.testing.assert_allclose([Pairs(2).tensor(V) for V in found["V"]], plain["V"].values, atol=1e-9)
    assert not found["three_point"].any()


def test_repeated_inputs_repeat_the_entries() -> None:
    net = MLP("gelu", depth=5, width=10, C_b=0.1, C_W=0.8, gamma=0.6)
    one = residual_flow(net, np.ones((1, 1)), wanted=ALL)
    copies = residual_flow(net, np.ones((2, 2)), wanted=ALL)
    np.testing.assert_allclose(copies["V"], np.broadcast_to(one["V"], (5, 3, 3)), rtol=1e-7, atol=1e-12)
    expected = np.broadcast_to(one["three_point"], (5, 2, 2, 2))
    np.testing.assert_allclose(copies["three_point"], expected, rtol=1e-7, atol=1e-12)


def test_entries_of_one_input_do_not_see_the_others() -> None:
    net = MLP("tanh", depth=5, width=10, C_b=0.1, C_W=1.2, gamma=-0.5)
    both = residual_flow(net, TWO_KERNEL, wanted=ALL)
    alone = residual_flow(net, TWO_KERNEL[1:, 1:], wanted=ALL)
    np.testing.assert_allclose(both["V"][:, 2, 2], alone["V"].ravel(), rtol=1e-7)
    np.testing.assert_allclose(both["three_point"][:, 1, 1, 1], alone["three_point"].ravel(), atol=1e-9)


def test_quadratic_part_by_direct_expectation() -> None:
    """<s_1 s_2 (z_3 z_4 - K_34)> of three inputs on a grid of normal variables."""
    K = np.array([[1.0, 0.4, -0.2], [0.4, 0.8, 0.3], [-0.2, 0.3, 1.2]])
    nodes, weights = np.polynomial.hermite_e.hermegauss(40)
    grid = np.stack(np.meshgrid(nodes, nodes, nodes, indexing="ij"), axis=-1).reshape(-1, 3)
    mass = np.prod(np.meshgrid(*[weights / weights.sum()] * 3, indexing="ij"), axis=0).ravel()
    z = grid @ np.linalg.cholesky(K).T
    pairs = Pairs(3)
    squares = np.sin(z)[:, pairs.first] * np.sin(z)[:, pairs.second]
    products = z[:, pairs.first] * z[:, pairs.second] - pairs.vector(K)
    expected = (squares * mass[:, None]).T @ products
    found = quadratic_part(PairExpectations(activation("sin"), K))
    np.testing.assert_allclose(found, expected, atol=1e-9)


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(st.floats(-0.9, 0.9), st.floats(-0.9, 0.9), st.floats(0.2, 2.0))
def test_symmetric_and_independent_of_the_order_of_inputs(gamma: float, overlap: float, C_W: float) -> None:
    K = np.array([[1.0, overlap], [overlap, 1.3]])
    net = MLP("relu", depth=4, width=10, C_W=C_W, gamma=gamma if abs(gamma) > 1e-3 else 0.5)
    found, turned = (residual_flow(net, kernel, wanted=ALL) for kernel in (K, K[::-1, ::-1]))
    np.testing.assert_allclose(found["V"], found["V"].transpose(0, 2, 1), atol=1e-10)
    np.testing.assert_allclose(found["V"], turned["V"][:, ::-1, ::-1], atol=1e-9)
    T, turned_T = found["three_point"], turned["three_point"]
    np.testing.assert_allclose(T, T.transpose(0, 1, 3, 2), atol=1e-12)
    np.testing.assert_allclose(T, turned_T[:, ::-1, ::-1, ::-1], atol=1e-10)


def test_a_layer_without_skip_forgets() -> None:
    net = MLP("relu", depth=7, width=10, C_W=1.5, gamma=[0, 0.6, 0.6, 0, 0.6, 0.6, 0])
    found = residual_flow(net, np.ones((1, 1)), wanted=("three_point",))["three_point"].ravel()
    assert found[2] > 0
    assert found[3] == found[6] == 0
    fresh = ThreePoint(Pairs(1))
    fresh.step(PairExpectations(net.activation, np.array([[K_of(net)[3]]])), Step.into(net, 4))
    assert found[4] == pytest.approx(float(fresh.values.item()))


def K_of(net: MLP) -> np.ndarray:
    return residual_flow(net, np.ones((1, 1)), wanted=("K",))["K"].ravel()


@pytest.mark.slow
def test_the_far_past_can_be_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    net = MLP("relu", depth=40, width=10, C_W=2 * (1 - 0.25), gamma=0.5)
    short = residual_flow(net, np.ones((1, 1)), wanted=("V",))["V"]
    monkeypatch.setattr("foretrain.theory.recursions.residual.FORGOTTEN", 1e-300)
    whole = residual_flow(net, np.ones((1, 1)), wanted=("V",))["V"]
    np.testing.assert_allclose(short, whole, rtol=1e-8)


def test_a_vanishing_coupling_is_no_coupling() -> None:
    weak, plain = (MLP("relu", depth=5, width=10, gamma=gamma) for gamma in (1e-12, None))
    found, expected = (residual_flow(net, TWO_KERNEL, wanted=("V",))["V"] for net in (weak, plain))
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-15)


def test_couplings_of_one_and_more() -> None:
    """gamma = 1 with C_W = 0 only copies: no fluctuation arises, and the past is remembered for ever."""
    copying = MLP("tanh", depth=6, width=10, C_W=[1, 0, 0, 0, 0, 1], gamma=1.0)
    found = residual_flow(copying, TWO_KERNEL)
    assert not found["V"][:5].any()
    plain = residual_flow(MLP("tanh", depth=2, width=10), TWO_KERNEL)
    np.testing.assert_allclose(found["V"][5], plain["V"][1], rtol=1e-9)
    growing = MLP("linear", depth=5, width=10, C_W=0.5, gamma=1.5)
    book, complete = (residual_flow(growing, TWO_KERNEL, method)["V"] for method in ("book", "complete"))
    np.testing.assert_allclose(book, complete, rtol=1e-10)


def test_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    net = MLP("tanh", depth=4, width=10, gamma=0.5)
    with pytest.raises(InputError, match="unknown method"):
        residual_flow(net, np.ones((1, 1)), "exact")
    with pytest.raises(InputError, match="unknown observable"):
        residual_flow(net, np.ones((1, 1)), wanted=("G1",))
    with pytest.raises(InputError, match="shape"):
        residual_flow(net, np.ones(3))
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    with pytest.raises(NotEnoughMemoryError, match="fewer inputs"):
        residual_flow(net, np.eye(30))


@dataclass(frozen=True)
class Measured:
    """Mean and standard error over batches of networks."""

    value: np.ndarray
    error: np.ndarray


def measure(
    net: MLP, X: np.ndarray, layer: int, draws: int, seed: int, method: str = "conditional"
) -> tuple[Measured, Measured]:
    """V (P, P) and T (N, N, N) at a layer of random networks; the layer's own weights are averaged exactly.

    Given the layer before, two neurons are independent with second moments Ĝ + gamma^2 z z and means gamma z.
    """
    hyper, pairs, width = net.layers[layer - 1], Pairs(len(X)), net.hidden_widths[layer - 2]
    ordered = width * (width - 1)
    sums = {"products": [], "means": [], "threes": []}
    for chunk in Ensemble(net, X, draws, seed=seed, method=method).preactivations([layer - 1]):
        z = chunk[layer - 1]
        s = net.activation.value(z)
        metric = hyper.C_b + hyper.C_W / width * np.einsum("dja,djb->dab", s, s)
        second = metric[:, pairs.first, pairs.second][:, None] + hyper.gamma**2 * (
            z[:, :, pairs.first] * z[:, :, pairs.second]
        )
        mean, total = hyper.gamma * z, second.sum(axis=1)
        same = np.einsum("djp,djq->dpq", second, second)
        sums["products"].append((total[:, :, None] * total[:, None] - same) / ordered)
        sums["means"].append(total / width)
        threes = mean.sum(axis=1)[:, :, None] * total[:, None] - np.einsum("dja,djp->dap", mean, second)
        sums["threes"].append(threes / ordered)
    products, means, threes = (np.concatenate(parts) for parts in sums.values())
    count = 20 * (len(means) // 20)

    def by_batch(values: np.ndarray) -> np.ndarray:
        return values[:count].reshape(20, -1, *values.shape[1:]).mean(axis=1)

    centred = by_batch(means) - means.mean(axis=0)
    vertices = by_batch(products) - by_batch(means)[:, :, None] * by_batch(means)[:, None]
    vertices = vertices + centred[:, :, None] * centred[:, None]
    return _batched(width * vertices), _batched(width * by_batch(threes)[:, :, pairs.number])


def _batched(values: np.ndarray) -> Measured:
    return Measured(values.mean(axis=0), values.std(axis=0, ddof=1) / np.sqrt(len(values)))


def extrapolate(small: Measured, large: Measured) -> Measured:
    """The limit of infinite width from widths n and 2 n, corrections 1/n removed."""
    return Measured(2 * large.value - small.value, np.hypot(2 * large.error, small.error))


def worst(found: Measured, expected: np.ndarray) -> float:
    return float(np.max(np.abs(found.value - expected) / np.maximum(found.error, 1e-12)))


NETWORKS = {
    "gelu everywhere": ("gelu", 5, {"C_b": 0.1, "C_W": 1.3, "gamma": 0.6}, 4),
    "relu everywhere": ("relu", 5, {"C_b": 0.05, "C_W": 1.28, "gamma": 0.6}, 4),
    "gamma in some layers": (
        "relu",
        7,
        {"C_W": [1.0, 1.2, 0.9, 1.5, 1.1, 1.0, 1.0], "gamma": [0, 0.7, 0.6, 0, -0.6, 0.8, 0]},
        6,
    ),
    "output of a run": ("relu", 5, {"C_W": 1.2, "gamma": 0.8}, 5),
}


@pytest.mark.statistical
@pytest.mark.parametrize("case", NETWORKS)
def test_random_networks_agree_with_the_complete_theory(case: str) -> None:
    name, depth, couplings, layer = NETWORKS[case]
    nets = [MLP(name, depth=depth, width=n, n_out=2, **couplings) for n in (80, 160)]
    measured = [measure(net, TWO_INPUTS, layer, 100_000, seed) for seed, net in enumerate(nets)]
    vertex, three_point = (extrapolate(*both) for both in zip(*measured, strict=True))
    K = nets[0].first_kernel(TWO_INPUTS)
    complete, book = (residual_flow(nets[0], K, method, ALL) for method in ("complete", "book"))
    assert worst(vertex, complete["V"][layer - 1]) < 4.5
    assert worst(vertex, book["V"][layer - 1]) > 6
    assert worst(three_point, complete["three_point"][layer - 1]) < 4.5


@pytest.mark.statistical
def test_random_networks_with_explicit_weights() -> None:
    nets = [MLP("relu", depth=5, width=n, n_out=2, C_b=0.05, C_W=1.28, gamma=0.6) for n in (30, 60)]
    measured = [
        measure(net, TWO_INPUTS, 4, 40_000, 11 + seed, method="weights") for seed, net in enumerate(nets)
    ]
    vertex, three_point = (extrapolate(*both) for both in zip(*measured, strict=True))
    expected = residual_flow(nets[0], nets[0].first_kernel(TWO_INPUTS), wanted=ALL)
    assert worst(vertex, expected["V"][3]) < 4.5
    assert worst(three_point, expected["three_point"][3]) < 4.5


@pytest.mark.statistical
def test_random_networks_with_runs_of_different_width() -> None:
    """Two runs of skip connections of different widths; the ratio of widths stays fixed in the limit."""
    gamma = [0, 0.7, 0.7, 0, 0.7, 0]
    nets = [
        MLP("relu", depth=6, width=[n, n, n, 2 * n, 2 * n], n_out=2, C_W=1.2, gamma=gamma) for n in (60, 120)
    ]
    measured = [measure(net, TWO_INPUTS, 5, 60_000, 5 + seed)[0] for seed, net in enumerate(nets)]
    vertex = extrapolate(*measured)
    K = nets[0].first_kernel(TWO_INPUTS)
    assert worst(vertex, residual_flow(nets[0], K)["V"][4]) < 4.5
    swapped = MLP("relu", depth=6, width=60, n_out=2, C_W=1.2, gamma=gamma)
    assert worst(vertex, residual_flow(swapped, K)["V"][4]) > 6
