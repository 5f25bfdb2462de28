"""What there is to know of a global-state NTK at a glance: ranks, modes, core, weights, and how a target fits."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical.global_ntk.alignment import StateAlignment
from foretrain.empirical.global_ntk.dynamics import feature_axis
from foretrain.empirical.global_ntk.kernel import GlobalNTK
from foretrain.empirical.global_ntk.parameter_shares import LossDecrease, Shares, trace_shares
from foretrain.empirical.global_ntk.readout import Readout, as_readout, placed_mask, placed_target
from foretrain.empirical.global_ntk.view import ESTIMATE, View, said
from foretrain.empirical.target_modes import Components
from foretrain.operators import Space, SumSpace
from foretrain.operators.estimators import Estimate, top_modes
from foretrain.support.answers import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    SKY,
    Answer,
    Axis,
    Column,
    Figure,
    Part,
    Result,
    Table,
    labelled,
    log,
    names_axis,
    picked,
    with_others,
)
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed

Array = NDArray[np.float64]
T = TypeVar("T")

_SPECTRUM = 20  # leading eigenvalues of the reduced kernel and of the core
_TARGET_MODES = 3
_MOST_PARAMETERS, _MOST_BARS = 24, 12  # of a table and of a picture, where the others are put together
_TOLERANCE = 1e-4  # of residuals
_STAGES = 4  # of one member


@dataclass(frozen=True, repr=False, eq=False)
class GlobalSummary(Result):
    """A global-state NTK: trace, effective rank tr(A)^2 / tr(A^2), leading eigenvalues, shares of the parameters.

    ``views`` holds a ``View`` for every member of the states: one, or those of a direct sum by name. Estimates carry
    standard errors; ``residuals`` are |A v - value v|. ``trace_shares`` are the parameters' parts of the trace.
    """

    axes: str
    size: int
    parameters: int
    dtype: str
    trace: Estimate
    effective_rank: Estimate
    eigenvalues: Array
    residuals: Array
    trace_shares: Shares
    views: Mapping[str, View]
    seconds: float
    notes: tuple[str, ...]
    title: str = "Global-state NTK"  # of the picture

    @property
    def eigenvalue_shares(self) -> Array:
        """Leading eigenvalues over the trace."""
        return self.eigenvalues / self.trace.value if self.trace.value else np.zeros_like(self.eigenvalues)

    def answer(self) -> Answer:
        """Ranks, modes, what every state does, and which parameters do it."""
        columns = {
            "mode": range(1, len(self.eigenvalues) + 1),
            "eigenvalue": self.eigenvalues,
            "share of the trace": self.eigenvalue_shares,
            "residual": self.residuals,
        }
        # Parameters' shares of the trace, and of how fast the loss falls where that is known.
        shares = self.trace_shares
        order = np.argsort(-shares.values)[:_MOST_PARAMETERS]
        names = [shares.names[place] for place in order]
        of_parameters: dict[Any, Any] = {
            "parameter": names,
            Column("share of the trace", error="±"): shares.values[order],
            "±": shares.standard_errors[order],
        }
        for ending, fall in self._falls().items():
            of_parameters[f"share of the loss decrease{ending}"] = [fall.shares[name] for name in names]
        sizes = f"{self.size} states, {self.parameters} parameters, {self.dtype}"
        statement = f"Global-state NTK on {self.axes}: {sizes}."
        parts: list[Part] = [
            f"Trace {said(self.trace)}. Effective rank {said(self.effective_rank)} of {self.size}.",
            Table.of(columns),
            self._figure,
            *(without_figures(view.answer()) for view in self.views.values()),
            Table.of(of_parameters),
            *self.notes,
            f"Computed in {self.seconds:.3g} s.",
        ]
        return Answer(statement, parts, self._data, self._record())

    def _falls(self) -> dict[str, LossDecrease]:
        """How fast the loss falls through every member where that is known, by what is said after it."""
        known = {name: view.loss_decrease for name, view in self.views.items()}
        endings = {name: f" through {name}" if len(known) > 1 else "" for name in known}
        return {endings[name]: fall for name, fall in known.items() if fall is not None}

    def _data(self) -> Any:
        shares = self.trace_shares
        found = labelled(
            {
                "eigenvalue": ("eigenmode", self.eigenvalues),
                "residual": ("eigenmode", self.residuals),
                "trace_share": ("parameter", shares.values),
                "trace_share_error": ("parameter", shares.standard_errors),
                **picked(self, "trace effective_rank"),
            },
            picked(self, "axes size parameters dtype seconds"),
            ["eigenmode"],
            parameter=np.array(shares.names, dtype=str),
        )
        for name, view in self.views.items():
            part, ending = view.to_dataset(), f"_{name}" if len(self.views) > 1 else ""
            own = {key for key in (*part.variables, *part.dims) if key != "parameter"}
            part = part.rename({key: f"{key}{ending}" for key in own}) if ending else part
            found.attrs |= {f"{key}{ending}": value for key, value in part.attrs.items()}
            found = found.merge(part.reindex(parameter=found["parameter"]).drop_attrs())
        return found

    def _record(self) -> dict[str, Any]:
        shares = self.trace_shares
        triples = zip(shares.names, shares.values, shares.standard_errors, strict=True)
        return {
            **picked(self, "axes size parameters dtype eigenvalues residuals notes seconds"),
            **{name: picked(getattr(self, name), ESTIMATE) for name in ("trace", "effective_rank")},
            "trace_shares": {
                name: {"value": value, "standard_error": error} for name, value, error in triples
            },
            "states": {name: view.answer().document() for name, view in self.views.items()},
        }

    def _figure(self) -> Figure:
        """Spectrum, ranks and weights, then for every member its modes in time and its target's modes."""
        rows, letters = ["ABC"], iter("DEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz")
        for view in self.views.values():
            first = next(letters)
            rows.append(f"{first}{first}{first if view.alignment is None else next(letters)}")
        size = (13.5, 3.4 + 4.0 * len(self.views))
        heights = [1.0] + [1.15] * len(self.views)
        figure = Figure(self.title, layout=" ".join(rows), heights=heights, size=size)
        self._draw_spectrum(figure)
        self._draw_ranks(figure)
        self._draw_weights(figure)
        for name, view in self.views.items():
            ending = f", {name}" if len(self.views) > 1 else ""
            view.draw(figure, ending)
            if view.alignment is not None:
                view.alignment.draw(figure, ending)
        return figure

    def _draw_spectrum(self, figure: Figure) -> None:
        """Shares of the trace by rank: of NTK_S, of the temporal kernels and of their cores."""
        panel = figure.panel(
            "Eigenvalues, share of the trace", Axis("mode", low=0.5, whole=True), log("", high=1.5)
        )
        curves = [(self.eigenvalue_shares, "all states", INK, "o-")]
        for color, (name, view) in zip(PALETTE, self.views.items()):
            ending = f", {name}" if len(self.views) > 1 else ""
            curves.append((view.temporal_shares, f"in {view.along}{ending}", color, ".-"))
            curves.append((view.core_shares, f"core $V V^*${ending}", color, "x:"))
        for values, label, color, style in curves:
            if len(values):
                shown = np.where(values > 1e-7, values, np.nan)
                panel.curve(range(1, len(values) + 1), shown, style, label, color, width=1.3)

    def _draw_ranks(self, figure: Figure) -> None:
        """Effective ranks beside the largest they could be."""
        bars = [("all states", self.effective_rank, self.size, INK)]
        for name, view in self.views.items():
            ending = f"\n{name}" if len(self.views) > 1 else ""
            *places, units = view.axes.values()
            bars.append((f"in {view.along}{ending}", view.temporal_rank, math.prod(places), BLUE))
            bars.append((f"in space{ending}", view.spatial_rank, units, ORANGE))
        labels, ranks, most, colors = zip(*bars)
        panel = figure.panel(
            "Effective ranks", log("", 1.0, self.size**1.45), names_axis(labels, reverse=True)
        )
        texts = [f"{rank.value:.3g} of {limit}" for rank, limit in zip(ranks, most)]
        panel.bars(range(len(bars)), most, color="#efefef", width=0.72, horizontal=True, texts=texts)
        panel.bars(
            range(len(bars)),
            [rank.value for rank in ranks],
            color=colors,
            error=[rank.standard_error or np.nan for rank in ranks],
            width=0.5,
            horizontal=True,
        )

    def _draw_weights(self, figure: Figure) -> None:
        """Every parameter's share of the trace and, where it is known, of the fall of the loss."""
        trace = with_others(dict(zip(self.trace_shares.names, self.trace_shares.values)), _MOST_BARS)
        falls = {f"of the loss decrease{ending}": fall.shares for ending, fall in self._falls().items()}
        panel = figure.panel(
            "Share of each parameter", "percent", names_axis(list(trace), reverse=True), legend="below"
        )
        columns = {"of the trace": trace, **falls}
        height = 0.8 / len(columns)
        for number, (color, (label, shares)) in enumerate(zip((GREEN, ORANGE, BLUE, SKY), columns.items())):
            at = np.arange(len(trace)) + (number - (len(columns) - 1) / 2) * height
            rest = 1.0 - sum(shares.get(name, 0.0) for name in trace)
            values = 100 * np.array([shares.get(name, rest) for name in trace])
            shown = label if len(columns) > 1 else ""
            panel.bars(at, values, shown, color, width=0.92 * height, horizontal=True)


