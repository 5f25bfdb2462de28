"""A bottleneck of learning, and two ways out of it (Hazelden et al., figure 4).

GRUs learn Memory-Pro: repeat a fixation (mode 1 of the target) and answer with a remembered angle (modes 2 and 3, its
two coordinates). Network 1 is drawn by Xavier's rule and forgets the angle, so that NTK_S has next to nothing in the
direction of modes 2 and 3: gradient descent stays on the plateau where only mode 1 is learned. Network 2 has five
stable fixed points, remembers something of the angle from the start, and learns. Shampoo, which divides gradients by
their own size, leaves the plateau from network 1 too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.global_ntk.learning_bottleneck.drawing import PLATEAU, PUBLISHED_ESCAPE, draw
from foretrain.experiments.global_ntk.learning_bottleneck.training import POINTS, Sizes, Training, train
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.seeds import spawn

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_PUBLISHED_RATE, _PUBLISHED_NOISE = 1e-3, 3.2
_LEARNED, _UNLEARNED = 0.5, 0.9  # shares of a mode that are left
_NEAR_ZERO = 0.01  # of a cosine
_NOT_GIVEN = "not given"
_CHOICE_NOTE = (
    "Their amplitude, 0.5, was chosen by trial: with 0.9 and 64 units SGD had hardly begun with modes 2 and 3 after "
    "800 steps of rate 0.01, and had learned about half of them after 600 of rate 0.1."
)
_RATE_NOTE = (
    "Larger than published, and chosen by trial so that hundreds of steps do: Shampoo at 0.05 left the plateau "
    "within 1000 steps for one seed, for another not within 900; the published rate was not tried."
)
_NOISE_NOTE = (
    "With 3.2 at every step 64 units are too few, in one run each: SGD had lost modes 2 and 3 of network 2 after 500 "
    "steps, Shampoo had not left the plateau of network 1 after 1000. With 128 or 256 units SGD learns in 250 steps."
)


@dataclass(frozen=True)
class Plan:
    """The network and its task, and how it is trained."""

    sizes: Sizes
    steps: int
    noise_variance: float
    rates: dict[str, float]  # by optimizer

    def trainings(self) -> dict[str, Training]:
        """Both networks by both optimizers, named."""
        found = [
            Training(points, optimizer, rate, self.steps, self.noise_variance)
            for points in (0, POINTS)
            for optimizer, rate in self.rates.items()
        ]
        return {f"{training.network}, {training.optimizer}": training for training in found}


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(Sizes(64, 64, 5000, 20, 14, 0.5), 850, 0.02, {"SGD": 0.1, "Shampoo": 0.15}),
    Scale.PAPER: Plan(Sizes(256, 500, 5000, 20, 24, 0.5), 10_000, 3.2, {"SGD": 1e-3, "Shampoo": 1e-3}),
}


def learning_bottleneck(plan: Plan, seed: int, parts: Parts) -> Result:
    """Two initialisations of a GRU by two optimizers on Memory-Pro, with alignment and rank of NTK_S on the way."""
    import xarray

    (own,) = spawn(seed, 1)  # the same weights, data and batches for all, but for the planted points
    trainings = plan.trainings()
    found = [
        parts.get(name, partial(train, plan.sizes, training, own)) for name, training in trainings.items()
    ]
    data = xarray.concat(found, dim="run", join="exact").assign_coords(run=list(trainings))
    data = data.assign_attrs(
        units=plan.sizes.units, batch=plan.sizes.batch, noise_variance=plan.noise_variance
    )
    data = data.assign_attrs({f"rate_{name}": rate for name, rate in plan.rates.items()})
    rows = _table(data)
    return Result(_verdict(data), rows, data, partial(_draw, data))


def escape(data: xarray.Dataset, run: str) -> float:
    """The step from which on less than half of modes 2 and 3 is left; infinite if there is none."""
    left = data.unlearned.sel(run=run, mode=[2, 3]).mean("mode").values
    above = np.flatnonzero(left >= 0.5)
    if not len(above):
        return 0.0
    return float(data.step[above[-1] + 1]) if above[-1] + 1 < len(left) else np.inf


def _left(data: xarray.Dataset, run: str, mode: int) -> float:
    return float(data.unlearned.sel(run=run, mode=mode).isel(step=-1))


def _cosine(data: xarray.Dataset, run: str, kind: str, mode: int = 3) -> Array:
    """Over training."""
    return np.asarray(data.cosine.sel(run=run, kind=kind, mode=mode).values)


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    return (*_initial_rows(data), *_network_1_rows(data), *_way_out_rows(data), *_setting_rows(data))


def _initial_rows(data: xarray.Dataset) -> list[Row]:
    first, second = "network 1, SGD", "network 2, SGD"
    radius = data.planted_radius.sel(run=second)
    stable = int((radius < 1).sum())
    searched = {run: int(data.stable_points.sel(run=run)) for run in (first, second)}
    start = {run: float(_cosine(data, run, "readout")[0]) for run in (first, second)}
    ratio = start[second] / max(start[first], 1e-12)
    ranks = {run: float(data["rank"].sel(run=run).isel(record=0)) for run in (first, second)}
    return [
        Row(
            "network 2: stable fixed points planted",
            POINTS,
            stable,
            agrees=stable == POINTS,
            note=_CHOICE_NOTE,
        ),
        Row(
            "stable fixed points that a search finds: network 1, network 2",
            _NOT_GIVEN,
            f"{searched[first]}, {searched[second]}",
            note="The one of network 1 is zero; mirror images and mixtures of the planted points are found as well.",
        ),
        Row(
            "cosine of mode 3 and NTK_S at the start: network 2 over network 1 (at least)",
            10.0,
            ratio,
            agrees=ratio >= 10,
        ),
        Row(
            "temporal rank at the start: network 1, network 2",
            _NOT_GIVEN,
            f"{ranks[first]:.2f}, {ranks[second]:.2f}",
        ),
    ]


def _network_1_rows(data: xarray.Dataset) -> list[Row]:
    run = "network 1, SGD"
    first = _left(data, run, 1)
    rows = [Row(f"{run}: share of mode 1 left", "learned", first, agrees=first <= _LEARNED)]
    for mode in (2, 3):
        left = _left(data, run, mode)
        rows.append(Row(f"{run}: share of mode {mode} left", "not learned", left, agrees=left >= _UNLEARNED))
    loss = float(data.loss.sel(run=run).isel(step=-1)) / PLATEAU
    rows.append(Row(f"{run}: last loss over 1/9, its plateau", 1.0, loss, agrees=abs(loss - 1) <= 0.1))
    for kind, name in (
        ("readout", "through the readout"),
        ("temporal", "partial trace over units"),
        ("all_pairs", "average over all pairs of units"),
    ):
        largest = float(np.abs(_cosine(data, run, kind)).max())
        near = largest <= _NEAR_ZERO
        rows.append(Row(f"{run}: largest cosine of mode 3, {name}", "near 0", largest, agrees=near))
    return rows


def _way_out_rows(data: xarray.Dataset) -> list[Row]:
    rows = []
    for run in ("network 2, SGD", "network 1, Shampoo"):
        for mode in (2, 3):
            left = _left(data, run, mode)
            rows.append(Row(f"{run}: share of mode {mode} left", "learned", left, agrees=left <= _LEARNED))
    when = escape(data, "network 1, Shampoo")
    rows.append(
        Row(
            "network 1, Shampoo: step from which on half of modes 2 and 3 is learned",
            float(PUBLISHED_ESCAPE),
            when,
            note="The step depends on the learning rate, here not the published one: for orientation.",
        )
    )
    for run in ("network 2, SGD", "network 2, Shampoo"):
        rows.append(Row(f"{run}: the same step", _NOT_GIVEN, escape(data, run)))
    return rows


def _setting_rows(data: xarray.Dataset) -> list[Row]:
    """Where the setting is not the published one, and why."""
    settings = [
        ("learning rate of SGD", _PUBLISHED_RATE, data.attrs["rate_SGD"], _RATE_NOTE),
        ("learning rate of Shampoo", _PUBLISHED_RATE, data.attrs["rate_Shampoo"], _RATE_NOTE),
        ("variance of the noise on inputs", _PUBLISHED_NOISE, data.attrs["noise_variance"], _NOISE_NOTE),
    ]
    return [
        Row(name, published, here, note="" if here == published else note)
        for name, published, here, note in settings
    ]


def _verdict(data: xarray.Dataset) -> str:
    stuck, second, third = "network 1, SGD", "network 2, SGD", "network 1, Shampoo"
    left = {run: np.mean([_left(data, run, mode) for mode in (2, 3)]) for run in (stuck, second, third)}
    return (
        f"Gradient descent from Xavier's rule leaves {left[stuck]:.0%} of modes 2 and 3 unlearned, where the cosine "
        f"of mode 3 and NTK_S is at most {np.abs(_cosine(data, stuck, 'readout')).max():.1g}; with {POINTS} stable "
        f"fixed points it leaves {left[second]:.0%}, and Shampoo {left[third]:.0%} from Xavier's rule, with half of "
        f"them learned from step {escape(data, third):.0f} on (GRU of {data.attrs['units']} units)."
    )


def _draw(data: xarray.Dataset) -> Figure:
    return draw(data, {run: escape(data, run) for run in data.run.values.tolist()})
