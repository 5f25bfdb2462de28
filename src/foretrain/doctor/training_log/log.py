"""Reading a training log: what it shows, and what to measure next."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from textwrap import wrap
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.doctor.finding import Finding, Severity
from foretrain.doctor.training_log.columns import Curves, from_arrays, from_source
from foretrain.doctor.training_log.course import course
from foretrain.doctor.training_log.events import events
from foretrain.doctor.training_log.trend import trend
from foretrain.support.answers import (
    BLUE,
    FAINT,
    GREEN,
    ORANGE,
    PURPLE,
    RED,
    Answer,
    Axis,
    Figure,
    Part,
    Result,
    scale_for,
)
from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray
    from numpy.typing import ArrayLike

_COLORS = {Severity.CRITICAL: RED, Severity.WARNING: ORANGE, Severity.NOTE: BLUE, Severity.GOOD: GREEN}


@dataclass(frozen=True, eq=False, repr=False)
class TrainingLog(Result):
    """What a log shows: ``by_name`` holds the findings, such as "divergence" or "plateau", and ``curves`` the log."""

    curves: Curves
    by_name: Mapping[str, Finding]
    baseline: float | None = None

    @property
    def findings(self) -> tuple[Finding, ...]:
        """All of them, the worst first."""
        return tuple(sorted(self.by_name.values(), key=lambda finding: finding.severity))

    @property
    def healthy(self) -> bool:
        """Whether nothing critical and no warning was found."""
        return all(finding.severity > Severity.WARNING for finding in self.findings)

    @property
    def headline(self) -> str:
        """One sentence: how many complaints, and the worst finding."""
        bad = [finding for finding in self.findings if finding.severity <= Severity.WARNING]
        count = f"{len(bad)} finding{'s' if len(bad) > 1 else ''}" if bad else "Nothing is wrong in this log"
        return f"{count}: {self.findings[0].answer().statement}"

    def answer(self) -> Answer:
        """Headline, size of the log, and a card for every finding from the worst on."""
        curves = self.curves
        columns = {
            "learning rates": curves.rates,
            "validation losses": curves.validation_losses,
            "gradient norms": curves.gradient_norms,
            "epochs": curves.epochs,
        }
        also = ", ".join(name for name, column in columns.items() if column is not None)
        size = f"{len(curves.losses)} losses from step {curves.steps[0]:.10g} to {curves.steps[-1]:.10g}"
        ranked = sorted(self.by_name.items(), key=lambda pair: pair[1].severity)
        cards = [replace(finding.answer(name), folded=False) for name, finding in ranked]
        record = {
            "headline": self.headline,
            "healthy": self.healthy,
            "records": len(curves.losses),
            "columns": ["losses", *(name for name, column in columns.items() if column is not None)],
            "baseline": self.baseline,
            "findings": {name: finding.to_dict() for name, finding in ranked},
        }
        critical = any(finding.severity is Severity.CRITICAL for finding in self.findings)
        parts: list[Part] = [f"{size}{f', with {also}' if also else ''}.", *cards, self.figure]
        return Answer(self.headline, parts, self.to_dataset, record, not critical)

    def figure(self) -> Figure:
        """The losses with their trend and its band, a mark for every finding, and the rate below."""
        curves = self.curves
        finite = np.isfinite(curves.losses)
        steps, losses = curves.steps[finite], curves.losses[finite]
        smooth = trend(losses)
        scale = scale_for(losses, 20.0)
        rows = "A A A B" if curves.rates is not None else "A"
        figure = Figure("\n".join(wrap(self.headline, 100)), layout=rows, size=(9.5, 5.6))
        margin = 0.03 * float(curves.steps[-1] - curves.steps[0])
        across = Axis("step", low=float(curves.steps[0]) - margin, high=float(curves.steps[-1]) + margin)
        panel = figure.panel("", x=across, y=Axis("loss", scale), legend="right")
        panel.curve(steps, losses, ".", "losses", FAINT, size=2.5, alpha=0.6)
        low, high = smooth.level - 2 * smooth.error, smooth.level + 2 * smooth.error
        if scale == "log":
            low = np.maximum(low, float(losses.min()) / 2)
        shown = np.maximum(smooth.level, low)
        panel.curve(steps, shown, "-", "trend ± 2 standard errors", BLUE, band=(low, np.maximum(high, low)))
        if curves.validation_steps is not None and curves.validation_losses is not None:
            panel.curve(curves.validation_steps, curves.validation_losses, "o-", "validation", PURPLE, size=3)
        if self.baseline is not None:
            panel.level(y=self.baseline, label="constant answer", dash="--")
        for name, finding in self.by_name.items():
            numbers, color = finding.numbers, _COLORS[finding.severity]
            if "from_step" in numbers:
                panel.region((numbers["from_step"], numbers["to_step"]), label=name, color=color, alpha=0.12)
            if name == "spikes":
                at = np.isin(steps, [float(place.removeprefix("step ")) for place in finding.where])
                panel.curve(steps[at], losses[at], "^", name, color)
            elif "at_step" in numbers:
                panel.level(x=numbers["at_step"], label=name, color=color, dash=":", width=1.6)
        if curves.rates is not None:
            below = figure.panel("", x=across, y=Axis("rate", scale_for(curves.rates, 20.0)))
            below.curve(curves.steps, curves.rates, "-", color=GREEN, steps=True)
        return figure

    def to_dataset(self) -> xarray.Dataset:
        """Losses, trend, rates and gradient norms by step, and validation losses by their own steps."""
        import xarray

        curves = self.curves
        finite = np.isfinite(curves.losses)
        smooth = trend(curves.losses[finite])
        level, error = np.full((2, len(finite)), np.nan)
        level[finite], error[finite] = smooth.level, smooth.error
        columns: dict[str, Any] = {"loss": curves.losses, "trend": level, "trend_error": error}
        given = {"rate": curves.rates, "gradient_norm": curves.gradient_norms, "epoch": curves.epochs}
        columns |= {name: column for name, column in given.items() if column is not None}
        data = xarray.Dataset(
            {name: ("step", column) for name, column in columns.items()}, {"step": curves.steps}
        )
        if curves.validation_losses is not None:
            data = data.assign_coords(validation_step=curves.validation_steps)
            data["validation_loss"] = ("validation_step", curves.validation_losses)
        return data.assign_attrs(headline=self.headline)


def read_log(
    losses: ArrayLike | str | PathLike[str] | Mapping[str, Any] | Sequence[Mapping[str, Any]] | Any,
    rates: ArrayLike | None = None,
    *,
    steps: ArrayLike | None = None,
    validation: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
    gradient_norms: ArrayLike | None = None,
    epochs: ArrayLike | None = None,
    baseline: float | None = None,
) -> TrainingLog:
    """Say what a training log shows, with error bars, and what to measure next. No model is needed.

    ``losses`` are those of the steps, in order, or a whole log: the path of a CSV, JSON or JSON-lines file (Hugging
    Face's ``trainer_state.json`` and Lightning's ``metrics.csv`` among them), a mapping from names to columns, a data
    frame, or rows; columns are found by their usual names (loss, train/loss, lr, val_loss, grad_norm, step, epoch).
    ``validation`` holds (steps, losses), or as many values as ``losses`` with nan where nothing was measured.
    ``baseline`` is the loss of a constant answer, log(C) for C classes of equal size.

    >>> import numpy as np
    >>> noise = np.random.default_rng(0).normal(size=200)
    >>> log = read_log(2.3 + 0.02 * noise, baseline=np.log(10))
    >>> log.healthy, sorted(log.by_name)
    (False, ['baseline', 'plateau'])
    """
    if baseline is not None:
        baseline = float(real_array("baseline", baseline))
    whole = isinstance(losses, str | PathLike | Mapping) or hasattr(losses, "columns")
    if not whole and isinstance(losses, Sequence) and len(losses):
        whole = isinstance(losses[0], Mapping)
    if whole:
        given = {"rates": rates, "steps": steps, "validation": validation, "epochs": epochs}
        given["gradient_norms"] = gradient_norms
        double = [name for name, column in given.items() if column is not None]
        if double:
            raise InputError(
                f"`{double[0]}` is a column of a log given as a whole: leave it out, or give arrays."
            )
        curves = from_source(losses)
    else:
        curves = from_arrays(losses, rates, steps, validation, gradient_norms, epochs)
    by_name = dict(_findings(curves, baseline))
    return TrainingLog(curves, by_name, baseline)


def _findings(curves: Curves, baseline: float | None) -> Iterable[tuple[str, Finding]]:
    """The course of the loss, and what happens beside it where training has not broken down."""
    main = dict(course(curves, baseline))
    broken = main.get("divergence")
    keep = np.isfinite(curves.losses)
    if broken is not None and broken.severity is Severity.CRITICAL:
        keep &= curves.steps < broken.numbers["at_step"]
    constant = "constant" in main and main["constant"].numbers["from_step"] == curves.steps[0]
    if keep.sum() < 16 or constant:
        yield from main.items()
        return

    def kept(column: Any) -> Any:
        return None if column is None else column[keep]

    before = replace(
        curves,
        **{
            name: kept(getattr(curves, name))
            for name in ("steps", "losses", "rates", "gradient_norms", "epochs")
        },
    )
    beside = dict(events(before, baseline))
    if "overfitting" in beside and main.get("end", beside["overfitting"]).severity is Severity.NOTE:
        del main["end"]  # to train on would make it worse
    if broken is not None:
        beside.pop("baseline", None)
    yield from (main | beside).items()
