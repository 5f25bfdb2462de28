"""Lyapunov exponents of a recurrent model along the states it goes through.

A small change obeys v(t+1) = J(t) v(t). An orthonormal frame Q is carried along and made orthonormal again,
J(t) Q(t) = Q(t+1) R(t+1), and the exponents are the mean growth per step (Benettin et al. 1980),

    lambda_i = < log |R_ii(t)| >,    lambda_1 >= lambda_2 >= ...;    the sum of all is < log |det J(t)| >.

Values one after the other are correlated: the standard error is that of means over blocks of time, with what is left
of the correlation of neighbouring blocks, rho, as (1 + rho) / (1 - rho).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.support.answers import Answer, Axis, Figure, Result, labelled
from foretrain.support.arguments import positive, whole_number
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, torch_generator
from foretrain.training.dynamics.recurrence import States, read_run

Array = NDArray[np.float64]

_BLOCKS = 32  # of all trials together, whose means a standard error is taken of
_MOST_CORRELATED = 0.9  # of neighbouring blocks
_APART = 3.0  # standard errors from zero that settle the sign


@dataclass(frozen=True, eq=False, repr=False)
class LyapunovExponents(Result):
    """The leading exponents, largest first, per unit of time, with standard errors; -inf for what dies at once."""

    values: Array
    standard_error: Array
    by_trial: Array  # (trials, exponents)
    units: int
    steps: int  # that were averaged
    discarded: int
    dt: float = 1.0

    @property
    def largest(self) -> float:
        """Positive: trajectories that start close to each other part exponentially."""
        return float(self.values[0])

    @property
    def chaotic(self) -> bool | None:
        """Whether the largest is above or below 0 by three standard errors; None if that is open."""
        if abs(self.values[0]) <= _APART * np.nan_to_num(self.standard_error[0]):
            return None
        return bool(self.values[0] > 0)

    @property
    def entropy(self) -> float:
        """The sum of the positive ones, which bounds the entropy rate (Pesin)."""
        return float(self.values[self.values > 0].sum())

    @property
    def dimension(self) -> float | None:
        """Of the attractor, after Kaplan and Yorke; None if more exponents are needed."""
        sums = np.cumsum(self.values)
        below = np.flatnonzero(sums < 0)
        if not len(below):
            return float(self.units) if len(sums) == self.units else None
        place = int(below[0])
        before = float(sums[place - 1]) if place else 0.0
        return place + before / abs(float(self.values[place]))

    def answer(self) -> Answer:
        """The largest with its sign, how many are positive, and all of them as a picture."""
        unit = "step" if self.dt == 1 else "unit of time"
        sign = {
            True: "close trajectories part",
            False: "close trajectories come together",
            None: f"not told apart from 0 by {_APART:g} standard errors",
        }[self.chaotic]
        trials = f"{len(self.by_trial)} trial{'s' if len(self.by_trial) != 1 else ''}"
        statement = (
            f"Largest Lyapunov exponent {self.values[0]:.4g} ± {self.standard_error[0]:.2g} per {unit}: {sign}; "
            f"{int((self.values > 0).sum())} of {len(self.values)} exponents are positive ({self.units} units, "
            f"{trials} of {self.steps} steps)."
        )
        return Answer(statement, [self.figure], self._data())

    def figure(self) -> Figure:
        """Every exponent with its error bar, and those of single trials."""
        figure = Figure("Lyapunov exponents")
        panel = figure.panel(
            x=Axis("exponent", whole=True), y="growth per step" if self.dt == 1 else "growth rate"
        )
        panel.level(y=0, dash="--")
        places = np.arange(1, len(self.values) + 1)
        for own in self.by_trial[:20]:
            panel.curve(
                places, np.where(np.isfinite(own), own, np.nan), "-", width=0.6, alpha=0.4, color="#999999"
            )
        finite = np.isfinite(self.values)
        panel.curve(places[finite], self.values[finite], "o", error=self.standard_error[finite])
        return figure

    def _data(self) -> Any:
        notes = {
            "units": self.units,
            "steps": self.steps,
            "discarded": self.discarded,
            "dt": self.dt,
            "dimension": self.dimension,
            "entropy": self.entropy,
        }
        variables = {
            "lyapunov": ("exponent", self.values),
            "lyapunov_error": ("exponent", self.standard_error),
            "by_trial": ("trial exponent", self.by_trial),
        }
        return labelled(
            variables, {key: value for key, value in notes.items() if value is not None}, ["exponent"]
        )


def lyapunov(
    model: Any,
    x: Any = None,
    *,
    count: int | None = 10,
    states: States = None,
    start: Any = None,
    steps: int | None = None,
    discard: int | None = None,
    every: int = 1,
    dt: float = 1.0,
    seed: Seed = 0,
) -> LyapunovExponents:
    """Lyapunov exponents of a recurrent model: how fast small changes of its states grow or die.

    Parameters
    ----------
    model
        A recurrent layer or cell of torch, a model with one inside, or one step as a function f(h, x) of states and
        inputs of a batch. Of other models ``states`` names the modules whose results are the states, in a loop.
    x
        What the model takes; of a cell or function a tensor (samples, steps, features). Without it a function f(h)
        or a layer goes ``steps`` steps by itself.
    count
        How many of the largest; None: all.
    start
        The first states (samples, units), which a function needs; a layer has its own, and random ones without ``x``.
    discard
        Steps at the start that do not count, until the frame has turned to the directions that grow; by default a
        tenth.
    every
        Steps from one orthonormalisation to the next.
    dt
        The time of a step; exponents are per unit of time.

    Examples
    --------
    >>> import torch, foretrain as ft
    >>> logistic = lambda h: 4 * h * (1 - h)
    >>> found = ft.lyapunov(logistic, start=torch.tensor([[0.3], [0.6]]).double(), steps=2000)
    >>> abs(found.largest - 0.6931) < 0.02  # log 2
    True
    """
    run = read_run(model, x, states=states, start=start, steps=steps, seed=seed)
    every, dt = whole_number("every", every), positive("dt", dt)
    discard = run.steps // 10 if discard is None else whole_number("discard", discard, least=0)
    count = run.units if count is None else min(whole_number("count", count), run.units)
    if run.steps // every * every - every < discard:
        raise InputError(
            f"{run.steps} steps leave none after `discard={discard}`, `every={every}`: give a longer trajectory."
        )
    need = 8 * run.samples * (4 * run.units * count + (0 if count < run.units else 2 * run.units**2))
    require_memory(
        need, f"frames of {count} directions in {run.samples} trials", "ask for a smaller `count=`"
    )

    # A random frame; what it grows by while it turns is left out.
    drawn = torch.randn(run.samples, run.units, count, dtype=torch.float64, generator=torch_generator(seed))
    frame = torch.linalg.qr(drawn).Q.to(run.states.device)
    grown: list[torch.Tensor] = []
    for step in track(range(1, run.steps + 1), "Lyapunov exponents"):
        frame = run.push(step - 1, frame.to(run.dtype)).double()
        if step % every:
            continue
        frame, upper = torch.linalg.qr(frame)
        if step - every >= discard:
            diagonal = torch.diagonal(upper, dim1=1, dim2=2).abs()
            # What is left of a direction by rounding alone is nothing.
            lost = diagonal <= run.units * torch.finfo(run.dtype).eps * diagonal.amax(1, keepdim=True)
            grown.append(torch.where(lost, 0.0, diagonal).log())
    growth = torch.stack(grown, 1).cpu().numpy() / (every * dt)  # (samples, intervals, count)

    mean = growth.mean((0, 1))
    order = np.argsort(-mean, kind="stable")
    return LyapunovExponents(
        values=mean[order],
        standard_error=error_of_mean(growth)[order],
        by_trial=growth.mean(1)[:, order],
        units=run.units,
        steps=len(grown) * every,
        discarded=discard,
        dt=dt,
    )


def error_of_mean(series: Array) -> Array:
    """Of the mean over trials and time of (trials, times, ...): from blocks of time and their correlation."""
    trials, times = series.shape[:2]
    length = min(times, max(1, trials * times // _BLOCKS))
    blocks = times // length
    means = series[:, : blocks * length].reshape(trials, blocks, length, -1).mean(2)
    if trials * blocks < 2:
        return np.full(means.shape[2], np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        off = means - means.mean((0, 1))
        variance = (off**2).sum((0, 1)) / (trials * blocks - 1)
        lagged = (off[:, 1:] * off[:, :-1]).mean((0, 1)) if blocks > 1 else np.zeros(means.shape[2])
        next_one = np.clip(np.where(variance > 0, lagged / variance, 0.0), 0.0, _MOST_CORRELATED)
        return np.asarray(np.sqrt(variance / (trials * blocks) * (1 + next_one) / (1 - next_one)))
