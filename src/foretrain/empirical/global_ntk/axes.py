"""Which axis of the states holds the features of a place, and which ones the places."""

from __future__ import annotations

from foretrain.operators import Space
from foretrain.operators.spaces import VectorSpace
from foretrain.support.errors import NotSupportedError


def feature_axis(space: Space) -> str:
    """The axis of units, of channels for images, or else the last."""
    return next((name for name in ("unit", "channel") if name in space.names), space.names[-1])


def places_of(space: VectorSpace, purpose: str) -> Space:
    """All axes but that of the units, which must be the last: states are then matrices (places, units)."""
    plain = space.plain(purpose)
    if feature_axis(plain) != plain.names[-1]:
        raise NotSupportedError(
            f"{purpose} needs states whose last axis is that of their units, but these have {plain.describe()}: take "
            "the partial traces that you mean, with partial_trace(`over=`...)."
        )
    return plain.without(plain.names[-1:])
