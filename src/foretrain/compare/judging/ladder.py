"""What is measured on which networks: entries, in batches, at several widths of one network, and their limit."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.arguments import is_list

if TYPE_CHECKING:
    import xarray


TERMS = 3  # value, 1/n and 1/n²
_LADDERS = ((0.25, 0.5, 1.0), (0.5, 1.0, 2.0), (1.0, 2.0, 4.0))
WIDTH_OVER_DEPTH = 6.0  # of the narrowest network, where it can be chosen

Keeper: TypeAlias = "Callable[[str, Callable[[], xarray.Dataset]], xarray.Dataset]"


@dataclass(frozen=True, order=True)
class Entry:
    """One number that theory and measurement share: an observable, a layer and indices of inputs."""

    observable: str
    layer: int
    inputs: tuple[int, ...]

    @property
    def label(self) -> str:
        """For example ``V_(00)(01)``."""
        numbers = [str(i) for i in self.inputs]
        if self.observable in ("V", "A"):
            return f"{self.observable}_({''.join(numbers[:2])})({''.join(numbers[2:])})"
        return f"{self.observable}_{''.join(numbers)}"


@dataclass(frozen=True)
class BatchValues:
    """One value per batch and entry: their mean is the estimate, their scatter its error."""

    values: FloatArray = field(repr=False)  # (batches, entries)

    @classmethod
    def jackknife(
        cls, function: Callable[[dict[str, FloatArray]], FloatArray], means: Mapping[str, FloatArray]
    ) -> BatchValues:
        """Pseudo-values of a function of means over networks, from named means over each batch (batches, ...).

        The function takes means with any leading axis. Leaving out one batch at a time gives one pseudo-value per
        batch, whose mean is the estimate, freed of its bias of order 1 / networks.
        """
        batches = len(next(iter(means.values())))
        everything = {name: column.mean(axis=0)[None] for name, column in means.items()}
        without_one = {name: (column.sum(axis=0) - column) / (batches - 1) for name, column in means.items()}
        return cls(batches * function(everything) - (batches - 1) * function(without_one))

    @property
    def estimate(self) -> FloatArray:
        """(entries,)."""
        return np.asarray(self.values.mean(axis=0))

    @property
    def covariance(self) -> FloatArray:
        """(entries, entries), of the estimates."""
        return np.atleast_2d(np.cov(self.values, rowvar=False)) / len(self.values)

    @property
    def freedom(self) -> FloatArray:
        """(entries,): of how many normal samples a variance would be as well known as that of these batches.

        The variance of a sample variance is (2 + excess kurtosis) / samples, relatively.
        """
        batches = len(self.values)
        centred = self.values - self.values.mean(axis=0)
        deviation = centred.std(axis=0)
        unit = centred / np.where(deviation > 0, deviation, 1.0)
        excess = np.maximum((unit**4).mean(axis=0) - 3, 0.0)
        return np.asarray((batches - 1) / (1 + excess / 2))

    @property
    def standard_error(self) -> FloatArray:
        """(entries,)."""
        return np.asarray(self.values.std(axis=0, ddof=1) / np.sqrt(len(self.values)))


@dataclass(frozen=True)
class Asked:
    """Which networks are asked for: how many, how wide, from which seed, and what keeps those that are finished."""

    draws: int | Sequence[int]  # of each width on average, or by width
    widths: Sequence[int] | None = None
    scales: Sequence[float] | None = None
    seed: Seed = 0
    keeper: Keeper | None = None

    def rungs(self, mlp: MLP, width_over_depth: float = WIDTH_OVER_DEPTH) -> Rungs:
        """The network at the widths or scales asked for, or at the usual ones."""
        scales = check_scales(mlp, self._multipliers(mlp), width_over_depth)
        own = mlp.hidden_widths[0]
        inverse = np.array([own / round(scale * own) for scale in scales])
        networks = (
            mlp.replace(width=[round(scale * width) for width in mlp.hidden_widths]) for scale in scales
        )
        return Rungs(scales, inverse, tuple(networks))

    def _multipliers(self, mlp: MLP) -> Sequence[float] | None:
        """Multipliers of the network's own width, from widths, or as they are given."""
        widths = self.widths
        if widths is None:
            return self.scales
        if self.scales is not None:
            raise InputError(
                "widths and scales both say which networks are meant: give either widths or scales."
            )
        if len({*mlp.hidden_widths}) > 1:
            raise InputError(
                f"the hidden widths are {list(mlp.hidden_widths)}: widths can be given for equal ones only, so leave "
                "them out, and all layers grow together."
            )
        sizes = [whole_number("widths", width) for width in widths] if is_list(widths) else []
        if len({*sizes}) < TERMS:
            raise InputError(f"`widths` is {widths!r}: give at least {TERMS} different whole numbers.")
        return [size / own for size in sizes for own in mlp.hidden_widths[:1]]

    def counts(self, inverse: FloatArray, costs: FloatArray) -> list[int]:
        """Networks of each width: as given, or shared out so that the limit is sharpest for the time they take."""
        draws = self.draws
        if isinstance(draws, int | np.integer) and not isinstance(draws, bool):
            return share_draws(inverse, costs, int(draws))
        counts = np.asarray(draws)
        if counts.shape != inverse.shape or counts.dtype.kind not in "iu":
            raise InputError(
                f"`draws` is {draws!r}: give a whole number, or one for each of {len(inverse)} widths."
            )
        return [int(count) for count in counts]


