"""Which networks are measured: widths, and how many of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.widths import (
    TERMS,
    TRUSTED_DEPTH_TO_WIDTH,
    WIDTH_OVER_DEPTH,
    check_scales,
    inverse_widths,
    scaled,
    share_draws,
)
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import is_list

Array = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Ladder:
    """The networks that were measured, from narrow to wide."""

    scales: tuple[float, ...]
    inverse: Array = field(repr=False)  # 1/n in units of the own width
    networks: tuple[MLP, ...] = field(repr=False)
    draws: tuple[int, ...]
    method: str
    batches: int

    @property
    def description(self) -> str:
        """Which networks were drawn, and how."""
        how = {
            "weights": "every weight drawn",
            "conditional": "layers drawn from their law given the layer before",
        }[self.method]
        hidden = (network.hidden_widths for network in self.networks)
        widths = (str(n[0]) if len(set(n)) == 1 else "-".join(map(str, n)) for n in hidden)
        rungs = (f"{draws:,} of width {width}" for draws, width in zip(self.draws, widths, strict=True))
        return f"{', '.join(rungs)} ({how})"

    def warn_if_too_deep(self) -> None:
        """Say so where the narrowest network is too narrow for its depth."""
        ratio = self.networks[0].depth_to_width
        if ratio > TRUSTED_DEPTH_TO_WIDTH:
            warn_user(
                f"the narrowest network has depth over width {ratio:.2g}: a quadratic in 1/n may not reach the "
                "limit, so give wider networks or larger `scales`."
            )


class Rungs(NamedTuple):
    """One network at several widths, from narrow to wide: the beginning of a ladder."""

    scales: tuple[float, ...]
    inverse: Array
    networks: tuple[MLP, ...]


def rungs_of(mlp: MLP, scales: Sequence[float] | None, width_over_depth: float = WIDTH_OVER_DEPTH) -> Rungs:
    """The network at the scales asked for, or at the usual ones."""
    chosen = check_scales(mlp, scales, width_over_depth)
    return Rungs(chosen, inverse_widths(mlp, chosen), tuple(scaled(mlp, scale) for scale in chosen))


def scales_of_widths(
    mlp: MLP, widths: Sequence[int] | None, scales: Sequence[float] | None = None
) -> Sequence[float] | None:
    """Multipliers of the network's own width, from widths, or as they are given."""
    if widths is None:
        return scales
    if scales is not None:
        raise InputError("widths and scales both say which networks are meant: give either widths or scales.")
    if len({*mlp.hidden_widths}) > 1:
        raise InputError(
            f"the hidden widths are {list(mlp.hidden_widths)}: widths can be given for equal ones only, so leave "
            "them out, and all layers grow together."
        )
    sizes = [whole_number("one of widths", width) for width in widths] if is_list(widths) else []
    if len({*sizes}) < TERMS:
        raise InputError(f"`widths` is {widths!r}: give at least {TERMS} different whole numbers.")
    return [size / own for size in sizes for own in mlp.hidden_widths[:1]]


def draws_by_width(draws: int | Sequence[int], inverse: Array, costs: Array) -> list[int]:
    """Networks of each width: as given, or shared out so that the limit is sharpest for the time they take."""
    if isinstance(draws, int | np.integer) and not isinstance(draws, bool):
        return share_draws(inverse, costs, int(draws))
    counts = np.asarray(draws)
    if counts.shape != inverse.shape or counts.dtype.kind not in "iu":
        raise InputError(
            f"`draws` is {draws!r}: give a whole number, or one for each of {len(inverse)} widths."
        )
    return [int(count) for count in counts]


def rounded_up(counts: Sequence[int], step: int) -> tuple[int, ...]:
    """To multiples of a step, so that batches are of equal size."""
    return tuple(-(-count // step) * step for count in counts)
