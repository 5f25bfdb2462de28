"""Which networks are measured: several widths of one network, how many of each, and the limit of infinite width."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from foretrain.compare.judging.entries import BatchValues
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, spawn
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.arguments import is_list

if TYPE_CHECKING:
    import xarray


TERMS = 3  # value, 1/n and 1/n²
_LADDERS = ((0.25, 0.5, 1.0), (0.5, 1.0, 2.0), (1.0, 2.0, 4.0))
WIDTH_OVER_DEPTH = 6.0  # of the narrowest network, where it can be chosen
TRUSTED_DEPTH_TO_WIDTH = 0.25  # of the narrowest network: beyond it a quadratic in 1/n does not suffice


def default_scales(mlp: MLP, width_over_depth: float = WIDTH_OVER_DEPTH) -> tuple[float, ...]:
    """Three widths a factor 2 apart, the own one among them, the narrowest wide enough for the depth if possible."""
    for ladder in _LADDERS[:-1]:
        narrowest = ladder[0] * min(mlp.hidden_widths)
        divisible = all((scale * width).is_integer() for scale in ladder for width in mlp.hidden_widths)
        if divisible and narrowest >= width_over_depth * mlp.depth:
            return ladder
    return _LADDERS[-1]


def check_scales(
    mlp: MLP, scales: Sequence[float] | None, width_over_depth: float = WIDTH_OVER_DEPTH
) -> tuple[float, ...]:
    """The multipliers of the hidden widths, increasing."""
    if not mlp.hidden_widths:
        raise InputError(
            "depth 1 has no hidden layer, so nothing depends on the width: give depth 2 or more."
        )
    try:
        given = default_scales(mlp, width_over_depth) if scales is None else scales
        chosen = tuple(sorted(np.asarray(given, dtype=np.float64).reshape(-1).tolist()))
    except (TypeError, ValueError):
        raise InputError(
            f"`scales` are {scales!r}: give at least {TERMS} different positive multipliers."
        ) from None
    if len(set(chosen)) < TERMS or chosen[0] <= 0 or not np.isfinite(chosen).all():
        raise InputError(
            f"`scales` are {list(chosen)}: give at least {TERMS} different positive multipliers."
        )
    for scale in chosen:
        widths = [scale * width for width in mlp.hidden_widths]
        if len(set(mlp.hidden_widths)) > 1 and not all(width.is_integer() for width in widths):
            raise InputError(
                f"scale {scale:g} makes the hidden widths {widths}: unequal widths keep their ratios only if all "
                "products are whole numbers."
            )
        if min(map(round, widths)) < 2:
            raise InputError(
                f"scale {scale:g} leaves fewer than two neurons in a layer: give larger `scales`."
            )
    widths_drawn = sorted({round(scale * mlp.hidden_widths[0]) for scale in chosen})
    if len(widths_drawn) < TERMS:
        raise InputError(
            f"scales {list(chosen)} make only the widths {widths_drawn}: give at least {TERMS} that differ by a "
            "neuron or more."
        )
    return chosen


def scaled(mlp: MLP, scale: float) -> MLP:
    """The same network with all hidden widths multiplied."""
    return mlp.replace(width=[round(scale * width) for width in mlp.hidden_widths])


def inverse_widths(mlp: MLP, scales: Sequence[float]) -> FloatArray:
    """1/n in units of the own width: 1 / scale, up to rounding of equal widths."""
    own = mlp.hidden_widths[0]
    return np.array([own / round(scale * own) for scale in scales])


def extrapolation_weights(inverse: FloatArray, standard_error: FloatArray) -> FloatArray:
    """(widths, entries): what each measurement contributes to the value at 1/n = 0.

    Least squares with a quadratic in 1/n, weighted by the standard errors (widths, entries); with three widths it
    passes through the points.
    """
    design = np.stack([inverse**power for power in range(TERMS)], axis=1)
    largest = standard_error.max(axis=0)
    relative = np.where(largest > 0, standard_error / np.where(largest > 0, largest, 1.0), 1.0)
    weight = 1 / np.maximum(relative, 1e-6)  # (widths, entries)
    weighted = design[None] * weight.T[:, :, None]  # (entries, widths, terms)
    return np.asarray((np.linalg.pinv(weighted)[:, 0, :] * weight.T).T)


def share_draws(inverse: FloatArray, costs: FloatArray, draws: int) -> list[int]:
    """Draws per width with the given mean, so that the noise of the limit is least for the time they take."""
    weights = extrapolation_weights(inverse, np.ones((len(inverse), 1)))[:, 0]
    shares = np.abs(weights) / np.sqrt(costs)
    return [max(1, round(share)) for share in draws * shares / shares.mean()]


@dataclass(frozen=True, eq=False)
class Ladder:
    """The networks that were measured, from narrow to wide."""

    scales: tuple[float, ...]
    inverse: FloatArray = field(repr=False)  # 1/n in units of the own width
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
    inverse: FloatArray
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
    sizes = [whole_number("widths", width) for width in widths] if is_list(widths) else []
    if len({*sizes}) < TERMS:
        raise InputError(f"`widths` is {widths!r}: give at least {TERMS} different whole numbers.")
    return [size / own for size in sizes for own in mlp.hidden_widths[:1]]


def draws_by_width(draws: int | Sequence[int], inverse: FloatArray, costs: FloatArray) -> list[int]:
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


Keeper: TypeAlias = "Callable[[str, Callable[[], xarray.Dataset]], xarray.Dataset]"
Measure: TypeAlias = Callable[
    [MLP, int, int, Seed], tuple[BatchValues, float]
]  # network, draws, batches, seed


def measured_widths(
    measure: Measure, ladder: Ladder, seed: Seed, keeper: Keeper | None
) -> tuple[tuple[BatchValues, ...], FloatArray]:
    """Batch values of every width, and the mean numbers of steps; the keeper gives back what it kept."""
    keep = keeper or (lambda name, compute: compute())
    seeds = spawn(seed, len(ladder.networks))
    found = [
        keep(
            f"width {network.hidden_widths[0]}", partial(_part, measure, network, draws, ladder.batches, own)
        )
        for network, draws, own in zip(ladder.networks, ladder.draws, seeds, strict=True)
    ]
    batches = tuple(BatchValues(each["values"].values) for each in found)
    return batches, np.array([float(each["steps"]) for each in found])


def _part(measure: Measure, network: MLP, draws: int, batches: int, seed: Seed) -> xarray.Dataset:
    import xarray

    found, steps = measure(network, draws, batches, seed)
    return xarray.Dataset({"values": (("batch", "entry"), found.values), "steps": ((), steps)})
