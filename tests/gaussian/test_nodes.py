"""Gauss rules integrate polynomials exactly, and nothing but ``gaussian`` builds them."""

from __future__ import annotations

import math
import re
from pathlib import Path

import numpy as np
import pytest

import foretrain
from foretrain.gaussian.nodes import gauss_hermite, gauss_laguerre, gauss_legendre, legendre_panels
from foretrain.gaussian.wick import double_factorial

PACKAGE = Path(foretrain.__file__).parent
BUILDERS = re.compile(r"\b(leggauss|hermgauss|hermegauss|laggauss|chebgauss|roots_[a-z]+|[pq]_roots)\(")


@pytest.mark.parametrize("count", [1, 4, 9])
def test_polynomials_up_to_twice_the_nodes_are_exact(count: int) -> None:
    for power in range(2 * count):
        x, w = gauss_legendre(count)
        assert w @ x**power == pytest.approx(1 / (power + 1), rel=1e-13)
        x, w = gauss_laguerre(count)
        assert w @ x**power == pytest.approx(math.factorial(power), rel=1e-12)
        x, w = gauss_hermite(count)
        even = 0 if power % 2 else double_factorial(power - 1)
        assert w @ x**power == pytest.approx(even, rel=1e-12, abs=1e-9 * max(1, double_factorial(power)))


def test_panels_are_integrated_one_by_one() -> None:
    edges = np.array([[-1.0, 0.0, 0.5, 2.0], [0.0, 1.0, 1.0, 3.0]])
    x, w = legendre_panels(edges, 5)
    assert x.shape == w.shape == (2, 15)
    np.testing.assert_allclose((w * np.abs(x)).sum(axis=1), [2.5, 4.5], rtol=1e-14)
    line, weights = legendre_panels(edges[0], 5)
    assert np.array_equal(line, x[0])
    assert np.array_equal(weights, w[0])


def test_nodes_that_are_kept_cannot_be_spoiled() -> None:
    with pytest.raises(ValueError, match="read-only"):
        gauss_legendre(4)[0][0] = 0.0


def test_one_file_builds_nodes() -> None:
    builders = [
        str(path.relative_to(PACKAGE))
        for path in sorted(PACKAGE.rglob("*.py"))
        if BUILDERS.search(path.read_text(encoding="utf-8"))
    ]
    assert builders == ["gaussian/nodes.py"]
