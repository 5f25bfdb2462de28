"""Correlators of several inputs, exact in width: E[z_(i1,a1) .. z_(i2m,a2m)] = sum_pi delta_pi(i) A_pi(a).

One layer of width n takes the amplitudes A of pairings to C_W^m sum_pi' n^(loops(pi, pi') - m) A_pi'.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from functools import cache
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.wick import Pairing, loop_count, pairings
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.linear.moments import DeepLinear, by_layer, check_one_gram, two_point

if TYPE_CHECKING:
    import xarray as xr

Amplitudes = dict[tuple[int, ...], Array]  # by the points that are left, then by their pairings

_MOST_POINTS = 8


def pairing_amplitudes(network: DeepLinear, gram: ArrayLike, inputs: Sequence[int]) -> xr.DataArray:
    """A_pi by layer and pairing, for the 2m points with the given inputs (an input may repeat), biases included.

    The coordinate names a pairing by the places of its points: "(12)(34)" joins the first two and the last two.
    """
    kernel = check_one_gram(gram)
    if len(inputs) % 2 or not inputs:
        raise InputError(f"{len(inputs)} points have no correlator: name an even number of inputs.")
    if len(inputs) > _MOST_POINTS:
        raise NotSupportedError(
            f"{len(inputs)} points have {math.prod(range(len(inputs) - 1, 0, -2))} pairings: "
            f"correlators of several inputs are offered up to {_MOST_POINTS} points."
        )
    if any(not 0 <= index < len(kernel) for index in inputs):
        raise InputError(f"the inputs {tuple(inputs)} must lie within the {len(kernel)} of the Gram matrix.")
    points = tuple(range(len(inputs)))
    # Layer 1 is Gaussian: products of its two-point. Smaller sets of points are needed where biases act.
    first = network.biases[0] + network.gains[0] * kernel[np.ix_(inputs, inputs)]
    sizes = range(0, len(points) + 1, 2) if any(network.biases[1:]) else [len(points)]
    amplitudes: Amplitudes = {
        kept: np.array([math.prod(first[kept[a], kept[b]] for a, b in pairing) for pairing in pairings(size)])
        for size in sizes
        for kept in combinations(points, size)
    }
    flow = [amplitudes[points]]
    for n, gain, bias in zip(network.widths, network.gains[1:], network.biases[1:]):
        amplitudes = _next_layer(amplitudes, n, gain, bias)
        flow.append(amplitudes[points])
    names = ["".join(f"({a + 1}{b + 1})" for a, b in pairing) for pairing in pairings(len(points))]
    return by_layer(network, np.stack(flow), "A", pairing=names)


def correlator(
    network: DeepLinear, gram: ArrayLike, inputs: Sequence[int], neurons: Sequence[Hashable]
) -> xr.DataArray:
    """The full E[z_(i1,a1) .. z_(i2m,a2m)] by layer, for neurons i and inputs a."""
    if len(neurons) != len(inputs):
        raise InputError(f"{len(inputs)} inputs but {len(neurons)} neurons are named: each point needs both.")
    joined = [all(neurons[a] == neurons[b] for a, b in pairing) for pairing in pairings(len(inputs))]
    amplitudes = pairing_amplitudes(network, gram, inputs)
    return amplitudes.where(np.array(joined), 0.0).sum("pairing").rename("E")


def connected_four_point(network: DeepLinear, gram: ArrayLike, quadruples: ArrayLike) -> xr.DataArray:
    """A_(12)(34) - G_12 G_34 by layer for input quadruples (Q, 4), biases included; no N^4 object is formed.

    This is the connected correlator of neurons i, i, j, j with j != i. The recursion is run on the connected
    part itself, so nothing cancels at large width.
    """
    kernel = check_one_gram(gram)
    chosen = np.asarray(quadruples, dtype=np.intp)
    if chosen.ndim != 2 or chosen.shape[1] != 4:
        raise InputError(f"the quadruples must be a table (Q, 4) of inputs, not of shape {chosen.shape}.")
    if ((chosen < 0) | (chosen >= len(kernel))).any():
        raise InputError(f"the quadruples name inputs outside the {len(kernel)} of the Gram matrix.")
    kernels = two_point(network, kernel).values
    part = np.zeros((3, len(chosen)))
    a, b, c, d = chosen.T
    flow = [part[0]]
    for n, gain, below in zip(network.widths, network.gains[1:], kernels):
        full = part + np.stack(
            [below[a, b] * below[c, d], below[a, c] * below[b, d], below[a, d] * below[b, c]]
        )
        part = gain**2 * (part + (full.sum(axis=0) - full) / n)
        flow.append(part[0])
    return by_layer(network, np.stack(flow), "A connected", quadruple=None)


def _next_layer(below: Amplitudes, n: int, gain: float, bias: float) -> Amplitudes:
    """Each pair of a pairing carries C_b, or C_W / n times a sum over the neurons below."""
    passed = {}
    for kept, A in below.items():
        weights = float(n) ** (_loops(len(kept)) - len(kept) // 2)
        passed[kept] = gain ** (len(kept) // 2) * (weights @ A)
    if len(below) == 1:
        return passed
    return {
        kept: np.array([_with_biases(kept, pairing, passed, bias) for pairing in pairings(len(kept))])
        for kept in below
    }


def _with_biases(kept: tuple[int, ...], pairing: Pairing, passed: Amplitudes, bias: float) -> float:
    pairs = [(kept[a], kept[b]) for a, b in pairing]
    total = 0.0
    for size in range(len(pairs) + 1):
        for through in combinations(pairs, size):
            points = tuple(sorted(point for pair in through for point in pair))
            place = {point: index for index, point in enumerate(points)}
            inner = tuple((place[a], place[b]) for a, b in through)
            total += bias ** (len(pairs) - size) * passed[points][_pairing_places(len(points))[inner]]
    return total


@cache
def _pairing_places(points: int) -> dict[Pairing, int]:
    return {pairing: index for index, pairing in enumerate(pairings(points))}


@cache
def _loops(points: int) -> NDArray[np.intp]:
    every = pairings(points)
    return np.array([[loop_count(one, two) for two in every] for one in every])
