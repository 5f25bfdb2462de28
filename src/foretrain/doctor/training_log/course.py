"""Findings on the course of the loss: does it diverge, stand still, wait, or fall, and what is still to come."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from scipy import ndimage

from foretrain.doctor.finding import Finding, Severity
from foretrain.doctor.training_log.columns import Array, Curves
from foretrain.doctor.training_log.trend import (
    Change,
    block_means,
    change,
    difference,
    fall_from_start,
    falls,
    forecast,
    trend,
)

Named = tuple[str, Finding]

_BLOWN_UP = 10.0  # times the loss at the start: an order of magnitude is no noise of a training that works
_JUMP = 3.0  # times the first loss: more than the noise of batches does at the start
_JUMP_NOISE = 4.0  # robust standard deviations of single records: nor is it chance that the first loss is low
_HARDLY = 0.75  # of the first loss: an end above this after a jump has lost what training should bring
_ONSET = 2.0  # times the best trend so far: where a divergence is said to have begun
_START, _END = 0.05, 0.2  # of the run: its start, short because losses fall fast there, and its end
_TAIL = 1 / 3  # of the run: whether the loss still falls is asked here
_LITTLE = 0.1  # of the loss at the start: a run that falls by less has learned hardly anything
_NOTHING = 0.01  # of the loss: the fall of a third of the run that is as good as none
_BACK = 0.1  # of the whole fall: by so much a loss has to come back up to be told
_CONSTANT = 10  # equal losses in a row, and this share of the run, are no chance
_CONSTANT_SHARE = 0.1
_GRID = 40  # blocks between which plateaus begin and end
_WAIT = 8  # of these blocks at least: a fifth of the run
_FLAT = 0.05  # of the range of the loss: what a plateau may fall by, error included
_ESCAPE = 4.0  # times the fall on a plateau: what the next stretch as long must bring at least
_STEADY = 0.6  # of the fall of the first half in the second one: a fall that has not begun to slow down
_CONSTANT_RATE = 2.0  # between the largest and smallest rate of a stretch over which a law is carried on

_DOCTOR = "ft.doctor(model, x, y, optimizer=optimizer)"

_UNSTABLE = f'Set the rate beside the largest stable one: {_DOCTOR[:-1]}, checks=["learning_rate", "gains"]);'


def course(curves: Curves, baseline: float | None) -> Iterator[Named]:
    """What the loss does from start to end; one finding, and one more for a plateau that it left."""
    divergence = find_divergence(curves)
    if divergence is not None:
        yield "divergence", divergence
        if divergence.severity is Severity.CRITICAL:
            return
    finite = np.isfinite(curves.losses)
    steps, losses = curves.steps[finite], curves.losses[finite]
    constant = find_constant(steps, losses)
    if constant is not None:
        yield "constant", constant
        if constant.numbers["from_step"] == steps[0]:
            return
    else:
        yield find_progress(curves, steps, losses, baseline)
    wait = find_wait(curves, steps, losses)
    if wait is not None:
        yield "plateau", wait


def find_divergence(curves: Curves) -> Finding | None:
    """Losses that are no number, or that end an order of magnitude above the start."""
    steps, losses = curves.steps, curves.losses
    broken = np.flatnonzero(~np.isfinite(losses))
    finite = np.flatnonzero(np.isfinite(losses))
    if not len(finite):
        return Finding(
            Severity.CRITICAL,
            "No loss is a number",
            f"All {len(losses)} losses of the log are infinite or not a number.",
            "",
            f'Look at the data and the first outputs: {_DOCTOR[:-1]}, checks=["inputs", "gains"]).',
            numbers={"at_step": float(steps[0])},
        )
    start = float(np.median(losses[finite[: max(3, round(_START * len(finite)))]]))
    end = float(np.median(losses[finite[-max(3, round(_START * len(finite))) :]]))
    if len(broken) and broken[-1] < finite[-1] and end < max(start, _ONSET * float(losses[finite].min())):
        count = len(broken)
        return Finding(
            Severity.WARNING,
            f"{count} of {len(losses)} losses are not numbers, but training went on",
            f"The first is at step {steps[broken[0]]:.10g}, the last at step {steps[broken[-1]]:.10g}; the loss ends "
            f"at {end:.4g} after {start:.4g} at the start.",
            "",
            "Look at the samples of these steps and at the scale of half-precision gradients: "
            f"{_DOCTOR} tells inputs on very different scales and rates near the largest stable one.",
            numbers={"at_step": steps[broken[0]], "count": count},
        )
    if not len(broken) and end <= _BLOWN_UP * abs(start):
        return _find_jump(steps, losses, end)
    # It began after the last record that was still near the best loss so far.
    stop = int(broken[0]) if len(broken) else len(losses)
    before = losses[:stop]
    best = np.minimum.accumulate(before) if stop else before
    near = np.flatnonzero(before <= best + (_ONSET - 1) * np.abs(best))
    onset = min(int(near[-1]) + 1, len(losses) - 1) if len(near) else 0
    grows = f"It grows from step {steps[onset]:.10g} on"
    if len(broken):
        title = f"The loss is not a number from step {steps[stop]:.10g} on"
        grows = f"{grows}, up to {before[-1]:.4g}" if onset < stop else "It did not grow before"
    else:
        title = f"The loss grows by a factor of {end / abs(start):.3g}"
        grows = f"{grows}, and ends at {end:.4g} after {start:.4g} at the start"
    evidence = f"{grows}; its best value until then was {best[onset - 1]:.4g}." if onset else "So it begins."
    numbers = {"at_step": float(steps[onset]), "start": start, "end": end if not len(broken) else math.nan}
    if curves.rates is not None:
        numbers["rate"], numbers["largest_rate_before"] = (
            float(curves.rates[onset]),
            float(np.nanmax(curves.rates[: onset + 1])),
        )
        rising = curves.rates[onset] > 1.05 * curves.rates[max(onset - max(3, len(losses) // 20), 0)]
        evidence += f" The rate there is {curves.rates[onset]:.3g}{', and was rising' if rising else ''}."
    if curves.gradient_norms is not None and onset >= 3:
        norms = curves.gradient_norms
        usual = float(np.nanmedian(norms[:onset]))
        last = norms[max(onset - 5, 0) : onset + 1]
        if np.isfinite(last).any() and usual > 0:
            numbers["gradient_growth"] = float(np.nanmax(last)) / usual
            evidence += (
                f" Gradient norms just before are up to {numbers['gradient_growth']:.3g} times their median."
            )
    return Finding(
        Severity.CRITICAL,
        title,
        evidence,
        "",
        f"{_UNSTABLE} take the weights of a checkpoint from before the step, and clip gradients if they grew first.",
        numbers=numbers,
    )


def _find_jump(steps: Array, losses: Array, end: float) -> Finding | None:
    """A loss that leaps in the first fifth of the run, and ends hardly below where it began."""
    first, fifth = float(losses[0]), losses[: max(10, len(losses) // 5)]
    early = ndimage.median_filter(fifth, 3)  # one record alone may be noise
    top = int(np.argmax(early))
    peak = float(early[top])
    bends = np.abs(np.diff(np.log(np.maximum(np.abs(fifth), 1e-300)), 2))
    chance = math.exp(_JUMP_NOISE * 1.4826 * float(np.median(bends)) / math.sqrt(6))
    if peak <= max(max(_JUMP, chance) * abs(first), _ONSET * abs(end)) or end <= _HARDLY * first:
        return None
    return Finding(
        Severity.CRITICAL,
        f"The loss jumps to {peak / abs(first):.3g} times its first value, and ends hardly lower than it began",
        f"It begins at {first:.4g}, is {peak:.4g} at step {steps[top]:.10g}, and ends at {end:.4g}.",
        "",
        f"{_UNSTABLE} a warm-up helps where only the first steps are unstable.",
        numbers={"at_step": float(steps[top]), "start": first, "peak": peak, "end": end},
    )


def find_constant(steps: Array, losses: Array) -> Finding | None:
    """The same loss to the last digit, from some step to the end."""
    other = np.flatnonzero(losses != losses[-1])
    first = int(other[-1]) + 1 if len(other) else 0
    count = len(losses) - first
    if first and count < max(_CONSTANT, _CONSTANT_SHARE * len(losses)):
        return None
    level, start = float(losses[-1]), float(losses[0])
    learned = first > 0 and abs(level) < 0.5 * abs(start)
    severity = Severity.NOTE if learned else Severity.CRITICAL
    return Finding(
        severity,
        f"The loss is exactly {level:.6g} "
        + (f"from step {steps[first]:.10g} on" if first else "at every step"),
        f"{count} losses in a row are equal to the last digit"
        + (f"; it began at {start:.4g}." if first else "."),
        "",
        "It has come to rest, or digits were cut off in the log. A lower loss needs another start, network or data."
        if learned
        else "Nothing is trained, or digits were cut off in the log: check that parameters have gradients and are in "
        f'the optimizer, then let {_DOCTOR[:-1]}, checks=["dead_units", "layer_shares"]) count units that answer to '
        "no sample and layers that take no part.",
        numbers={
            "from_step": float(steps[first]),
            "to_step": float(steps[-1]),
            "level": level,
            "count": count,
        },
    )


def find_progress(curves: Curves, steps: Array, losses: Array, baseline: float | None) -> Named:
    """Whether the loss falls at all, and in the last third of the run."""
    count = len(losses)
    first, last = losses[: max(4, round(_START * count))], losses[-max(5, round(_END * count)) :]
    start, end = float(first.mean()), float(last.mean())
    gap, slope = fall_from_start(first, last), change(steps, losses)
    tail = max(8, math.ceil(_TAIL * count))
    late = change(steps[-tail:], losses[-tail:])
    numbers = {"start": start, "end": end, "change": gap.value, "change_error": gap.error}
    numbers |= {"late_change": late.value, "late_change_error": late.error}
    whole = f"from {start:.4g} at the start to {end:.4g} ± {_mean_error(last):.1g} at the end"
    learned = baseline is not None and end < (1 - _LITTLE) * baseline
    if not gap.falls and not slope.falls:
        hidden = 2 * gap.error - gap.value
        numbers |= {"from_step": float(steps[0]), "to_step": float(steps[-1]), "largest_fall": hidden}
        severity = Severity.CRITICAL if hidden < _LITTLE * abs(start) or gap.rises else Severity.WARNING
        return "plateau", Finding(
            Severity.NOTE if learned else severity,
            "The loss rises" if gap.rises else "The loss does not fall significantly in the whole log",
            f"It goes {whole}: a change by {gap}. A fall by more than {max(hidden, 0):.2g} would have shown.",
            "",
            f"Ask {_DOCTOR} which of data, weights and rate holds it back, and ft.plateau(model, x, y, lr=rate) how "
            "long a plateau of small weights lasts. A log that was resumed late needs a longer one.",
            numbers=numbers,
        )
    rise = _rise_from_best(losses, start)
    if rise is not None and rise[1].rises:
        best, up = rise
        numbers |= {"from_step": float(steps[best]), "to_step": float(steps[-1]), "rise": up.value}
        return "rise", Finding(
            Severity.WARNING,
            f"The training loss has been rising since step {steps[best]:.10g}",
            f"The trend was lowest there, {losses[best]:.4g}, and the end is higher by {up}; it went {whole}.",
            "",
            f'Compare rate and sharpness at both places: {_DOCTOR[:-1]}, checks=["learning_rate"]) on checkpoints '
            "from the best step and from the end.",
            numbers=numbers,
        )
    fallen = start - end
    numbers |= {"from_step": float(steps[-tail]), "to_step": float(steps[-1])}
    nothing = -late.value < _NOTHING * abs(end) and -late.value < _NOTHING * fallen
    if nothing or not falls(steps[-tail:], losses[-tail:]):
        flat = max(
            (
                size
                for size in range(tail, count + 1, max(1, count // _GRID))
                if _is_flat(steps, losses, size, fallen)
            ),
            default=tail,
        )
        numbers["from_step"] = float(steps[-flat])
        rates = None if curves.rates is None else curves.rates[np.isfinite(curves.losses)]
        small = ""
        if rates is not None and rates[-flat] < np.nanmax(rates) / _CONSTANT_RATE:
            small = f" The rate was then {rates[-flat] / np.nanmax(rates):.2g} of its largest value."
        hardly = fallen < _LITTLE * abs(start) and not learned
        return "end", Finding(
            Severity.WARNING if hardly else Severity.NOTE,
            f"The loss has stopped falling at step {steps[-flat]:.10g}"
            + (", after a small fall" if hardly else ""),
            f"It goes {whole}; over the last third it changes by {late}.{small}",
            "",
            "More steps of this kind bring nothing that shows. Let ft.doctor say whether rate or conditioning is the "
            'bound: checks=["learning_rate", "conditioning", "modes"]; otherwise capacity or noise of the labels is.',
            numbers=numbers,
        )
    half = count // 2
    halves = change(steps[:half], losses[:half]), change(steps[half:], losses[half:])
    steady = -halves[1].value > -_STEADY * halves[0].value > 0
    if steady and fallen < _LITTLE * abs(start) and not learned:
        return "slow", Finding(
            Severity.WARNING,
            f"The loss falls by {100 * fallen / abs(start):.2g} % only, and does not slow down: the steps are small",
            f"It goes {whole}; the first half brings {halves[0]}, the second {halves[1]}.",
            "",
            f'Measure how much larger the rate may be: {_DOCTOR[:-1]}, checks=["learning_rate", "plateau"]).',
            numbers=numbers,
        )
    rates = None if curves.rates is None else curves.rates[np.isfinite(curves.losses)][half:]
    held = rates is None or np.nanmax(rates) < _CONSTANT_RATE * np.nanmin(rates)
    ahead = forecast(steps, trend(losses).level) if held else None
    said = (
        "The rate changes too much for a forecast."
        if not held
        else "No simple law fits well enough for a forecast."
    )
    if ahead is not None:
        numbers |= {"forecast": ahead.loss, "forecast_error": ahead.error}
        said = (
            f"{ahead.law.capitalize()} fits; at the same rate it gives {ahead.loss:.4g} ± {ahead.error:.1g} "
            f"after twice the steps (from the first half it was {ahead.backtest:.1g} off at the end)."
        )
    return "end", Finding(
        Severity.NOTE,
        "The loss is still falling",
        f"It goes {whole}; over the last third it changes by {late}. {said}",
        "",
        'Train on; ft.doctor(model, x, y, checks=["modes"]) says which parts of the target are to come, and when.',
        numbers=numbers,
    )


def find_wait(curves: Curves, steps: Array, losses: Array) -> Finding | None:
    """The longest stretch on which the loss hardly falls before one as long on which it falls a lot."""
    blocks = min(_GRID, len(losses))
    at, level = block_means(np.stack([steps, losses]), blocks)
    longest: tuple[int, int, int] | None = None
    flat_change = Change(0.0, 0.0, 1)
    span = float(np.ptp(level))
    for first in range(blocks - _WAIT):
        for stop in range(first + _WAIT, blocks - 1):
            length = stop - first
            after = level[stop : stop + length]
            drop = float(level[first:stop].mean() - after[-2:].mean())
            if drop < _LITTLE * span or (longest is not None and length <= longest[0]):
                continue
            inside = change(at[first:stop], level[first:stop])
            most = abs(inside.value) + 2 * inside.error
            if most < min(drop / _ESCAPE, _FLAT * span):
                longest, flat_change = (length, first, stop), inside
    if longest is None:
        return None
    _, first, stop = longest
    ends = float(at[first]), float(at[stop])
    evidence = (
        f"From step {ends[0]:.0f} to {ends[1]:.0f} it changes by {flat_change} from {level[first]:.4g}, then "
    )
    evidence += f"falls to {level[stop : 2 * stop - first].min():.4g} in as many steps."
    warm = False
    if curves.rates is not None:
        rates = np.interp([*ends, at[min(stop + 1, blocks - 1)]], curves.steps, curves.rates)
        if rates[2] < rates[0] / _CONSTANT_RATE:
            return None  # told as the schedule's doing
        warm = rates[1] > _CONSTANT_RATE * rates[0]
        evidence += " The rate was still warming up." if warm else ""
    return Finding(
        Severity.NOTE if warm else Severity.WARNING,
        f"The loss waits on a plateau from step {ends[0]:.0f} to {ends[1]:.0f}, then escapes",
        evidence,
        "Rawal & DeWeese",
        "ft.plateau(model, x, y, lr=rate) says how long the plateau of an initialisation is, which layers make it, "
        "and the rescaling that shortens it.",
        numbers={
            "from_step": ends[0],
            "to_step": ends[1],
            "change": flat_change.value,
            "error": flat_change.error,
        },
    )


def _rise_from_best(losses: Array, start: float) -> tuple[int, Change] | None:
    """Where the trend was lowest and what the loss has risen by since, if that is a part of what it fell by."""
    level = trend(losses).level
    size = max(5, len(losses) // 10)
    best = int(np.argmin(level))
    if best > len(losses) - 2 * size:
        return None
    around = losses[max(0, best - size // 2) : max(0, best - size // 2) + size]
    up = difference(around, losses[-size:])
    return (best, up) if up.value > _BACK * (start - float(level[best])) else None


def _is_flat(steps: Array, losses: Array, size: int, fallen: float) -> bool:
    """Whether the last records show no fall, or one that counts for nothing."""
    late = change(steps[-size:], losses[-size:])
    nothing = -late.value < min(_NOTHING * abs(float(losses[-1])), _NOTHING * fallen)
    head = max(4, size // 8)
    begun = fall_from_start(losses[-size:][:head], losses[-size:][head:])
    return nothing or not (begun.falls or falls(steps[-size:], losses[-size:]))


def _mean_error(values: Array) -> float:
    return difference(values, values).error / math.sqrt(2)
