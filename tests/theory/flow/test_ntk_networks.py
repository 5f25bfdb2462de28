"""D, F, A, B and H1 against real random networks of three widths, extrapolated to infinite width.

H1 is the shift of a mean, n times smaller than the mean and its fluctuations. Three things make it visible:
neurons of the next layer are averaged exactly given those before (:func:`after`); the leading order is subtracted;
and what is linear in the fluctuations of the layer before, whose means are known, is taken out (:func:`shifts`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

X = np.array([[1, 0.5, -0.7], [0.2, -1.1, 0.9]])
C_B, C_W = (0.1, 0.05, 0.2, 0.1), (1.0, 1.5, 1.3, 1.2)
RATE_B, RATE_W = (0.3, 0.2, 0.5, 0.1), (1.0, 0.7, 1.2, 0.5)
NAMES = ["D", "F", "A", "B"]
# Entries that no symmetry relates.
PLACES = {
    "D": [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 0), (0, 1, 0, 1), (0, 0, 1, 1), (1, 1, 0, 0)],
    "F": [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, 1, 1, 0)],
    "A": [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1)],
    "B": [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, 1, 1, 0)],
}


def draw(rng: np.random.Generator, draws: int, n_1: int, n_2: int) -> tuple[np.ndarray, ...]:
    """Activations and sigma' H sigma' of layers 1 and 2, by the forward equation (8.12)."""

    def normal(*shape: int, variance: float) -> np.ndarray:
        return np.sqrt(variance) * rng.standard_normal((draws, *shape))

    z = normal(n_1, 1, variance=C_B[0]) + normal(n_1, 3, variance=C_W[0] / 3) @ X.T
    H_1 = RATE_B[0] + RATE_W[0] * X @ X.T / 3
    first, slope = np.tanh(z), 1 / np.cosh(z) ** 2
    W = normal(n_2, n_1, variance=C_W[1] / n_1)
    z = normal(n_2, 1, variance=C_B[1]) + W @ first
    same = RATE_B[1] + RATE_W[1] * np.einsum("sja,sjb->sab", first, first) / n_1
    passed = W[..., None] * slope[:, None]  # (draws, n_2, n_1, inputs)
    H = np.einsum("siJa,skJb->sabik", passed, passed, optimize=True) * H_1[:, :, None, None]
    H = H + same[..., None, None] * np.eye(n_2)
    return (
        first,
        between(slope, H_1[:, :, None, None] * np.eye(n_1)),
        np.tanh(z),
        between(1 / np.cosh(z) ** 2, H),
    )


def between(slope: np.ndarray, H: np.ndarray) -> np.ndarray:
    """R_jk;ab = sigma'_ja H_jk;ab sigma'_kb."""
    turned = slope.transpose(0, 2, 1)
    return H * turned[:, :, None, :, None] * turned[:, None, :, None, :]


def given(s: np.ndarray, R: np.ndarray, layer: int) -> tuple[np.ndarray, ...]:
    """Metric and mean tangent kernel of a layer (numbered from 0) given the one before: (8.49), (8.57)."""
    gram = np.einsum("sja,sjb->sab", s, s) / s.shape[1]
    traces = np.einsum("sabjj->sab", R) / s.shape[1]
    return C_B[layer] + C_W[layer] * gram, RATE_B[layer] + RATE_W[layer] * gram + C_W[layer] * traces


def third_layer(rng: np.random.Generator, draws: int, n_1: int, n_2: int) -> tuple[np.ndarray, ...]:
    """Metric, tangent kernel and cross sums of layer 3 given layer 2."""
    _, _, s, R = draw(rng, draws, n_1, n_2)
    F = C_W[2] ** 2 / n_2 * np.einsum("sja,scdjk,skb->sacbd", s, R, s, optimize=True)
    B = C_W[2] ** 2 / n_2 * np.einsum("sabjk,scdjk->sacbd", R, R, optimize=True)
    return *given(s, R, 2), F, B


def estimates(m: int, blocks: int, size: int, seed: int) -> dict[str, np.ndarray]:
    """The conditional estimators block by block: values (blocks, ...)."""
    rng, n_2 = np.random.default_rng(seed), m
    found: dict[str, list[np.ndarray]] = {name: [] for name in NAMES}
    for _ in range(blocks):
        G, H, F, B = third_layer(rng, size, 3 * m // 2, n_2)
        g, o = G - G.mean(axis=0), H - H.mean(axis=0)
        found["D"].append(n_2 * np.einsum("sab,scd->abcd", g, o) / (size - 1))
        found["A"].append(n_2 * np.einsum("sab,scd->abcd", o, o) / (size - 1))
        found["F"].append(F.mean(axis=0))
        found["B"].append(B.mean(axis=0))
    return {name: np.stack(values) for name, values in found.items()}


@pytest.mark.statistical
def test_real_networks_tend_to_the_leading_order() -> None:
    """Values at n = 8, 16, 32 are a + b/n + c/n^2; the weights 1/3, -2, 8/3 keep a alone."""
    given = (values[:3] for values in (C_B, C_W, RATE_B, RATE_W))
    settings = dict(zip(("C_b", "C_W", "lambda_b", "lambda_W"), given, strict=True))
    theory = flow(MLP("tanh", depth=3, width=[12, 8], **settings), X, NAMES)
    runs = [estimates(m, 100, size, seed=m) for m, size in ((8, 1500), (16, 1000), (32, 500))]
    weights = (1 / 3, -2.0, 8 / 3)
    scores = []
    for name in NAMES:
        for places in PLACES[name]:
            values = [run[name][:, *places] for run in runs]
            mean = sum(w * v.mean() for w, v in zip(weights, values, strict=True))
            error = np.sqrt(sum(w**2 * v.var(ddof=1) / len(v) for w, v in zip(weights, values, strict=True)))
            scores.append((mean - theory[name].values[-1][places]) / error)
    assert np.sqrt(np.mean(np.square(scores))) < 1.3
    assert np.abs(scores).max() < 3.5  # 20 scores, 1 in 100


STEPS = 0.5 * np.arange(-11, 12)
PLANE = np.stack(np.meshgrid(STEPS, STEPS, indexing="ij")).reshape(2, -1)[:, : len(STEPS) ** 2 // 2]
WEIGHTS = np.exp(-(PLANE**2).sum(axis=0) / 2)  # half the plane: everything integrated is even
CENTRE = 0.5
PAIRS = ([0, 0, 1], [0, 1, 1])


def after(G: np.ndarray, H: np.ndarray, Q: np.ndarray, layer: int) -> np.ndarray:
    """Means of metric and tangent kernel two layers on, on pairs: (draws, 6).

    A neuron z of the layer between is normal with covariance G; given z its weights are normal, so that its own
    tangent kernel has the mean H + z^T G^-1 Q G^-1 z - tr G^-1 Q with Q = (C_W / n)^2 s^T R s.
    """
    root = np.linalg.cholesky(G)
    inverse = np.linalg.inv(root)
    Q = np.einsum("sic,sabcd,sjd->sabij", inverse, Q, inverse, optimize=True)
    nodes = np.concatenate([PLANE, np.zeros((2, 1))], axis=1)
    weights = np.append(WEIGHTS, CENTRE) / (WEIGHTS.sum() + CENTRE)
    s = np.tanh(root @ nodes)
    slope = 1 - s**2
    own = np.einsum("sabij,ip,jp->sabp", Q, nodes, nodes, optimize=True)
    own += (H - np.einsum("sabii->sab", Q))[..., None]
    values = np.einsum("sap,sbp,p->sab", s, s, weights, optimize=True)
    slopes = np.einsum("sap,sbp,sabp,p->sab", slope, slope, own, weights, optimize=True)
    metric = C_B[layer] + C_W[layer] * values
    mean = RATE_B[layer] + RATE_W[layer] * values + C_W[layer] * slopes
    return on_pairs(metric, mean)


def on_pairs(metric: np.ndarray, mean: np.ndarray) -> np.ndarray:
    return np.concatenate([metric[:, *PAIRS], mean[:, *PAIRS]], axis=1)


def one_layer(s: np.ndarray, R: np.ndarray, layer: int, K: np.ndarray, Theta: np.ndarray) -> list[np.ndarray]:
    """Deviations (draws, 6) from K and Theta of this layer, and of the next, which is averaged over this one."""
    G, H = given(s, R, layer)
    Q = (C_W[layer] / s.shape[1]) ** 2 * np.einsum("sjc,sabjk,skd->sabcd", s, R, s, optimize=True)
    exact = K[layer][None], Theta[layer][None]
    leading = after(*exact, np.zeros((1, 2, 2, 2, 2)), layer + 1)
    return [on_pairs(G, H) - on_pairs(*exact), after(G, H, Q, layer + 1) - leading]


def shifts(m: int, blocks: int, size: int, theory: Mapping[str, Any]) -> np.ndarray:
    """Means of metric and tangent kernel minus the leading order, layers 3 and 4, block by block: (blocks, 2, 6).

    Layer 2 has none. The coefficients of the linear parts are fitted to a block that is not counted.
    """
    K, Theta = theory["K"].values, theory["Theta"].values
    rng, slopes, found = np.random.default_rng(m), [], []
    for block in range(blocks + 1):
        drawn = draw(rng, size, 3 * m // 2, m)
        layers = [one_layer(*drawn[2 * k : 2 * k + 2], k + 1, K, Theta) for k in (0, 1)]
        if block == 0:
            slopes = [np.linalg.lstsq(own - own.mean(0), ahead - ahead.mean(0))[0] for own, ahead in layers]
            continue
        third, fourth = (
            (ahead - own @ a).mean(axis=0) for (own, ahead), a in zip(layers, slopes, strict=True)
        )
        found.append([third, fourth + third @ slopes[1]])
    return np.array(found)


@pytest.mark.statistical
def test_mean_corrections_of_real_networks() -> None:
    """Layers 3 and 4: measured over predicted, best weighted over the three entries, is 1 to 2 percent."""
    settings = {"C_b": C_B, "C_W": C_W, "lambda_b": RATE_B, "lambda_W": RATE_W}
    theory = flow(MLP("tanh", depth=4, width=[12, 8, 16], **settings), X, ["K", "Theta", "G1", "H1"])
    runs = []
    for m, blocks, size in ((4, 40, 500), (8, 100, 500), (16, 400, 250)):
        runs.append(shifts(m, blocks, size, theory) * np.array([m, 2 * m])[:, None])
    powers = (1 / 3, -2.0, 8 / 3)  # of a + b/m + c/m^2 they keep a
    for layer in (0, 1):
        for name, entries in (("G1", slice(0, 3)), ("H1", slice(3, 6))):
            expected = theory[name].values[layer + 2][*PAIRS]
            values = [run[:, layer, entries] for run in runs]
            noise = sum(w**2 * v.var(axis=0, ddof=1) / len(v) for w, v in zip(powers, values, strict=True))
            best = expected / noise / (expected**2 / noise).sum()
            ratios = [v @ best for v in values]
            ratio = sum(w * v.mean() for w, v in zip(powers, ratios, strict=True))
            error = np.sqrt(sum(w**2 * v.var(ddof=1) / len(v) for w, v in zip(powers, ratios, strict=True)))
            assert error < 0.025
            assert abs(ratio - 1) < 3 * error