def global_summary(
    kernel: GlobalNTK,
    y: Any = None,
    readouts: Any = None,
    *,
    modes: int = 5,
    accuracy: float = 0.02,
    seed: Seed = 0,
    title: str = "Global-state NTK",
    components: Components = "trials",
    mask: Any = None,
    model: nn.Module | None = None,
) -> GlobalSummary:
    """Summarise a kernel, and how a target y lies in it.

    ``y`` is (samples, steps, outputs), or (samples, outputs) for the last step. ``readouts`` bring it to the states:
    what ``find_readout`` returns, linear layers, their names in ``model=``, or matrices, by member if there are
    several; without one the temporal kernel is asked for its modes. ``components`` says whose modes they are, and
    ``mask`` weighs places of y, as in ``target_modes``.
    ``accuracy`` is the relative standard error of traces and ranks, the absolute one of cosines and shares.
    """
    start = time.perf_counter()
    modes = whole_number("modes", modes)
    members = members_of(kernel)
    given = (
        readouts
        if isinstance(readouts, Mapping)
        else {}
        if readouts is None
        else {next(iter(members)): readouts}
    )
    last = np.ndim(y) == 2
    by_member = {name: as_readout(one, model, last) for name, one in given.items()}
    asked = _Asked(modes, accuracy, seed, components, mask)
    notes: list[str] = []
    with Progress("global-state NTK", total=4 + _STAGES * len(members)) as bar:
        trace = _advanced(bar, kernel.trace(accuracy=accuracy, seed=seed))
        if trace.value <= 0:
            raise InputError("the kernel is zero: no counted parameter changes the states.")
        rank = _advanced(bar, kernel.effective_rank(accuracy=accuracy, seed=seed))
        count = min(modes, kernel.size)
        leading = _advanced(bar, kernel.top_modes(count, tolerance=_TOLERANCE, seed=seed))
        shares = _advanced(bar, trace_shares(kernel, accuracy=accuracy, seed=seed))
        views = {
            name: _view(name, part, y, by_member.get(name), asked, bar, notes)
            for name, part in members.items()
        }
    return GlobalSummary(
        axes=kernel.domain.describe(),
        size=kernel.size,
        parameters=sum(value.numel() for value in kernel.dynamics.parameters.values()),
        dtype=str(kernel.dtype).removeprefix("torch."),
        trace=trace,
        effective_rank=rank,
        eigenvalues=leading.values.numpy(),
        residuals=leading.residuals.cpu().double().numpy(),
        trace_shares=shares,
        views=views,
        seconds=time.perf_counter() - start,
        notes=tuple(notes),
        title=title,
    )


