"""What the source says about the ranks of an attention block, beside what was found.

"Follows" is a rank correlation of at least 0.95, the mean over draws, and an exponent of three standard errors.
"Hardly matters" is a change, in logarithms, of at most a tenth of what the other quantity in the sentence does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import xarray

from foretrain.experiments.global_ntk import attention_blocks as blocks
from foretrain.experiments.global_ntk.attention_blocks import log_slope, spread
from foretrain.experiments.judgements import Sampled, sampled
from foretrain.experiments.registry import Row
from foretrain.theory.architecture import FloatArray

_RISES = 0.95
_SIGMAS = 3.0
_HARDLY = 0.1


def input_rows(data: xarray.Dataset) -> tuple[Row, ...]:
    """The rank in time follows n_in; the sites keep their bound."""
    n_in = data.n_in.values.tolist()
    rows: list[Row] = []
    for n_x in data.n_x.values.tolist():
        rows += _follows(f"n_x = {n_x}: rank in time", "n_in", n_in, data.temporal.sel(n_x=n_x).values)
    # Where the rank in time is, beside that of the inputs themselves, and the modes that matter.
    ten = data.sel(n_x=10)
    for number in n_in:
        rank, given = sampled(ten.temporal.sel(n_in=number).values), float(ten.input.sel(n_in=number).mean())
        beside = f"{given:.3g} of the inputs"
        rows.append(Row(f"n_x = 10, n_in = {number}: rank in time", beside, *rank, None, _ORIENTATION))
    rows.append(_more_modes("smallest and largest n_in", *ten.modes.isel(n_in=[0, -1]).values))
    rows += _other_readings(data)
    # rank(V V*) in float64 (A.5.3), and the sharper bound that three equal sites and linear heads give.
    broken = int((data.site_rank > np.minimum(data.bound, data.places)).sum())
    title = f"blocks of {data.site_rank.size} that break rank(V V*) <= 3 n_in + n_attn + (L-1) n_mlp"
    note = "V: what weights read, side by side: X for queries, keys and values, the attention's result, L - 1 layers"
    rows.append(Row(title, 0.0, broken, None, not broken, note))
    most = data.isel(n_x=-1)
    for number in n_in:
        own = most.sel(n_in=number)
        here, bound, sharper = int(own.site_rank.max()), int(own.bound), int(own.sharper_bound)
        note = f"at most {sharper} too: X occurs three times, and what a head reads has the rank of X"
        title = f"n_x = {int(most.n_x)}, n_in = {number}: rank(V V*), at most"
        rows.append(Row(title, float(bound), here, None, here <= min(bound, sharper), note))
    return _with_words(rows, f"n_x sequences of steps with n_in numbers each; {_IN_TIME}")


def width_rows(data: xarray.Dataset) -> tuple[Row, ...]:
    """Ranks in space and in total follow the width; heads hardly matter."""
    widths = data.attention.values.tolist()
    rows: list[Row] = []
    for n_in in data.n_in.values.tolist():
        for name in ("spatial", "total"):
            values = data[name].sel(n_in=n_in).values
            rows += _follows(f"n_in = {n_in}: {_CALLED[name]}", "n_attn", widths, values)
    # How much ranks change over the dimensions of the input, at the source's width.
    by_input = {name: spread(data[f"{name}_by_heads"].sel(heads=1).values) for name in ("temporal", "total")}
    for n_in in data.n_in.values.tolist():
        values = data.temporal.sel(n_in=n_in).values
        rows.append(_hardly(f"n_in = {n_in}: rank in time over n_attn", values, by_input["temporal"], "n_in"))
    mlp, whole = data.mlp.values.tolist(), log_slope(data.mlp.values.tolist(), data.spatial_by_mlp.values)
    note = (
        "not seen in the whole state, where most of the trace is that of queries, keys and values: the width that "
        "counts there is the attention's; it is seen in the MLP's own states (next rows)"
    )
    rows.append(Row("n_in = 8: rank in space: power of n_mlp", "above 0", *whole, None, note))
    values = data.mlp_spatial_by_mlp.values
    rows += _follows("n_in = 8: rank in space of the MLP's states", "n_mlp", mlp, values)
    # Heads, against what n_in or the width does to the same rank.
    alone = data.temporal_of_one_input.values
    rows.append(_hardly("n_in = 1: rank in time over heads", alone, by_input["temporal"], "n_in"))
    found: dict[str, list[Row]] = {name: [] for name in _CALLED}
    for n_in in data.n_in.values.tolist():
        by_width = spread(data.spatial.sel(n_in=n_in).values)
        for name, own in found.items():
            other, than = (by_width, "n_attn") if name == "spatial" else (by_input[name], "n_in")
            values = data[f"{name}_by_heads"].sel(n_in=n_in).values
            own.append(_hardly(f"n_in = {n_in}: {_CALLED[name]} over heads", values, other, than))
    rows += found["temporal"]
    for name in ("spatial", "total"):
        rows += _where_it_appears(found[name], data.n_in.values.tolist())
    words = f"n_in numbers at every step, n_attn units of the attention, n_mlp of the MLP; {_IN_SPACE}; {_IN_TIME}"
    return _with_words(rows, words)


def fourier_rows(data: xarray.Dataset) -> tuple[Row, ...]:
    """Features lift the rank; a lifted rank helps gradient descent."""
    octaves = data.octaves.values.tolist()
    rows: list[Row] = []
    for n_x in data.n_x.values.tolist():
        plain, lifted = (data.temporal.sel(n_x=n_x, octaves=count).values for count in (0, 8))
        factor, title = sampled(lifted / plain), f"n_x = {n_x}: rank in time with 8 octaves over that without"
        rows.append(Row(title, "above 1", *factor, factor.mean - 1 > _SIGMAS * factor.error))
        with_some = data.temporal.sel(n_x=n_x, octaves=octaves[1:]).values
        rows += _follows(f"n_x = {n_x}: rank in time", "the number of octaves", octaves[1:], with_some)
    few_and_more = data.modes.sel(n_x=10, octaves=[0, 8]).values
    rows.append(_more_modes("without features and with 8 octaves", *few_and_more))
    note = "64 normal frequencies: what counts is how fine the waves are, not only how many"
    scales, values = data.scale.values.tolist(), data.temporal_random.values
    rows += _follows("64 random waves: rank in time", "the frequency", scales, values, note)
    # Losses after training, relative to the target's mean square.
    last, kinds = data.loss.isel(step=-1), data.kind.values.tolist()
    for kind in kinds[1:]:
        ratio = sampled(np.log(last.sel(kind=kind).values / last.sel(kind="plain").values))
        title = f"{kind}: log of the final loss over that without features"
        helps, note = ratio.mean < -_SIGMAS * ratio.error, "ours: the source measures at initialization only"
        rows.append(Row(title, "below 0", *ratio, helps, note))
    note = "not a claim of the source; to fit more of the training set is not yet to generalise"
    for kind in kinds:
        fresh = sampled(data.fresh_loss.sel(kind=kind).values)
        rows.append(Row(f"{kind}: loss on fresh sequences", "", *fresh, None, note))
    return _with_words(rows, f"n_x sequences; an octave is a sine and a cosine; {_IN_TIME}")


def _with_words(rows: Sequence[Row], words: str) -> tuple[Row, ...]:
    """What the letters and names of a table mean, at its first row."""
    first, *others = rows
    return (replace(first, note="; ".join(filter(None, (words, first.note)))), *others)


_IN_TIME = "rank in time: tr(A)^2 / tr(A^2) of NTK_temp, the partial trace of NTK_S over units"
_IN_SPACE = "rank in space: that of the partial trace over sequences and steps"
_ORIENTATION = "no number is published; beside it the rank of X X*, X the inputs (sequences and steps, n_in)"
_CALLED = {"temporal": "rank in time", "spatial": "rank in space", "total": "total rank"}


def _follows(
    what: str, where: str, places: Sequence[float], values: FloatArray, note: str = ""
) -> Iterator[Row]:
    """Rank correlation and exponent: values (places, draws)."""
    correlation, slope = blocks.rank_correlation(places, values), log_slope(places, values)
    agrees = correlation >= _RISES
    yield Row(f"{what}: rank correlation with {where}", "follows it", correlation, None, agrees, note)
    agrees = slope.mean > _SIGMAS * slope.error
    yield Row(f"{what}: power of {where}", "above 0", *slope, agrees)


def _hardly(what: str, values: FloatArray, other: Sampled, than: str) -> Row:
    """The change over places (places, draws) as a share of another change, in logarithms."""
    change = spread(values)
    share, error = change.mean / other.mean, change.error / other.mean
    factors = np.exp([change.mean, other.mean])
    note = f"at most {_HARDLY} is hardly; a factor of {factors[0]:.3f} against {factors[1]:.3g}"
    title = f"{what}: log change as a share of that over {than}"
    return Row(title, "hardly any", share, error, share + error <= _HARDLY, note)


def _more_modes(where: str, few: FloatArray, many: FloatArray) -> Row:
    """How many modes hold 95 % of the trace, at two places that should differ."""
    first, last = sampled(few), sampled(many)
    agrees = last.mean - first.mean > _SIGMAS * float(np.hypot(first.error, last.error))
    name = f"n_x = 10: modes for 95 % of NTK_temp, {where}"
    return Row(name, "few, then more", f"{first.mean:.3g}, {last.mean:.3g}", None, agrees)


def _other_readings(data: xarray.Dataset) -> Iterator[Row]:
    """The average over all pairs of units, and the MLP's states alone."""
    note = "the average over all pairs of units, a different matrix; expected: the partial trace"
    for n_in in data.n_in_of_pairs.values.tolist():
        pairs = sampled(data.temporal_pairs.sel(n_in_of_pairs=n_in).values)
        trace = float(data.temporal.sel(n_x=10, n_in=n_in).mean())
        yield Row(f"n_x = 10, n_in = {n_in}: rank in time, all pairs", trace, *pairs, None, note)
    alone = data.temporal_mlp
    note = (
        "follows n_in too, but levels off near the number of sequences: at initialization the attention is almost an "
        "average over steps; in the whole state queries, keys and values carry most of the trace"
    )
    name = "n_x = 10: rank in time of the MLP's states alone"
    yield from _follows(name, "n_in", data.n_in.values.tolist(), alone.values, note)
    last = sampled(alone.isel(n_in=-1).values)
    yield Row(f"{name}, largest n_in", "of the order of n_x = 10", *last)


def _where_it_appears(rows: Sequence[Row], n_in: Sequence[int]) -> Iterator[Row]:
    """Rows of growing n_in: those before the claim holds for good are left open, and say where it does."""
    held = [place for place in range(len(rows)) if all(row.agrees for row in rows[place:])]
    for row in rows:
        if row.agrees or not held:
            yield row
        else:
            absent = f"not so here, where heads see few inputs, but from n_in = {n_in[held[0]]} on"
            yield replace(row, agrees=None, note=f"{absent}; {row.note}")
