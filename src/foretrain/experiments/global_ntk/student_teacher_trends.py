"""The published trends of figure 5 as rows: ratios of ranks at two places of a sweep, tested over seeds."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import xarray

from foretrain.experiments.judgements import agreeing, sampled
from foretrain.experiments.registry import Row
from foretrain.theory.architecture import FloatArray

_LEVEL = 0.99  # of the one-sided t-tests
_WORDS = (
    "W is recurrent, with gain g, and W_in reads the inputs; rank: tr(A)^2 / tr(A^2) of NTK_S reduced to time or to "
    "units, by a partial trace or by the published average over all pairs"
)
_WHEN = {"initial": "at initialisation", "trained": "after training"}


class Trend(NamedTuple):
    """A mean over seeds, its standard error, and whether it is below a bound at the level of the tests."""

    mean: float
    error: float
    is_below: bool


def below(values: FloatArray, bound: float = 1.0) -> Trend:
    """A one-sided t-test over seeds; values that are all the same are compared as they are."""
    from scipy.stats import t

    mean, error = sampled(values)
    return Trend(mean, error, bool(bound - mean > t.ppf(_LEVEL, len(values) - 1) * error))


def table(data: xarray.Dataset) -> tuple[Row, ...]:
    """Trends with gain, with the input rank, how gradients grow, and who learns."""
    moments = [moment for moment in data.moment.values if data["rank"].sel(moment=moment).notnull().any()]
    views = [(definition, moment) for definition in data.definition.values for moment in moments]
    gains, inputs = gain_sweep(data), input_sweep(data)
    rows = [row for name, when in views for row in _with_gain(gains.sel(definition=name, moment=when))]
    rows += [_halving(gains.sel(definition=name, moment="initial")) for name in data.definition.values]
    rows += [_with_inputs(inputs.sel(definition=name, moment=when)) for name, when in views]
    first = replace(rows[0], note=f"{_WORDS}; {rows[0].note}")
    return (first, *rows[1:], *_gradients(gains), *_losses(data))


def gain_sweep(data: xarray.Dataset, input_rank: int | None = None) -> xarray.Dataset:
    """Students that train W, by gain, for the largest input rank or another."""
    rank = int(data.input_rank.max()) if input_rank is None else input_rank
    return data.sel(trainable="recurrent", input_rank=rank).dropna("gain", subset=["growth"], how="all")


def input_sweep(data: xarray.Dataset) -> xarray.Dataset:
    """Students that train W_in, by input rank, at gain 1."""
    return data.sel(trainable="input", gain=1.0)


def _with_gain(sweep: xarray.Dataset) -> list[Row]:
    """Two rows for the temporal rank, which rises and collapses, and one for the spatial rank."""
    told = _told(sweep)
    temporal, spatial = (sweep["rank"].sel(view=view) for view in ("temporal", "spatial"))
    peak = temporal.isel(gain=int(temporal.mean("seed").argmax("gain")))
    named = f"peak at g = {float(peak.gain):g}"
    rows = [
        _ratio(f"train W, temporal rank, {told}: g = {float(end.gain):g} over the {named}", end, peak)
        for end in (temporal.isel(gain=0), temporal.isel(gain=-1))
    ]
    first, last = spatial.isel(gain=0), spatial.isel(gain=-1)
    title = f"train W, spatial rank, {told}: g = {float(last.gain):g} over g = {float(first.gain):g}"
    return [*rows, _ratio(title, last, first)]


def _told(sweep: xarray.Dataset) -> str:
    return f"{sweep.definition.item()}, {_WHEN[str(sweep.moment.item())]}"


def _ratio(title: str, part: xarray.DataArray, whole: xarray.DataArray) -> Row:
    found = below((part / whole).values)
    note = f"mean ranks {float(part.mean()):.3g} and {float(whole.mean()):.3g}"
    lost = int((part == 0).sum())
    if lost:
        note += f"; training threw {lost} of {part.size} students into saturation, where the kernel is 0"
    return Row(title, "below 1", found.mean, found.error, found.is_below, note)


def _halving(sweep: xarray.Dataset) -> Row:
    """Where the spatial rank passes half of what it has at the lowest gain."""
    spatial = sweep["rank"].sel(view="spatial").transpose("seed", "gain")
    places = [_crossing(sweep.gain.values, run / run[0], 0.5) for run in spatial.values]
    title = f"train W, spatial rank, {_told(sweep)}: half at gain"
    note = {
        "partial trace": "with an orthogonal W the partial trace keeps its rank until gradients explode; with "
        "normal entries it halves between gains 0.75 and 1",
        "all pairs": "the average over all pairs loses rank from the smallest gains on, long before chaos",
    }[str(sweep.definition.item())]
    return Row(title, "collapses with g", float(np.mean(places)), below(np.array(places)).error, note=note)


def _crossing(x: FloatArray, y: FloatArray, level: float) -> float:
    """Where y first passes the level, on straight lines between points; nan if it does not."""
    sides = np.sign(y - level)
    passed = np.flatnonzero(sides[1:] != sides[0])
    if not len(passed):
        return float("nan")
    i = int(passed[0])
    return float(x[i] + (level - y[i]) / (y[i + 1] - y[i]) * (x[i + 1] - x[i]))


def _with_inputs(sweep: xarray.Dataset) -> Row:
    """Neighbouring input ranks all the way: the largest of the mean ratios must be below 1."""
    temporal = sweep["rank"].sel(view="temporal").transpose("seed", "input_rank").values
    steps = [below(ratio) for ratio in (temporal[:, :-1] / temporal[:, 1:]).T]
    worst = max(steps, key=lambda step: step.mean)
    found = " → ".join(f"{value:.3g}" for value in temporal.mean(axis=0))
    ranks = ", ".join(str(rank) for rank in sweep.input_rank.values)
    title = f"train W_in, temporal rank, {_told(sweep)}: over that at the next larger input rank, at most"
    agrees = all(step.is_below for step in steps)
    return Row(title, "below 1", worst.mean, worst.error, agrees, f"{found} for input ranks {ranks}")


def _gradients(sweep: xarray.Dataset) -> list[Row]:
    """How gradients grow on their way through time."""
    log = np.log10(sweep.growth.sel(moment="initial").transpose("seed", "gain").clip(1e-300).values)
    gains = sweep.gain.values
    inside, beyond = int(np.searchsorted(gains, 1.0)), len(gains) - 1
    rows = []
    for place, sign, expected in ((inside, 1, "below 0"), (beyond, -1, "above 0")):
        found = below(sign * log[:, place], 0.0)
        title = f"train W, log10 of a gradient's growth through all steps, g = {gains[place]:g}"
        rows.append(Row(title, expected, sign * found.mean, found.error, found.is_below))
    places = np.array([_crossing(gains, run, 0.0) for run in log])
    note = "W is orthogonal: inputs and tanh damp it, and chaos begins above gain 1"
    title, explode = "train W, gain where gradients begin to explode", below(places)
    return [*rows, Row(title, "1 or above", explode.mean, explode.error, note=note)]


def _losses(data: xarray.Dataset) -> list[Row]:
    """The mean loss of the last tenth of training over the first loss, for orientation: the source prints curves."""
    rows = []
    for name, sweep, axis in (("W", gain_sweep(data), "gain"), ("W_in", input_sweep(data), "input_rank")):
        last = sweep.loss.isel(step=slice(-max(1, sweep.sizes["step"] // 10), None)).mean("step")
        final = (last / sweep.loss.isel(step=0)).median("seed")
        shares = ", ".join(f"{value:.2g}" for value in final.values)
        places = ", ".join(f"{value:g}" for value in sweep[axis].values)
        title = f"train {name}, median final loss over first, by {axis.replace('_', ' ')}"
        rows.append(Row(title, "curves", shares, note=f"for {places}"))
    return rows


def verdict(data: xarray.Dataset, rows: tuple[Row, ...]) -> str:
    """One sentence."""
    halves = {row.quantity.split(",")[2].strip(): row.here for row in rows if "half at gain" in row.quantity}
    explode = next(row.here for row in rows if "begin to explode" in row.quantity)
    return (
        f"{agreeing(rows)} trends hold; gradients explode from gain {explode:.2f} on, the spatial rank "
        f"halves at gain {halves['all pairs']:.2f} as the published average over all pairs, but at "
        f"{halves['partial trace']:.2f} as the partial trace."
    )