@dataclass(frozen=True)
class _Asked:
    modes: int
    accuracy: float
    seed: Seed
    components: Components
    mask: Any


def members_of(kernel: GlobalNTK) -> dict[str, GlobalNTK]:
    """The kernel of every plain member by name."""
    if not isinstance(kernel.domain, SumSpace):
        names = kernel.members or ()
        return {names[0] if len(names) == 1 else "states": kernel}
    return {name: GlobalNTK(kernel.dynamics, [name]) for name in kernel.domain.names}


def _view(
    name: str,
    kernel: GlobalNTK,
    y: Any,
    readout: Readout | None,
    asked: _Asked,
    bar: Progress,
    notes: list[str],
) -> View:
    space = kernel.domain.plain("a view")
    places = space.without([feature_axis(space)])
    asking: dict[str, Any] = {"accuracy": asked.accuracy, "seed": asked.seed}
    temporal, spatial = _advanced(bar, kernel.temporal(**asking)), _advanced(bar, kernel.spatial(**asking))
    # Leading modes, which are positive where they are largest.
    count = min(max(asked.modes, _SPECTRUM), temporal.size)
    leading = top_modes(temporal, count, tolerance=1e-6)
    values, vectors = leading.values.numpy(), leading.vectors.cpu().double().numpy()
    vectors = vectors * np.sign(vectors[np.arange(count), np.abs(vectors).argmax(1)])[:, None]
    core, likeness = _advanced(bar, _core(kernel, asked.accuracy, asked.seed))
    alignment, decrease = _advanced(bar, _towards(kernel, y, places, readout, name, asked, notes))
    return View(
        name=name,
        axes=dict(zip(space.names, space.shape, strict=True)),
        temporal_rank=temporal.rank,
        spatial_rank=spatial.rank,
        temporal_error=temporal.error,
        temporal_modes=vectors[: asked.modes].reshape(-1, *places.shape),
        temporal_shares=values / temporal.trace().value,
        core_shares=core,
        core_cosine=likeness,
        alignment=alignment,
        loss_decrease=decrease,
        readout=None if readout is None or alignment is None else repr(readout),
    )


