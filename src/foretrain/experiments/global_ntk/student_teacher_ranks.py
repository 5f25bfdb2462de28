"""Ranks of the global-state NTK in time and in space against gain and input rank (Hazelden et al., figure 5).

A vanilla recurrent student learns from a teacher of gain 1, by its recurrent weights W alone or its input weights
W_in alone. Before and after training the effective ranks of NTK_temp and NTK_space (15) are measured: as partial
traces, which contract equal indices, and as the published code averages, over all pairs of indices. How a gradient
grows on its way back through time tells where students are chaotic.
"""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import xarray

from foretrain.experiments.global_ntk.student_teacher_trends import gain_sweep, input_sweep, table, verdict
from foretrain.experiments.networks import descend
from foretrain.experiments.pictures import draw_means
from foretrain.experiments.registry import Result, plans
from foretrain.support import answers
from foretrain.support.answers import BLUE, FAINT, GREEN, INK, ORANGE, PURPLE, Axis, Figure, Panel, log
from foretrain.support.errors import AccuracyWarning
from foretrain.support.progress import track
from foretrain.support.seeds import generator, integer, spawn
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch

    from foretrain.empirical.global_ntk import GlobalNTK
    from foretrain.empirical.global_ntk.reduced_views import Kind
    from foretrain.experiments.parts import Parts
    from foretrain.training.tasks.student_teacher import StudentTeacher, Trainable, VanillaNetwork


_VIEWS: tuple[Kind, ...] = ("temporal", "spatial")
_DEFINITIONS = ("partial trace", "all pairs")
_MOMENTS = ("initial", "trained")
_RATE = 0.01
_SHARE = 0.95
_VIEW_COLORS = {"temporal": GREEN, "spatial": PURPLE}
_DEFINITION_COLORS = {"partial trace": BLUE, "all pairs": ORANGE}
_STYLES = {"initial": ("o-", "at initialisation"), "trained": ("s--", "after training")}
_LOWEST = 0.7  # drawn of a rank: one that is zero stands there
_ROWS_PER_PLACE = 8  # columns of random sheets for each row of NTK_temp: finds 3 % too few modes at the peak


