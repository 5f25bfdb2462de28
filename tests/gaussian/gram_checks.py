"""Comparison of Gram matrices with the rules for one and two inputs, entry by entry."""

from __future__ import annotations

from typing import Any

import numpy as np

from foretrain.gaussian import Expectation, expectation, gram
from foretrain.gaussian.factors import as_factor


def inputs(size: int, kind: str, seed: int = 0, dimension: int = 40) -> np.ndarray:
    """Covariances of random inputs: spread, nearly parallel, wide, tiny, or with repeated ones."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((size, dimension))
    common = rng.standard_normal((1, dimension))
    if kind == "spread":
        X *= np.exp(0.5 * rng.standard_normal((size, 1)))
    elif kind == "near":
        X = common + 0.05 * X
    elif kind == "wide":
        X *= 10
    elif kind == "tiny":
        X *= 1e-4
    elif kind == "repeated":
        X[size // 2] = X[0]
        X[-1] = -1.5 * X[1]
        X[2] = 0.0
    return np.asarray(X @ X.T / dimension)


def single(products: Any, K: np.ndarray, **options: Any) -> Expectation:
    result = gram([products] if isinstance(products, tuple) else products, K, **options)
    return result[0] if isinstance(result, list) else result


def entry(f: Any, g: Any, K: np.ndarray, i: int, j: int) -> Expectation:
    f, g = as_factor(f), as_factor(g)
    if i == j:
        return expectation([f * g], K[i : i + 1, i : i + 1], tolerance=1e-12)
    return expectation([f, g], K[np.ix_([i, j], [i, j])], tolerance=1e-12)


def norms(f: Any, K: np.ndarray) -> np.ndarray:
    square = as_factor(f).pointwise() ** 2
    return np.sqrt(expectation([square], np.diagonal(K)[:, None, None], tolerance=1e-6).value)


def compare(f: Any, g: Any, K: np.ndarray, found: Expectation, tolerance: float, entries: int = 12) -> None:
    """Entry by entry against the rules for one and two inputs; the error estimate is honest."""
    size = len(K)
    scale = np.multiply.outer(norms(f, K), norms(g, K))
    rng = np.random.default_rng(1)
    chosen = {
        (0, 0),
        (0, size // 2),
        (size - 1, min(1, size - 1)),
        (min(2, size - 1), 0),
        (min(2, size - 1),) * 2,
    }
    chosen |= {(int(a), int(b)) for a, b in rng.integers(0, size, (entries, 2))}
    assert found.value.shape == found.error.shape == (size, size)
    for i, j in sorted(chosen):
        alone = entry(f, g, K, i, j)
        off = abs(found.value[i, j] - float(alone))
        assert off <= 2 * tolerance * scale[i, j], f"({i}, {j}): off by {off:.1e}"
        assert off <= found.error[i, j] + float(alone.error) + 1e-13 * scale[i, j], (
            f"({i}, {j}) is not honest"
        )