def _core(kernel: GlobalNTK, accuracy: float, seed: Seed) -> tuple[Array, Estimate | None]:
    """The spectrum of V V* and the cosine with V V* (x) I; nothing where sites cannot stand side by side."""
    try:
        core = kernel.concatenated_core
    except NotSupportedError:
        return np.zeros(0), None
    values = torch.linalg.svdvals(kernel.site_rows().double()).square()
    shares = (values / values.sum())[:_SPECTRUM].cpu().numpy()
    return shares, kernel.cosine(core, accuracy=accuracy, seed=seed)


def _towards(
    kernel: GlobalNTK,
    y: Any,
    places: Space,
    readout: Readout | None,
    name: str,
    asked: _Asked,
    notes: list[str],
) -> tuple[StateAlignment | None, LossDecrease | None]:
    """The alignment with a target and, where a readout says it, how fast half the sum of squares to it falls.

    Or a note that says why there is none: the kernel is worth its summary without.
    """
    if y is None:
        return None, None
    try:
        target = placed_target(y, places, readout)
        mask = None if asked.mask is None else placed_mask(asked.mask, np.shape(y), target)
    except InputError as error:
        notes.append(f"No alignment of {name} with the target: {error}")
        return None, None
    if not bool((target if mask is None else torch.where(mask > 0, target, 0.0)).any()):
        notes.append(f"No alignment of {name} with the target: it is zero everywhere.")
        return None, None
    options: dict[str, Any] = {"modes": _TARGET_MODES, "accuracy": asked.accuracy, "seed": asked.seed}
    options |= {"components": asked.components, "mask": mask}
    if readout is None:
        return kernel.alignment(target, **options), None
    states = kernel.states
    assert isinstance(states, Tensor)  # of a plain member
    weights = None if mask is None else mask.to(states)
    decrease = kernel.loss_decrease(readout.error(states, target.to(states), weights))
    return kernel.alignment(target, readout.weight, **options), decrease


def _advanced(bar: Progress, found: T) -> T:
    bar.advance()
    return found


def without_figures(answer: Answer) -> Answer:
    """The same for where a larger picture shows all of it."""
    parts = [without_figures(part) if isinstance(part, Answer) else part for part in answer.parts]
    return replace(answer, parts=[part for part in parts if not callable(part)])
