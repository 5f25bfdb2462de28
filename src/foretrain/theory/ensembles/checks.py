"""Checks that every sampler makes on what it is given."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import cast

from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP


def check_draws(draws: object) -> int:
    """The number of networks as a whole number of at least 2, since a standard error needs two."""
    try:
        count = operator.index(cast("int", draws))
    except TypeError:
        count = 0
    if isinstance(draws, bool) or count < 2:
        raise InputError(f"draws is {draws!r}: give a whole number of networks, at least 2.")
    return count


def check_layers(mlp: MLP, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The layers asked for, in order; None means all of 1..L."""
    if layers is None:
        return tuple(range(1, mlp.depth + 1))
    chosen = tuple(sorted({operator.index(layer) for layer in layers}))
    if not chosen or chosen[0] < 1 or chosen[-1] > mlp.depth:
        raise InputError(f"layers is {list(layers)}: choose from 1 to {mlp.depth}.")
    return chosen
