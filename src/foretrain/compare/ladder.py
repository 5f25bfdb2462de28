"""Which networks are measured: widths, and how many of each."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.ensembles import METHODS
from foretrain.compare.estimators import DIFFERENTIAL, TANGENT
from foretrain.compare.widths import (
    TRUSTED_DEPTH_TO_WIDTH,
    WIDTH_OVER_DEPTH,
    check_scales,
    inverse_widths,
    scaled,
    share_draws,
)
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError, unknown_name
from foretrain.theory.architecture import MLP

Array = NDArray[np.float64]

BATCHES = 1000
_FEWEST_BATCHES = 50
_TANGENT_WIDTH_OVER_DEPTH = 4.0  # carrying NTKs costs n³: as narrow as a quadratic in 1/n can be trusted
_MOST_NUMBERS = 1e10  # random numbers beyond which weights are not drawn one by one unless asked for


@dataclass(frozen=True, eq=False)
class Ladder:
    """The networks that were measured, from narrow to wide."""

    scales: tuple[float, ...]
    inverse: Array  # 1/n in units of the own width
    networks: tuple[MLP, ...]
    draws: tuple[int, ...]
    method: str
    batches: int


def plan(
    mlp: MLP, inputs: int, draws: int, scales: Sequence[float] | None, method: str, names: Sequence[str]
) -> Ladder:
    """Widths and draws for the observables asked for; NTKs and their differentials are carried by weights."""
    tangent = bool({*names} & {*TANGENT})
    carried = tangent or bool({*names} & {*DIFFERENTIAL})
    narrow = tangent and not {*names} & {*DIFFERENTIAL}
    chosen_scales = check_scales(mlp, scales, _TANGENT_WIDTH_OVER_DEPTH if narrow else WIDTH_OVER_DEPTH)
    _check_method(method, draws, carried)
    networks = tuple(scaled(mlp, scale) for scale in chosen_scales)
    inverse = inverse_widths(mlp, chosen_scales)
    for chosen in _allowed_methods(method, carried):
        numbers = [_numbers_per_draw(network, inputs, chosen) for network in networks]
        costs = np.array(numbers, dtype=float)
        if tangent:  # products of matrices n × n take the time
            costs *= [max(network.hidden_widths) for network in networks]
        shares = share_draws(inverse, costs, int(draws))
        if np.dot(numbers, shares) <= _MOST_NUMBERS:
            break
    batches = max(_FEWEST_BATCHES, min(BATCHES, min(shares) // 4))
    counts = tuple(-(-count // batches) * batches for count in shares)
    return Ladder(chosen_scales, inverse, networks, counts, chosen, batches)


def _check_method(method: str, draws: object, carried: bool) -> None:
    if method not in ("auto", *METHODS):
        raise unknown_name("sampling method", str(method), ("auto", *METHODS))
    if carried and method == "conditional":
        raise NotSupportedError("the NTK is carried by weights: use method='weights'.")
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 10 * _FEWEST_BATCHES:
        raise InputError(f"draws is {draws!r}: give a whole number of at least {10 * _FEWEST_BATCHES}.")


def _allowed_methods(method: str, carried: bool) -> tuple[str, ...]:
    if method != "auto":
        return (method,)
    return ("weights",) if carried else METHODS


def _numbers_per_draw(mlp: MLP, inputs: int, method: str) -> int:
    """Random numbers of one network, up to the last hidden layer."""
    if method == "conditional":
        return inputs * sum(mlp.hidden_widths)
    return sum(n * fan_in for fan_in, n in pairwise(mlp.widths[:-1]))


def warn_if_too_deep(ladder: Ladder) -> None:
    """Say so where the narrowest network is too narrow for its depth."""
    ratio = ladder.networks[0].depth_to_width
    if ratio > TRUSTED_DEPTH_TO_WIDTH:
        warnings.warn(
            f"the narrowest network has depth over width {ratio:.2g}: a quadratic in 1/n may not reach the limit, "
            "so give wider networks or larger scales.",
            AccuracyWarning,
            stacklevel=3,
        )
