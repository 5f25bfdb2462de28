"""Findings on what happens beside the course of the loss: its start, spikes, schedules, epochs, validation, noise."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy import ndimage

from foretrain.doctor.finding import Finding, Severity
from foretrain.doctor.training_log.columns import Curves
from foretrain.doctor.training_log.course import Named
from foretrain.doctor.training_log.trend import change, difference, fall_from_start, falls, trend

_SPIKE = 6.0  # robust standard deviations: Gaussian noise does that once in 10^9 records
_SPIKE_SIZE = 1.3  # times the loss before: smaller ones do no harm, however clear they are
_MANY = 5  # spikes, from which on they are a habit
_PAST = 50  # parts of the run: a spike is measured against the median of one part
_PERIODIC = 0.15  # spread of the gaps between spikes over their mean; gaps by chance have 1
_HIGH_START = 2.0  # times the loss of a constant answer: outputs that are too large, and wrong
_LOW_RATE = 0.1  # of the largest rate: below this a step is said to be small
_LONG = 0.3  # of the run at small rates; a cosine down to zero spends a fifth there
_DROP = 2.0  # factor by which a rate is lowered at once
_HELPED = 0.05  # of the loss: what lowering the rate must bring to be told
_BORDERS = 3  # of epochs at least
_TOOTH = 5.0  # standard errors of the mean drop at borders of epochs
_TOOTH_SHARE = 0.5  # of the whole fall that must lie in these drops
_TOOTH_RECORDS = 8  # of an epoch at least; a drop cannot be told from a fall otherwise
_OVERFIT_RECORDS = 5  # validations after the best one
_SMOOTHED = 20  # validations, from which on the best one is that of their trend
_OVERFIT = 0.02  # of the best validation loss: a rise by less is not worth stopping for
_NOISY = 0.5  # of the loss: noise of this size hides what a single record shows

_DOCTOR = "ft.doctor(model, x, y, optimizer=optimizer"


def events(curves: Curves, baseline: float | None) -> Iterator[Named]:
    """All of them that show; ``curves`` are those before a divergence."""
    finders: dict[str, Callable[[], Finding | None]] = {
        "start": lambda: find_start(curves, baseline),
        "baseline": lambda: find_baseline(curves, baseline),
        "spikes": lambda: find_spikes(curves),
        "schedule": lambda: find_schedule(curves),
        "epochs": lambda: find_sawtooth(curves),
        "overfitting": lambda: find_overfitting(curves),
        "noise": lambda: find_noise(curves),
    }
    for name, find in finders.items():
        finding = find()
        if finding is not None:
            yield name, finding


def find_start(curves: Curves, baseline: float | None) -> Finding | None:
    """A first loss far from that of a constant answer, or a loss below zero."""
    first, step = float(curves.losses[0]), float(curves.steps[0])
    lowest = float(curves.losses.min())
    if lowest < 0:
        where = float(curves.steps[np.argmax(curves.losses < 0)])
        return Finding(
            Severity.NOTE,
            f"The loss is below zero from step {where:.10g} on",
            f"Its lowest value is {lowest:.4g}. Densities have such losses; cross-entropies and squares do not.",
            "",
            "Check the sign of the loss and the range of the labels, unless it is the logarithm of a density.",
            numbers={"at_step": where, "lowest": lowest},
        )
    if baseline is None or first <= _HIGH_START * baseline:
        return None
    return Finding(
        Severity.WARNING,
        f"Training starts at {first / baseline:.3g} times the loss of a constant answer",
        f"The loss is {first:.4g} at step {step:.10g}; a constant answer has {baseline:.4g}. The first steps only "
        "shrink outputs that are too large.",
        "",
        f'Measure the scale of signals at initialisation: {_DOCTOR}, checks=["inputs", "initialisation", "gains"]).',
        numbers={"at_step": step, "first": first, "baseline": baseline},
    )


def find_baseline(curves: Curves, baseline: float | None) -> Finding | None:
    """An end that is no better than a constant answer."""
    if baseline is None:
        return None
    last = curves.losses[-max(5, len(curves.losses) // 10) :]
    error = difference(last, last).error / math.sqrt(2)
    level = float(last.mean())
    if level + 2 * error < baseline:
        return None
    return Finding(
        Severity.CRITICAL,
        "The network answers no better than a constant",
        f"The loss ends at {level:.4g} ± {error:.1g}; a constant answer has {baseline:.4g}.",
        "",
        "Look whether inputs reach the output at all: "
        f'{_DOCTOR}, checks=["inputs", "gains", "dead_units", "plateau"]).',
        numbers={"at_step": float(curves.steps[-1]), "level": level, "error": error, "baseline": baseline},
    )


def find_spikes(curves: Curves) -> Finding | None:
    """Losses far above those just before: how many, when, in which rhythm, and whether the loss came back."""
    steps, losses = curves.steps, curves.losses
    past = max(5, len(losses) // _PAST)
    if len(losses) < 6 * past:
        return None
    # In logarithms the noise of small batches has its long tail below, so what is far above is no noise.
    positive = bool((losses > 0).all())
    height = np.log(losses) if positive else losses / (float(np.ptp(losses)) or 1.0)
    least = math.log(_SPIKE_SIZE)
    windows = np.lib.stride_tricks.sliding_window_view(height, past)[:-1]
    before = np.concatenate([height[:past], np.median(windows, axis=1)])
    jump = height - before
    wide = 10 * past | 1
    middle = ndimage.median_filter(jump, wide)
    scale = 1.4826 * ndimage.median_filter(np.abs(jump - middle), wide)
    high = (jump - middle > _SPIKE * scale) & (jump > least)
    high[:past] = False
    peaks = list[int]()
    for place in np.flatnonzero(high).tolist():
        if peaks and place - peaks[-1] <= past:  # the same one, still high
            peaks[-1] = max(peaks[-1], place, key=lambda one: height[one])
        else:
            peaks.append(place)
    if not peaks:
        return None
    lasting = [
        place
        for place in peaks
        if place + 3 * past < len(height)
        and np.median(height[place + 2 * past : place + 3 * past])
        > before[place] + max(2 * scale[place], least / 2)
    ]
    at = steps[peaks]
    size = float(np.median(np.exp(jump[peaks]) if positive else 1 + jump[peaks]))
    evidence = f"{len(peaks)} of {len(losses)} records; typically {size:.3g} times the loss before"
    evidence += f", the first at step {at[0]:.10g}. "
    evidence += (
        f"The loss did not come back after {len(lasting)} of them."
        if lasting
        else "The loss came back each time."
    )
    advice = "Clip gradients at the norm that most steps have. "
    numbers = {"at_step": float(at[0]), "count": len(peaks), "lasting": len(lasting), "size": size}
    gaps = np.diff(at)
    if len(gaps) >= 3 and float(gaps.std()) < _PERIODIC * float(gaps.mean()):
        period = float(gaps.mean())
        numbers["period"] = period
        evidence += f" They come every {period:.4g} ± {gaps.std() / math.sqrt(len(gaps)):.1g} steps."
        advice += "If that is an epoch, look for a bad sample or batch and shuffle anew in each epoch. "
    if curves.rates is not None:
        rates = curves.rates
        raised = [place for place in peaks if rates[place] > 1.02 * rates[max(place - 2 * past, 0)]]
        usual = float(np.mean(rates[2 * past :] > 1.02 * rates[: -2 * past]))
        if len(raised) > len(peaks) / 2 and usual < 0.5:
            share = f"{100 * usual:.0f} % of the run"
            evidence += f" {len(raised)} of them follow a rise of the rate, which rises in {share}."
            advice += "Warm up more slowly or restart lower. "
    advice += (
        f'{_DOCTOR}, checks=["learning_rate", "inputs"]) says how near the rate is to the largest stable one.'
    )
    habit = len(peaks) >= _MANY or lasting
    return Finding(
        Severity.WARNING if habit else Severity.NOTE,
        f"The loss spikes {'once' if len(peaks) == 1 else f'{len(peaks)} times'}"
        + (", and does not come back" if lasting else ""),
        evidence,
        "",
        advice,
        numbers=numbers,
        where=tuple(f"step {step:.10g}" for step in at),
    )


def find_schedule(curves: Curves) -> Finding | None:
    """A rate that became small while the loss still fell, or a loss that fell only once the rate was lowered."""
    if curves.rates is None or not np.isfinite(curves.rates).all() or not (curves.rates > 0).any():
        return None
    steps, losses, rates = curves.steps, curves.losses, curves.rates
    count = len(losses)
    large = np.flatnonzero(rates > _LOW_RATE * rates.max())
    turn = int(large[-1]) + 1
    if _LONG * count < count - turn and turn >= 16:
        window = max(8, 2 * turn // 3)
        before = change(steps[turn - window : turn], losses[turn - window : turn])
        after = change(steps[-(count - turn) :], losses[-(count - turn) :])
        # Per step, so that stretches of different lengths can be set beside each other.
        speed = before.value / (steps[turn - 1] - steps[turn - window])
        slow = after.value / (steps[-1] - steps[turn])
        if before.falls and abs(slow) + 2 * after.error / (steps[-1] - steps[turn]) < abs(speed) / 4:
            return Finding(
                Severity.WARNING,
                f"The schedule ended learning at step {steps[turn]:.10g}",
                f"The rate is below a tenth of its largest value, {rates.max():.3g}, for "
                f"{100 * (count - turn) / count:.0f} % of the run. Before that the loss still changed by {before} in "
                f"{window} records; after it, by {after} in {count - turn}.",
                "",
                "Let the rate fall later or less, so that it is small in the last fifth of the run only, and compare "
                f'with {_DOCTOR}, checks=["learning_rate"]).',
                numbers={"at_step": float(steps[turn]), "before": before.value, "after": after.value},
            )
    lowered = np.flatnonzero(rates[1:] < rates[:-1] / _DROP) + 1
    for place in lowered.tolist():
        window = min(place, count - place, max(10, count // 5))
        if window < 8:
            continue
        before = change(steps[place - window : place], losses[place - window : place])
        gain = difference(losses[place - window : place], losses[place + window // 2 : place + window])
        level = abs(float(losses[place - window : place].mean()))
        if not before.falls and gain.falls and -gain.value > max(_HELPED * level, 2 * abs(before.value)):
            return Finding(
                Severity.NOTE,
                f"The loss fell once the rate was lowered at step {steps[place]:.10g}",
                f"In the {window} records before it changed by {before} at a rate of {rates[place - 1]:.3g}; at "
                f"{rates[place]:.3g} it is lower by {gain}.",
                "",
                "The larger rate had given what it could: lower it earlier, or measure what is stable there: "
                f'{_DOCTOR}, checks=["learning_rate"]) on a checkpoint from before the step.',
                numbers={"at_step": float(steps[place]), "before": before.value, "gain": gain.value},
            )
    return None


def find_sawtooth(curves: Curves) -> Finding | None:
    """Losses that drop at the borders of epochs and hardly between them."""
    losses, count = ndimage.median_filter(curves.losses, 3), len(curves.losses)  # single spikes are no edges
    if curves.epochs is not None:
        borders = [np.flatnonzero(np.diff(np.floor(curves.epochs)) > 0) + 1]
    else:
        periods = range(_TOOTH_RECORDS, count // (_BORDERS + 1) + 1)
        borders = [np.arange(period, count, period) for period in periods]
    best, chosen, drop, error = 0.0, np.empty(0, dtype=int), 0.0, math.inf
    for places in borders:
        if len(places) < _BORDERS or np.diff(places).min() < _TOOTH_RECORDS:
            continue
        # Two records on either side of a border, with what the curve does between two such pairs anyway taken out.
        reach = 2
        inner = places[(places >= 2 * reach) & (places <= count - 2 * reach)]
        sums = np.concatenate([[0.0], np.cumsum(losses)])
        means = (sums[reach:] - sums[:-reach]) / reach
        steps_down = means[reach:] - means[:-reach]  # entry i: records i+2, i+3 minus records i, i+1
        at = inner - reach
        usual = np.delete(
            steps_down, np.unique(np.clip(at[:, None] + np.arange(-3, 4), 0, len(steps_down) - 1))
        )
        if len(at) < _BORDERS or len(usual) < 2 * _BORDERS:
            continue
        value = float(np.median(steps_down[at]) - np.median(usual))
        spread = max(float(usual.std()), float(steps_down[at].std())) / math.sqrt(len(at))
        if -value / max(spread, 1e-300) > best:
            best, chosen, drop, error = -value / max(spread, 1e-300), inner, value, spread
    fallen = float(losses[: max(4, count // 20)].mean() - losses[-max(5, count // 20) :].mean())
    if best < _TOOTH or -drop * len(chosen) < _TOOTH_SHARE * fallen:
        return None
    period = float(np.median(np.diff(curves.steps[chosen])))
    return Finding(
        Severity.WARNING,
        f"The loss drops at the border of each epoch, every {period:.4g} steps",
        f"By {drop:+.3g} ± {error:.1g} at each of {len(chosen)} borders, {-drop * len(chosen):.3g} in all, while the "
        f"whole fall is {fallen:.3g}.",
        "",
        "Samples are recognised when they come again: they are learned by heart. Log the loss of samples that are "
        "held out. A running mean that starts anew in each epoch looks the same.",
        numbers={"at_step": float(curves.steps[chosen[0]]), "period": period, "drop": drop, "error": error},
    )


def find_overfitting(curves: Curves) -> Finding | None:
    """Validation that rises after its best while training falls."""
    if curves.validation_steps is None or curves.validation_losses is None:
        return None
    steps, losses = curves.validation_steps, curves.validation_losses
    best = int(np.argmin(trend(losses).level)) if len(losses) >= _SMOOTHED else int(np.argmin(losses))
    late = curves.steps >= steps[best]
    if len(losses) - best <= _OVERFIT_RECORDS or late.sum() < _TOOTH_RECORDS:
        return None
    # The best record was chosen for being low, so the rise is counted from those after it.
    after, end = losses[best + 1 :], losses[-max(3, (len(losses) - best) // 3) :]
    rise = fall_from_start(after[:3], end, losses)
    steady = change(steps[best + 1 :], after)
    if not (rise.rises or steady.rises) or end.mean() - losses[best] < _OVERFIT * abs(losses[best]):
        return None
    fall = change(curves.steps[late], curves.losses[late])
    if not falls(curves.steps[late], curves.losses[late]):
        return None
    return Finding(
        Severity.WARNING,
        f"The network overfits from step {steps[best]:.10g} on",
        f"The validation loss is best there, {losses[best]:.4g}, and then changes by {rise} to {end.mean():.4g}, "
        f"while the training loss changes by {fall}.",
        "",
        f"Stop at step {steps[best]:.10g}, or use more data, weight decay or a smaller network. {_DOCTOR}, "
        'checks=["conditioning", "modes"]) says which directions of the target are left to learn by heart.',
        numbers={
            "at_step": float(steps[best]),
            "rise": rise.value,
            "error": rise.error,
            "best": float(losses[best]),
        },
    )


def find_noise(curves: Curves) -> Finding | None:
    """How far single records scatter around the trend, and over how many steps averaging helps."""
    smooth = trend(curves.losses)
    late = slice(len(curves.losses) // 2, None)
    spread = 1.4826 * float(np.median(np.abs(smooth.noise[late])))
    level = float(np.median(smooth.level[late]))
    fall = float(smooth.level[late][0] - smooth.level[-1])
    if spread < _NOISY * abs(level):
        return None
    helps = (
        "as for independent noise: k steps make it sqrt(k) times smaller"
        if smooth.memory < 2
        else f"only over more than {smooth.memory:.0f} records, which resemble each other"
    )
    return Finding(
        Severity.NOTE,
        f"Single losses scatter by {100 * spread / abs(level):.0f} % around their trend",
        f"By {spread:.3g} around {level:.3g} in the second half, in which the trend falls by {fall:.3g}. Averaging "
        f"helps {helps}.",
        "",
        "Judge by averages. Larger batches or a smaller rate tell noise of the batches from too large steps: "
        f'{_DOCTOR}, checks=["learning_rate"]) compares the rate with the largest stable one.',
        numbers={"spread": spread, "level": level, "fall": fall, "memory": smooth.memory},
    )