@dataclass(frozen=True)
class _Sweep:
    """Gains and input ranks of one kind of student: all pairs are measured, some are trained too."""

    gains: tuple[float, ...]
    input_ranks: tuple[int, ...]
    trained_gains: tuple[float, ...]
    trained_input_ranks: tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The students that are measured and trained, and how long."""

    sweeps: dict[Trainable, _Sweep]
    seeds: int
    steps: int  # of training
    measured: int  # samples at which ranks are measured
    batch: int = 128  # in training
    accuracy: float = 0.05  # relative, of one rank: the spread over seeds is larger
    units: int = 64
    trial: int = 40  # steps of time


_QUICK_GAINS = (0.0, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0)
_PAPER_GAINS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0)


def _sweeps(gains: tuple[float, ...]) -> dict[Trainable, _Sweep]:
    ranks = (1, 2, 4, 8, 16)
    return {"recurrent": _Sweep(gains, (4, 16), gains, (16,)), "input": _Sweep((1.0,), ranks, (1.0,), ranks)}


PLANS = plans(
    quick=Plan(_sweeps(_QUICK_GAINS), seeds=3, steps=150, measured=16),
    paper=Plan(_sweeps(_PAPER_GAINS), seeds=5, steps=5000, measured=128),
)


class _Point(NamedTuple):
    """One student of the sweep."""

    trainable: Trainable
    gain: float
    input_rank: int
    number: int  # of the seed
    is_trained: bool

    @property
    def name(self) -> str:
        return f"{self.trainable} gain {self.gain:g} inputs {self.input_rank} seed {self.number}"


def student_teacher_ranks(plan: Plan, seed: int, parts: Parts) -> Result:
    """Temporal and spatial ranks against gain and input rank, and who learns."""
    seeds, found = spawn(seed, plan.seeds), []
    points = [
        _Point(name, gain, rank, number, gain in sweep.trained_gains and rank in sweep.trained_input_ranks)
        for name, sweep in plan.sweeps.items()
        for gain in sweep.gains
        for rank in sweep.input_ranks
        for number in range(plan.seeds)
    ]
    for point in track(points, "students"):
        part = parts.get(point.name, partial(_part, point, plan, seeds[point.number]))
        labels: dict[str, str | float] = {"trainable": point.trainable, "gain": point.gain}
        labels |= {"input_rank": point.input_rank, "seed": point.number}
        found.append(part.assign_coords(labels).expand_dims(list(labels)))
    data = xarray.combine_by_coords(found, join="outer", combine_attrs="drop")
    assert isinstance(data, xarray.Dataset)
    data = data.sortby(["trainable", "gain", "input_rank", "seed"])
    data.attrs = {"steps": plan.steps, "batch": plan.batch, "measured": plan.measured, "rate": _RATE}
    rows = table(data)
    return Result(verdict(data, rows), rows, data, _draw)


def _part(point: _Point, plan: Plan, seed: np.random.SeedSequence) -> xarray.Dataset:
    """Everything about one student; students of one seed share their teacher, their inputs and their draws."""
    import torch

    from foretrain.training.tasks.student_teacher import StudentTeacher

    drawing, training, measuring = spawn(seed, 3)
    student_teacher = partial(StudentTeacher, input_rank=point.input_rank, trainable=point.trainable)
    task = student_teacher(units=plan.units, steps=plan.trial, seed=integer(drawing))
    student = task.student(point.gain)
    before = _measured(task, student, plan, measuring)
    losses = np.full(plan.steps, np.nan)
    after = {name: np.full_like(values, np.nan) for name, values in before.items()}
    if point.is_trained:
        source = generator(training)

        def loss() -> Any:
            """Every step of gradient descent sees new samples."""
            x, y = task.batch(plan.batch, source)
            return (student(x) - y).square().mean()

        trained = [parameter for parameter in student.parameters() if parameter.requires_grad]
        losses = descend(torch.optim.SGD(trained, lr=_RATE), loss, plan.steps)
        after = _measured(task, student, plan, measuring)
    views = ("moment", "view", "definition")
    dims = {"rank": views, "rank_error": views, "modes": views[:2], "growth": views[:1]}
    return xarray.Dataset(
        {name: (dims[name], np.stack([before[name], after[name]])) for name in dims}
        | {"loss": ("step", losses)},
        coords={"moment": list(_MOMENTS), "view": list(_VIEWS), "definition": list(_DEFINITIONS)},
    )


def _measured(
    task: StudentTeacher, student: VanillaNetwork, plan: Plan, seed: np.random.SeedSequence
) -> dict[str, FloatArray]:
    """Ranks and their errors (view, definition), modes for 95 % (view), and the growth of gradients."""
    from foretrain.empirical.global_ntk import global_ntk

    sampling, probing, signs = spawn(seed, 3)
    kernel = global_ntk(student, task.inputs(plan.measured, sampling))
    ways = (_traced, _over_pairs)
    ranks = np.array([[rank(kernel, view, plan, probing) for rank in ways] for view in _VIEWS])
    return {
        "rank": ranks[..., 0],
        "rank_error": ranks[..., 1],
        "modes": _modes(kernel, probing),
        "growth": np.array(_growth(kernel, signs)),
    }


def _traced(kernel: GlobalNTK, view: Kind, plan: Plan, seed: np.random.SeedSequence) -> tuple[float, float]:
    """The participation ratio of a partial trace, and its error, which is kept and so not warned of."""
    from foretrain.empirical.global_ntk.reduced_views import reduced_view

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        found = reduced_view(kernel, view, accuracy=plan.accuracy, seed=seed).rank
    return found.value, found.standard_error


def _over_pairs(
    kernel: GlobalNTK, view: Kind, plan: Plan, seed: np.random.SeedSequence
) -> tuple[float, float]:
    """That of the average over all pairs of indices: the contraction with the vector of ones."""
    from foretrain.operators.reductions import pair_sum

    over = ("unit",) if view == "temporal" else ("batch", "time")
    reduced = pair_sum(kernel, over, normalize=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)
        found = reduced.effective_rank(accuracy=plan.accuracy, seed=seed)
    return found.value, found.standard_error


def _modes(kernel: GlobalNTK, seed: np.random.SeedSequence) -> FloatArray:
    """How many modes hold 95 % of the trace of either partial trace, from random directions of the parameters."""
    import torch

    from foretrain.support.seeds import torch_generator

    samples, steps, units = kernel.domain.plain("modes").shape
    places, source = samples * steps, torch_generator(seed)
    temporal = torch.zeros(places, places, dtype=torch.float64)
    spatial = torch.zeros(units, units, dtype=torch.float64)
    left = -(-_ROWS_PER_PLACE * places // units)
    while left > 0:
        count = min(left, kernel.best_block)
        directions = torch.randn(count, kernel.J.domain.size, generator=source, dtype=kernel.dtype)
        sheets = kernel.J.apply(directions).view(count, places, units)
        in_time, in_space = sheets.transpose(0, 1).flatten(1), sheets.flatten(0, 1)
        temporal += in_time @ in_time.t()
        spatial += in_space.t() @ in_space
        left -= count
    return np.array([_holding(temporal), _holding(spatial)], dtype=np.float64)


def _holding(matrix: torch.Tensor) -> float:
    """The number of largest modes that hold 95 % of the trace."""
    values = np.maximum(np.linalg.eigvalsh(matrix.numpy())[::-1], 0)
    if not values.sum():
        return 0.0
    return float(np.searchsorted(np.cumsum(values) / values.sum(), _SHARE) + 1)


def _growth(kernel: GlobalNTK, seed: np.random.SeedSequence) -> float:
    """By what a gradient at the last step has grown when it reaches the first: a ratio of rms lengths."""
    import torch

    from foretrain.operators.vectors import random_signs

    err = torch.zeros(kernel.domain.plain("a gradient").shape, dtype=kernel.dtype)
    err[:, -1] = random_signs(len(err), err.shape[2], seed, dtype=kernel.dtype, device=kernel.device)
    adjoint = kernel.adjoint_state(err)
    assert isinstance(adjoint, torch.Tensor)  # of one layer
    return float(adjoint[:, 0].norm() / adjoint[:, -1].norm())


def _draw(data: xarray.Dataset) -> Figure:
    """Ranks in time and in space, by gain and by input rank; gradients; losses."""
    title = "Student and teacher: ranks of the global-state NTK against gain and input rank"
    figure = Figure(title, columns=4, size=(19, 9))
    gains, inputs, largest = gain_sweep(data), input_sweep(data), int(data.input_rank.max())
    last = 1.03 * gains.gain.values[-1]
    chaotic = gains.gain.values[gains.growth.sel(moment="initial").mean("seed").values > 1]

    def by_gain(title: str, y: Axis, label: str = "") -> Panel:
        """A panel over gains, shaded where gradients grow on their way back."""
        panel = figure.panel(title, Axis("gain g of the student's W", high=last), y)
        if len(chaotic):
            panel.region((chaotic[0], last), label=label, color="#f4ece0", alpha=1)
        return panel

    for view in _VIEWS:
        panel = by_gain(f"train W: {view} rank, input rank {largest}", log("participation ratio"))
        _draw_definitions(panel, gains["rank"].sel(view=view), "gain")
    # Students that training has thrown into saturation, where the kernel is zero.
    lost = (gains["rank"].sel(moment="trained", view="spatial", definition="partial trace") == 0).sum("seed")
    cases = [f"{int(count)} of {gains.sizes['seed']} at g = {float(count.gain):g}" for count in lost if count]
    words = f"rank 0 after training,\nall units saturated:\n{', '.join(cases)}" if cases else ""
    panel.note(0.03, 0.45, words, fraction=True)
    y = log("participation ratio of the partial trace")
    panel = by_gain("train W: by input rank, at initialisation", y)
    swept = data.sel(trainable="recurrent").dropna("input_rank", subset=["growth"], how="all").input_rank
    for dash, rank in zip((":", "-", "--", "-."), swept.values.tolist()):
        ranks = gain_sweep(data, rank)["rank"].sel(moment="initial", definition="partial trace")
        for name, color in _VIEW_COLORS.items():
            own, label = ranks.sel(view=name), f"{name}, input rank {rank}"
            draw_means(panel, own.gain, own, "seed", f"o{dash}", label, color, least=_LOWEST)
    x = log("input rank", ticks=inputs.input_rank.values)
    panel = figure.panel("train W$_{in}$: temporal rank, gain 1", x, log("participation ratio"))
    _draw_definitions(panel, inputs["rank"].sel(view="temporal"), "input_rank")
    title, y = "train W: gradient at the first step over the last", log("growth on the way back", 1e-6)
    panel = by_gain(title, y, "gradients explode")
    for moment, (style, words) in _STYLES.items():
        runs = gains.growth.where(gains.growth > 0).sel(moment=moment)
        for run in runs.transpose("seed", "gain"):
            panel.curve(gains.gain, run, style[0], "", FAINT, size=3)
        panel.curve(gains.gain, runs.median("seed"), style, words, INK, size=4)
    panel.level(y=1, color=ORANGE)
    panel = by_gain("train W: modes for 95 % of the partial trace", log("modes"))
    for name, color in _VIEW_COLORS.items():
        for moment, (style, words) in _STYLES.items():
            own, label = gains.modes.sel(view=name, moment=moment), f"{name}, {words}"
            draw_means(panel, own.gain, own, "seed", style, label, color, least=_LOWEST)
    _draw_losses(figure, f"train W: who learns, input rank {largest}", gains, "gain", "g = {:g}")
    title = "train W$_{in}$: who learns, gain 1"
    _draw_losses(figure, title, inputs, "input_rank", "input rank {:g}")
    return figure


def _draw_definitions(panel: Panel, ranks: xarray.DataArray, axis: str) -> None:
    """One colour for each definition of the rank, one style for each moment."""
    for definition, color in _DEFINITION_COLORS.items():
        for moment, (style, _) in _STYLES.items():
            label = definition if moment == "initial" else ""
            own = ranks.sel(definition=definition, moment=moment)
            draw_means(panel, own[axis], own, "seed", style, label, color, least=_LOWEST)
    for style, words in _STYLES.values():
        panel.legend_entry(style, words)


def _draw_losses(figure: Figure, title: str, sweep: xarray.Dataset, axis: str, name: str) -> None:
    """The median over seeds, in means over some steps."""
    panel = figure.panel(title, "step", log("mean squared error"), legend_columns=2)
    width = max(1, sweep.sizes["step"] // 60)
    losses = sweep.loss.coarsen(step=width, boundary="trim").mean().median("seed")
    for value, color in zip(sweep[axis].values, answers.shades(sweep.sizes[axis])):
        curve = losses.sel({axis: value})
        panel.curve(width * np.arange(curve.size), curve, "-", name.format(value), color)
