"""The O(N^2) subsets of V, and G1 for many inputs, against the full tensor and brute force."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.gaussian import expectation
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

X = np.random.default_rng(8).standard_normal((4, 3))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "relu", "swish", "tanh + copies"])
def test_subsets_are_entries_of_the_full_tensor(name: str) -> None:
    net = MLP(name.split()[0], depth=4, width=[8, 12, 9], C_b=0.1, C_W=1.5)
    inputs = np.concatenate([X, X[:1]]) if name.endswith("copies") else X
    found = flow(net, inputs, ["norm_covariance", "entry_variance", "V"])
    V = found["V"].values
    scale = np.abs(V).max()
    np.testing.assert_allclose(
        found["norm_covariance"].values, np.einsum("laabb->lab", V), rtol=1e-8, atol=1e-9 * scale
    )
    np.testing.assert_allclose(
        found["entry_variance"].values, np.einsum("labab->lab", V), rtol=1e-8, atol=1e-9 * scale
    )


@pytest.mark.parametrize("name", ["tanh", "gelu", "sin"])
def test_metric_correction_is_the_second_order_taylor_expansion(name: str) -> None:
    """Layer 3 by brute force: numerical derivatives of <s_1 s_2> with respect to the covariance."""
    net = MLP(name, depth=3, width=[10, 15], C_b=0.1, C_W=1.4)
    found = flow(net, X[:2], ["K", "V", "G1"])
    K, V = found["K"].values[1], found["V"].values[1]
    entries = [(0, 0), (0, 1), (1, 1)]

    def F(shift: np.ndarray) -> float:
        a, b, c = shift
        return float(expectation([name, name], K + np.array([[a, b], [b, c]]), tolerance=1e-12).value)

    step = 1e-2
    total = 0.0
    for i, (a, b) in enumerate(entries):
        for j, (c, d) in enumerate(entries):
            e_i, e_j = np.eye(3)[i] * step, np.eye(3)[j] * step
            bend = (F(e_i + e_j) - F(e_i - e_j) - F(e_j - e_i) + F(-e_i - e_j)) / (4 * step**2)
            total += 0.5 * bend * V[a, b, c, d]
    assert found["G1"].values[2, 0, 1] == pytest.approx(1.5 * 1.4 * total, rel=2e-2)


def test_corrections_of_the_variances_shift_the_metric() -> None:
    """C_b + C_b_1/n and C_W + C_W_1/n from layer 2 on, against the kernel recursion with those very values."""
    n = 10_000.0
    widths = [int(n)] * 3
    b_1, W_1 = [5.0, 0.4, 0.1, 0.3], [7.0, 0.2, 0.5, -0.6]
    plain = MLP("tanh", depth=4, width=widths, C_b=0.1, C_W=1.4)
    shifted = plain.replace(
        C_b=[0.1, *(0.1 + c / n for c in b_1[1:])], C_W=[1.4, *(1.4 + c / n for c in W_1[1:])]
    )
    G1 = flow(plain, X, ["G1"], C_b_1=b_1, C_W_1=W_1)["G1"] - flow(plain, X, ["G1"])["G1"]
    slope = n * (flow(shifted, X)["K"] - flow(plain, X)["K"])
    np.testing.assert_allclose(G1.values, slope.values, rtol=2e-3, atol=2e-4)
    alone = flow(plain, X[:1], ["G1"], C_b_1=b_1, C_W_1=W_1)["G1"] - flow(plain, X[:1], ["G1"])["G1"]
    np.testing.assert_allclose(alone.values[:, 0, 0], G1.values[:, 0, 0], rtol=1e-8, atol=1e-10)


def test_metric_correction_of_many_inputs_has_no_quartic_cost() -> None:
    inputs = np.random.default_rng(1).standard_normal((120, 30))
    found = flow(MLP("tanh", depth=3, width=50, C_W=1.3), inputs, ["G1"])["G1"].values[2]
    few = flow(MLP("tanh", depth=3, width=50, C_W=1.3), inputs[[7, 93]], ["G1"])["G1"].values[2]
    np.testing.assert_allclose(found[np.ix_([7, 93], [7, 93])], few, rtol=1e-7, atol=1e-9)
    assert (found == found.T).all()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sin", "cos"])
def test_rounding_does_not_grow_in_the_chaotic_phase(name: str) -> None:
    net = MLP(name, depth=60, width=9, C_b=0.1, C_W=3.0)
    deep = flow(net, [[1, 2], [0, 1]], ["norm_covariance", "entry_variance"])
    for found in (np.einsum("laa->la", deep[key].values) for key in deep):
        alone = [flow(net, [x], ["V"])["V"].values.ravel() for x in ([1, 2], [0, 1])]
        np.testing.assert_allclose(found, np.stack(alone, axis=1), rtol=1e-8)
    quadruples = flow(net, [[1, 2], [0, 1]], ["V"], quadruples=[[0, 0, 0, 0], [0, 0, 1, 1]])["V"].values
    np.testing.assert_allclose(quadruples[:, 0], alone[0], rtol=1e-8)
    np.testing.assert_allclose(
        quadruples[:, 1], deep["norm_covariance"].values[:, 0, 1], rtol=1e-6, atol=1e-9
    )
