"""D, F, A, B and H1 against real random networks of three widths, extrapolated to infinite width."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

X = np.array([[1, 0.5, -0.7], [0.2, -1.1, 0.9]])
C_B, C_W = (0.1, 0.05, 0.2), (1.0, 1.5, 1.3)
RATE_B, RATE_W = (0.3, 0.2, 0.5), (1.0, 0.7, 1.2)
NAMES = ["D", "F", "A", "B"]
# Entries that no symmetry relates.
PLACES = {
    "D": [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 0), (0, 1, 0, 1), (0, 0, 1, 1), (1, 1, 0, 0)],
    "F": [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, 1, 1, 0)],
    "A": [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1)],
    "B": [(0, 0, 0, 0), (0, 0, 0, 1), (0, 1, 0, 1), (0, 0, 1, 1), (0, 1, 1, 0)],
}


def draw(rng: np.random.Generator, draws: int, n_1: int, n_2: int) -> tuple[np.ndarray, ...]:
    """Metric, tangent kernel and cross sums of layer 3 given layer 2, by the forward equation (8.12)."""

    def normal(*shape: int, variance: float) -> np.ndarray:
        return np.sqrt(variance) * rng.standard_normal((draws, *shape))

    z = normal(n_1, 1, variance=C_B[0]) + normal(n_1, 3, variance=C_W[0] / 3) @ X.T
    H_1 = RATE_B[0] + RATE_W[0] * X @ X.T / 3
    s, slope = np.tanh(z), 1 / np.cosh(z) ** 2
    W = normal(n_2, n_1, variance=C_W[1] / n_1)
    z = normal(n_2, 1, variance=C_B[1]) + W @ s
    same = RATE_B[1] + RATE_W[1] * np.einsum("sja,sjb->sab", s, s) / n_1
    passed = W[..., None] * slope[:, None]  # (draws, n_2, n_1, inputs)
    H = np.einsum("siJa,skJb->sabik", passed, passed, optimize=True) * H_1[:, :, None, None]
    H = H + same[..., None, None] * np.eye(n_2)
    s, slope = np.tanh(z), 1 / np.cosh(z) ** 2
    R = H * slope.transpose(0, 2, 1)[:, :, None, :, None] * slope.transpose(0, 2, 1)[:, None, :, None, :]
    gram = np.einsum("sja,sjb->sab", s, s) / n_2
    G = C_B[2] + C_W[2] * gram
    mean = RATE_B[2] + RATE_W[2] * gram + C_W[2] * np.einsum("sabjj->sab", R) / n_2
    F = C_W[2] ** 2 / n_2 * np.einsum("sja,scdjk,skb->sacbd", s, R, s, optimize=True)
    B = C_W[2] ** 2 / n_2 * np.einsum("sabjk,scdjk->sacbd", R, R, optimize=True)
    return G, mean, F, B


def estimates(m: int, blocks: int, size: int, seed: int) -> dict[str, np.ndarray]:
    """The conditional estimators block by block: values (blocks, ...)."""
    rng, n_2 = np.random.default_rng(seed), m
    found: dict[str, list[np.ndarray]] = {name: [] for name in [*NAMES, "H"]}
    for _ in range(blocks):
        G, H, F, B = draw(rng, size, 3 * m // 2, n_2)
        g, o = G - G.mean(axis=0), H - H.mean(axis=0)
        found["D"].append(n_2 * np.einsum("sab,scd->abcd", g, o) / (size - 1))
        found["A"].append(n_2 * np.einsum("sab,scd->abcd", o, o) / (size - 1))
        found["F"].append(F.mean(axis=0))
        found["B"].append(B.mean(axis=0))
        found["H"].append(H.mean(axis=0))
    return {name: np.stack(values) for name, values in found.items()}


@pytest.mark.statistical
def test_real_networks_tend_to_the_leading_order() -> None:
    """Values at n = 8, 16, 32 are a + b/n + c/n^2; the weights 1/3, -2, 8/3 keep a alone."""
    net = MLP("tanh", depth=3, width=[12, 8], C_b=C_B, C_W=C_W, lambda_b=RATE_B, lambda_W=RATE_W)
    theory = flow(net, X, ["Theta", "H1", *NAMES])
    runs = [estimates(m, 100, size, seed=m) for m, size in ((8, 1500), (16, 1000), (32, 500))]
    weights = (1 / 3, -2.0, 8 / 3)
    scores = []
    for name in NAMES:
        for places in PLACES[name]:
            values = [run[name][:, *places] for run in runs]
            mean = sum(w * v.mean() for w, v in zip(weights, values, strict=True))
            error = np.sqrt(sum(w**2 * v.var(ddof=1) / len(v) for w, v in zip(weights, values, strict=True)))
            scores.append((mean - theory[name].values[-1][places]) / error)
    for m, run in zip((8, 16, 32), runs, strict=True):
        for places in ((0, 0), (0, 1)):
            shift = m * (run["H"][:, *places] - theory["Theta"].values[-1][places])
            error = shift.std(ddof=1) / np.sqrt(len(shift))
            # What is beyond H1 is of order 1/n.
            assert abs(shift.mean() - theory["H1"].values[-1][places]) < 3.5 * error + 0.5 / m
    assert np.sqrt(np.mean(np.square(scores))) < 1.3
    assert np.abs(scores).max() < 3.5  # 20 scores, 1 in 100
