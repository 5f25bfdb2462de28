"""Checks that every sampler makes on what it is given."""

from __future__ import annotations

from collections.abc import Sequence

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import MOST_DRAWS


def check_draws(draws: object) -> int:
    """The number of networks as a whole number of at least 2, since a standard error needs two."""
    count = whole_number("draws", draws, least=2)
    if count > MOST_DRAWS:
        raise InputError(f"`draws` is {count:,}: give at most {MOST_DRAWS:,}.")
    return count


def check_layers(mlp: MLP, layers: Sequence[int] | None) -> tuple[int, ...]:
    """The layers asked for, in order; None means all of 1..L."""
    if layers is None:
        return tuple(range(1, mlp.depth + 1))
    chosen = tuple(sorted({mlp.check_layer(layer) for layer in layers}))
    if not chosen:
        raise InputError(f"layers is empty: choose from 1 to {mlp.depth}, or leave it out for all.")
    return chosen
