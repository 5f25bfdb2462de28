"""When do two damped groups of amplitudes feed each other enough to grow? (Prop. 24, Thm 25)

The block matrix [[-A, B], [C, -D]], A and D diagonal and positive, B and C nonnegative, has a positive eigenvalue
exactly if the spectral radius of D^-1 C A^-1 B is above 1; the eigenvalue solves
rho((D + x)^-1 C (A + x)^-1 B) = 1 (56), (57), whose left side falls with x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from foretrain.saddle.parameters import Array
from foretrain.support.answers import Result
from foretrain.support.errors import InputError


@dataclass(frozen=True, repr=False)
class SchurPerron(Result):
    """``gain`` is rho(D^-1 C A^-1 B); ``growth`` the positive eigenvalue, None where the gain is at most 1."""

    gain: float
    growth: float | None


def schur_perron(A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike) -> SchurPerron:
    """The test and the rate of growth, for dampings A (n) and D (m), couplings B (n, m) and C (m, n).

    >>> schur_perron([1.0], [[2.0]], [[2.0]], [1.0]).gain
    4.0
    """
    a, b, c, d = (np.array(values, dtype=float) for values in (A, B, C, D))
    _check(a, b, c, d)

    def gain(x: float) -> float:
        product = (c / (d + x)[:, None]) @ (b / (a + x)[:, None])
        return float(np.abs(np.linalg.eigvals(product)).max())

    start = gain(0.0)
    if start <= 1:
        return SchurPerron(start, None)
    high = float(np.sqrt(np.linalg.norm(b, 2) * np.linalg.norm(c, 2)))  # there the gain is below 1
    return SchurPerron(start, float(brentq(lambda x: gain(x) - 1, 0.0, high, xtol=1e-15 * high, rtol=1e-14)))


def truncated_growth(A: ArrayLike, B: ArrayLike, C: ArrayLike, D: ArrayLike) -> Array:
    """The positive eigenvalue when only the first 1, 2, ... amplitudes of the second group are kept; nan for none.

    Each one adds nonnegative couplings, so that the rates increase: a closure that leaves amplitudes out is too slow
    (Thm 25, strictly for irreducible couplings).
    """
    a, b, c, d = (np.array(values, dtype=float) for values in (A, B, C, D))
    _check(a, b, c, d)
    found = [schur_perron(a, b[:, :kept], c[:kept], d[:kept]).growth for kept in range(1, len(d) + 1)]
    return np.array([np.nan if rate is None else rate for rate in found])


def graded_example(size: int, decay: float = 0.5) -> tuple[Array, Array, Array, Array]:
    """A compact nonnegative graded matrix of our own, for showing that no truncation closes: not from a network.

    Two amplitudes of the first group couple to graded ones of the second with strengths decay^j and j-th dampings
    1 + j, so that each one left out matters less but never nothing.
    """
    if size < 1 or not 0 < decay < 1:
        raise InputError(f"size is {size} and decay {decay:g}: give 1 or more and a number between 0 and 1.")
    grades = np.arange(size, dtype=np.float64)
    falling: Array = decay**grades
    coupling: Array = np.stack([falling, 0.5 * falling])
    return np.array([1.0, 1.5]), 2 * coupling, 2 * coupling.T, 1.0 + grades


def _check(a: Array, b: Array, c: Array, d: Array) -> None:
    if a.ndim != 1 or d.ndim != 1 or b.shape != (len(a), len(d)) or c.shape != (len(d), len(a)) or not len(d):
        raise InputError(
            f"the shapes are {a.shape}, {b.shape}, {c.shape}, {d.shape}: give (n), (n, m), (m, n) and (m)."
        )
    if not all(np.isfinite(values).all() for values in (a, b, c, d)):
        raise InputError("the matrices must be finite.")
    if (a <= 0).any() or (d <= 0).any() or (b < 0).any() or (c < 0).any():
        raise InputError("dampings must be positive and couplings not negative.")