class Rungs(NamedTuple):
    """One network at several widths, from narrow to wide: the beginning of a ladder."""

    scales: tuple[float, ...]
    inverse: FloatArray  # 1/n in units of the own width: 1 / scale, up to rounding of equal widths
    networks: tuple[MLP, ...]


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


def extrapolation_weights(inverse: FloatArray, standard_error: FloatArray) -> FloatArray:
    """(widths, entries): what each measurement contributes to the value at 1/n = 0.

    Least squares with a quadratic in 1/n, weighted by the standard errors (widths, entries); with three widths it
    passes through the points, with two a line does.
    """
    design = np.stack([inverse**power for power in range(min(TERMS, len(inverse)))], axis=1)
    largest = standard_error.max(axis=0)
    relative = np.where(largest > 0, standard_error / np.where(largest > 0, largest, 1.0), 1.0)
    weight = 1 / np.maximum(relative, 1e-6)  # (widths, entries)
    weighted = design[None] * weight.T[:, :, None]  # (entries, widths, terms)
    return np.asarray((np.linalg.pinv(weighted)[:, 0, :] * weight.T).T)


class Extrapolated:
    """Entries measured in batches at several widths, and their limit of infinite width."""

    batches: tuple[BatchValues, ...]  # by width

    @property
    def inverse_widths(self) -> FloatArray:
        """1/n of every width."""
        raise NotImplementedError

    @cached_property
    def measured(self) -> FloatArray:
        """(widths, entries)."""
        return np.stack([batch.estimate for batch in self.batches])

    @cached_property
    def measured_error(self) -> FloatArray:
        """Standard errors (widths, entries)."""
        return np.stack([batch.standard_error for batch in self.batches])

    @cached_property
    def _weights(self) -> FloatArray:
        return extrapolation_weights(self.inverse_widths, self.measured_error)

    @cached_property
    def limit(self) -> FloatArray:
        """Extrapolated to infinite width: (entries,)."""
        return np.asarray((self._weights * self.measured).sum(axis=0))

    @cached_property
    def covariance(self) -> FloatArray:
        """Of the limits: (entries, entries)."""
        parts = [w[:, None] * w * batch.covariance for w, batch in zip(self._weights, self.batches)]
        return np.asarray(sum(parts))


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

    @classmethod
    def of(
        cls, rungs: Rungs, counts: Sequence[int], batches: int, step: int = 1, method: str = "weights"
    ) -> Ladder:
        """With draws rounded up, so that batches are of equal size, each a multiple of ``step`` networks."""
        whole = step * batches
        return cls(*rungs, tuple(-(-count // whole) * whole for count in counts), method, batches)

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

    def measure(
        self, measure: Measure, seed: Seed, keeper: Keeper | None = None
    ) -> tuple[tuple[BatchValues, ...], FloatArray]:
        """Batch values of every width, and the mean numbers of steps; the keeper gives back what it kept."""
        keep = keeper or (lambda name, compute: compute())
        seeds = spawn(seed, len(self.networks))
        found = [
            keep(f"width {network.hidden_widths[0]}", partial(self._part, measure, network, draws, own))
            for network, draws, own in zip(self.networks, self.draws, seeds, strict=True)
        ]
        batches = tuple(BatchValues(each["values"].values) for each in found)
        return batches, np.array([float(each["steps"]) for each in found])

    def _part(self, measure: Measure, network: MLP, draws: int, seed: Seed) -> xarray.Dataset:
        import xarray

        found, steps = measure(network, draws, self.batches, seed)
        return xarray.Dataset({"values": (("batch", "entry"), found.values), "steps": ((), steps)})


# From the network of one width, draws, batches and a seed to batch values and the mean number of steps.
Measure: TypeAlias = Callable[[MLP, int, int, Seed], tuple[BatchValues, float]]
