"""Several modes escaping together (Rawal & DeWeese, figure 5): tanh, depth 4, width 60, three modes in 16 inputs.

The population gradient flow of the whole network, on the ansatz with all scales at 0.05, against the exact flow of
its block means and against what the paper predicts from: every mode by itself, the closure with rotations and
off-block entries, the homotopy identity. Then the order of two modes by Gamma_k over teacher strengths and critical
depths. Times are matrix times s = learning rate of the first layer × steps; a mode escapes when X_1 in its block is
0.5 (0.4 over the grid of two modes, there with the alignment of all blocks).

Stochastic gradient descent at the published size takes hours, so that the quick one is narrower and starts from
larger scales, beside the block flow of its own size. It is timed by its loss: it has escaped when its loss is that of
the block flow where the first mode's X_1 passes the threshold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import xarray
from scipy.stats import t as student

from foretrain.activations import activation
from foretrain.experiments.judgements import claim_row, measured_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.experiments.saddle_escape.escape_times import descent_row
from foretrain.saddle import escape_time
from foretrain.saddle import modes as theory
from foretrain.support.answers import BLUE, FAINT, INK, PALETTE, RED, Axis, Figure, log, names_axis
from foretrain.support.progress import track
from foretrain.support.seeds import integer, spawn
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    from foretrain.training.gradient_flow import Problem


_DEPTH, _INPUTS, _THRESHOLD, _GRID_THRESHOLD = 4, 16, 0.5, 0.4
_GRID_UNTIL = 2e4


@dataclass(frozen=True)
class Descent:
    """The network that descends, its batches, and its steps up to twice the expected escape."""

    width: int
    epsilon: float
    batch: int
    steps: int
    seeds: int
    every: int = 2


@dataclass(frozen=True)
class Plan:
    """The network, the points of its sample, and how far the flow and the series go."""

    width: int
    betas: tuple[float, ...]
    points: int
    until: float  # of the snapshots, in units of the first mode's escape
    snapshots: int
    followed: int  # modes whose escape the whole network is followed to
    samples: int  # of points, whose spread is the error of those escapes
    epsilons: tuple[float, ...]
    nodes: tuple[int, ...]  # of the homotopy
    grid_nodes: int  # of the Gaussian averages inside the homotopy
    strengths: tuple[float, ...] = (0.1, 0.3, 0.6, 0.9)
    depths: tuple[float, ...] = (3.0, 3.25, 3.5, 4.0)
    epsilon: float = 0.05
    descent: Descent = Descent(24, 0.12, 1024, 430, 6)

    @property
    def block(self) -> int:
        """Neurons of each mode."""
        return self.width // len(self.betas)

    @property
    def scales(self) -> FloatArray:
        """X_l of every mode at the start."""
        return np.full((_DEPTH, len(self.betas)), self.epsilon)


_QUICK = Plan(60, (1.0, 0.3, 0.08), 4096, 4.5, 60, 2, 4, (0.1, 0.05, 0.025), (2, 4, 8, 12), 14)
_DESCENT = Descent(60, 0.05, 4096, 150_000, 3, every=50)
_LARGE = replace(_QUICK, points=16384, snapshots=120, samples=8, descent=_DESCENT)
PLANS = plans(
    quick=_QUICK,
    paper=replace(_LARGE, epsilons=(0.1, 0.05, 0.025, 0.0125), nodes=(2, 4, 8, 16), grid_nodes=24),
)


def saddle_modes(plan: Plan, seed: int) -> Result:
    """Loss, alignments and escape times of three modes, and the order of two, against the predictions."""
    exact, modes = _block_escape(plan.scales, plan.betas, plan.block), len(plan.betas)
    parts = [_flow(plan, exact, seed), _escapes(plan, seed), _descend(plan, seed)]
    splits = [_homotopy(plan, nodes, None) for nodes in plan.nodes]
    # The paper's closure, and the one with the off-block entries of every layer, by number of variables.
    closures = {
        modes * (_DEPTH + len(layers) * (modes - 1)): _homotopy(plan, 2, layers)
        for layers in ((1, 2), tuple(range(1, _DEPTH)))
    }
    data = xarray.merge([*parts, _modes(plan, exact), _ordering(plan)]).assign(
        predicted=("nodes", [plan.block * split.predicted for split in splits]),
        share=(("nodes", "channel"), [[plan.block * v for v in s.shares.values()] for s in splits]),
        closure=("variables_kept", [plan.block * split.end for split in closures.values()]),
        closure_predicted=("variables_kept", [plan.block * s.predicted for s in closures.values()]),
    )
    channels, kept = list(splits[0].shares), max(split.conservation for split in splits)
    data = data.assign_coords(nodes=list(plan.nodes), channel=channels, variables_kept=list(closures))
    data.attrs |= {"homotopy_end": plan.block * splits[-1].end, "conservation": kept, "width": plan.width}
    data.attrs |= {"block_width": plan.block, "betas": list(plan.betas), "threshold": _THRESHOLD}
    data.attrs |= {"start_scale": plan.epsilon, "points": plan.points, "samples": plan.samples}
    # The law and the exact flow say which of two modes is first.
    law, fact = data["rate_ratio"] > 1, data["time_ratio"] > 1
    right, total = int((law == fact).sum()), law.size
    title, all_of = "pairs of modes that Γ_k orders rightly", f"{total} of {total}"
    note = (
        "Where it fails, a block with larger scales learns the stronger mode instead of its own: its rows turn to "
        "v_1 before they grow along v_2."
    )
    first = claim_row(title, all_of, f"{right} of {total}", right == total, note, disputed=True)
    places = [
        f"β = {float(data.strength[row]):g}, r = {float(data.critical_depth[column]):g}"
        for row, column in np.argwhere((law & fact).values)
    ]
    title, note = "a weaker mode with larger scales goes first", f"At {', '.join(places)}." if places else ""
    order_rows = [first, claim_row(title, "yes", "yes" if places else "no", bool(places), note)]
    rows = (*network_rows(data), *_mode_rows(data, plan.descent), *homotopy_rows(data), *order_rows)
    right = int(((data["rate_ratio"] > 1) == (data["time_ratio"] > 1)).sum())
    network, leading, alone = (float(data[name][0]) for name in ("network_escape", "leading", "alone"))
    verdict = (
        f"The whole network's first mode escapes at {network:.5g}, the block flow's at {exact[0]:.5g}; by itself it "
        f"would at {leading:.5g} by leading order and {alone:.5g} exactly; the homotopy identity gives "
        f"{float(data['predicted'][-1]):.5g}; Γ_k orders {right} of {data['rate_ratio'].size} pairs of modes rightly."
    )
    return Result(verdict, rows, data, _draw)


def _block_escape(scales: FloatArray, betas: Sequence[float], block: int, until: float = 1e5) -> FloatArray:
    """When X_1 of every mode passes the threshold in the exact flow of block means."""
    found = theory.block_escape("tanh", scales, betas, block, threshold=_THRESHOLD, until=until)
    return np.asarray(found.values)


def _problem(plan: Plan, width: int) -> Problem:
    from foretrain.training.gradient_flow import Problem

    return Problem("tanh", depth=_DEPTH, width=width, inputs=_INPUTS, betas=plan.betas)


def _flow(plan: Plan, exact: FloatArray, seed: int) -> xarray.Dataset:
    """Snapshots of the whole network beside the block flow."""
    from foretrain.training import gradient_flow as flows

    problem = _problem(plan, plan.width)
    sample, rules = flows.gaussian_sample(problem, plan.points, seed), flows.Integration(rtol=1e-6)
    # A third of the snapshots is about the first escape, where everything moves.
    third, ends = plan.snapshots // 3, ((0, 0.85, False), (0.85, 1.2, False), (1.2, plan.until, True))
    spans = [np.linspace(start, stop, third, endpoint=end) for start, stop, end in ends]
    start, times = flows.ansatz(problem, plan.scales), exact[0] * np.concatenate(spans)
    shots = flows.snapshots(problem, start, times, metric="normalized", sample=sample, integration=rules)
    first = shots.weights[0][0, :, :, : len(plan.betas)].numpy()
    losses = flows.trajectory(problem, shots, sample=sample)["loss"].isel(network=0).values
    return theory.block_flow("tanh", plan.scales, plan.betas, plan.block, times).assign(
        network_loss=("time", losses),
        network_alignment=(("time", "mode"), np.linalg.norm(first, axis=1) / np.sqrt(plan.width)),
    )


def _escapes(plan: Plan, seed: int) -> xarray.Dataset:
    """Escape times of the whole network's first modes: means over samples of points, with standard errors."""
    from foretrain.training import gradient_flow as flows

    problem = _problem(plan, plan.width)
    times = np.full((plan.samples, len(plan.betas)), np.nan)
    for place, own in enumerate(track(spawn(seed, plan.samples), "samples of the whole network")):
        for mode in range(plan.followed):
            found = flows.escape(
                problem,
                flows.ansatz(problem, plan.scales),
                thresholds=[_THRESHOLD],
                observable=flows.amplitude_observable(mode),
                metric="normalized",
                sample=flows.gaussian_sample(problem, plan.points, own),
                integration=flows.Integration(rtol=1e-6),
            )
            times[place, mode] = float(found["time"][0, 0])
    error = times.std(axis=0, ddof=1) / np.sqrt(plan.samples)
    return xarray.Dataset({"network_escape": ("mode", times.mean(axis=0)), "network_error": ("mode", error)})


def _descend(plan: Plan, seed: int) -> xarray.Dataset:
    """Escape times of the first mode by descent, and that of the block flow."""
    from foretrain.training import gradient_flow as flows

    sizes, betas = plan.descent, plan.betas
    block, scales = sizes.width // len(betas), np.full((_DEPTH, len(betas)), sizes.epsilon)
    exact = float(_block_escape(scales, betas, block)[0])
    level = float(theory.block_flow("tanh", scales, betas, block, np.array([0.0, exact]))["loss"][-1])
    problem, (own,) = _problem(plan, sizes.width), spawn(seed, 1)
    found = flows.stochastic_escape(
        problem,
        flows.ansatz(problem, np.tile(scales, (sizes.seeds, 1, 1))),
        lr=2 * exact / sizes.steps,
        batch_size=sizes.batch,
        steps=sizes.steps,
        thresholds=(level,),
        metric="normalized",
        sample=flows.gaussian_sample(problem, 2048),
        every=sizes.every,
        seed=integer(own),
    )
    times = ("descent_seed", found["time"].values[:, 0])
    return xarray.Dataset({"descent_time": times, "descent_exact": exact})


def _modes(plan: Plan, exact: FloatArray) -> xarray.Dataset:
    """Escape times of every mode: by itself at leading order and exactly, and with the others.

    ``ratio`` is the first mode's exact time over the leading one, for smaller and smaller scales.
    """
    alone = partial(escape_time, "tanh", plan.scales[:, 0], width=plan.block, threshold=_THRESHOLD)
    ratios = []
    for epsilon in track(plan.epsilons, "smaller scales"):
        X = np.full_like(plan.scales, epsilon)
        leading = escape_time("tanh", X[:, 0], width=plan.block, beta=plan.betas[0], threshold=_THRESHOLD)
        ratios.append(float(_block_escape(X, plan.betas, plan.block, 1.2 * leading)[0]) / leading)
    values = {
        "exact": ("mode", exact),
        "leading": ("mode", [alone(beta=beta, method="leading") for beta in plan.betas]),
        "alone": ("mode", [alone(beta=beta, method="reduced") for beta in plan.betas]),
        "ratio": ("epsilon", ratios),
    }
    return xarray.Dataset(values, {"mode": np.arange(1, len(exact) + 1), "epsilon": list(plan.epsilons)})


def _homotopy(plan: Plan, nodes: int, layers: Sequence[int] | None) -> theory.HomotopyTimes:
    """From modes by themselves to the closure of some layers, or to the exact flow."""
    act = activation("tanh")
    grid = theory.hermite_grid(act, len(plan.betas), plan.grid_nodes)
    field = theory.block_field(act, _DEPTH, plan.betas, plan.block, grid)
    end = theory.Exact(field) if layers is None else theory.LinearClosure(field, tuple(layers))
    state = field.layout.from_scales(plan.scales)
    return theory.homotopy(theory.Decoupled(field), end, state, threshold=_THRESHOLD, nodes=nodes)


def _ordering(plan: Plan) -> xarray.Dataset:
    """Two modes, the second weaker but with scales of another critical depth: who is first, by law and in fact?"""
    shape = (len(plan.strengths), len(plan.depths))
    law, aligned = np.empty(shape), np.empty((*shape, 2))
    for row, beta in enumerate(track(plan.strengths, "order of two modes")):
        for column, depth in enumerate(plan.depths):
            rhos = (plan.epsilon, theory.critical_scale(depth, plan.epsilon, _DEPTH))
            table = theory.mode_times("tanh", (1.0, beta), rhos, depth=_DEPTH, block_width=plan.block)
            law[row, column] = float(table["rate"][1] / table["rate"][0])
            aligned[row, column] = theory.block_escape(
                "tanh",
                np.tile(rhos, (_DEPTH, 1)),
                (1.0, beta),
                plan.block,
                threshold=_GRID_THRESHOLD / np.sqrt(2),
                observable="alignment",
                until=_GRID_UNTIL,
            )
    late = np.where(np.isnan(aligned), _GRID_UNTIL, aligned)
    return xarray.Dataset(
        {
            "rate_ratio": (("strength", "critical_depth"), law),
            "time_ratio": (("strength", "critical_depth"), late[..., 0] / late[..., 1]),
        },
        coords={"strength": list(plan.strengths), "critical_depth": list(plan.depths)},
    )


def network_rows(data: xarray.Dataset) -> list[Row]:
    """The whole network on the block flow."""
    bound, rows = float(student.ppf(0.995, data.samples - 1)), []
    note = f"Mean over {data.samples} samples of {data.points} points; |z| may be {bound:.1f} for so few."
    for mode in data.mode.values[np.isfinite(data["network_escape"].values)].tolist():
        own, title = data.sel(mode=mode), f"mode {mode}: escape, block flow and whole network"
        rows.append(measured_row(title, own.exact, own.network_escape, own.network_error, bound, note))
    far = np.abs(data["network_loss"].values - data["loss"].values)
    worst, slope = int(np.argmax(far)), np.gradient(data["loss"].values, data.time.values)
    when, shift = float(data.time[worst]), float(far[worst]) / abs(slope[worst])
    note = f"In the fall at s = {when:.5g}; a shift in time of {shift:.2g} makes that much."
    share = float(far[worst]) / float(data["loss"][0])
    return [*rows, Row("largest distance of the losses over the first loss", 0.0, share, note=note)]


def _mode_rows(data: xarray.Dataset, sizes: Descent) -> list[Row]:
    """Stochastic descent, every mode by itself against all together, and the limit of small scales."""
    title = "first mode's escape, block flow and whole networks"
    note = (
        f"Batch {sizes.batch}, {sizes.steps} steps, {sizes.seeds} seeds; to agree within three standard errors "
        "and 2% for the finite rate."
    )
    title = f"SGD, width {sizes.width}, ε = {sizes.epsilon:g}: {title}"
    rows = [descent_row(title, float(data["descent_exact"]), data["descent_time"].values, note)]
    for mode in data.mode.values.tolist():
        leading, exact, alone = (float(data[name].sel(mode=mode)) for name in ("leading", "exact", "alone"))
        note = f"By itself, without leading order, the mode would take {alone:.5g}."
        rows.append(Row(f"mode {mode}: escape, leading and exact", leading, exact, note=note))
    ratios = ", ".join(f"{float(r):.3f} at {e:g}" for r, e in zip(data["ratio"], data["epsilon"].values))
    note = (
        f"Over ε: {ratios}. The teacher turns the rows of every block towards every v_m, with a drive of the same "
        "order in ε as the growth of the scales; the modes do not decouple, and each helps the first one out."
    )
    last, title = float(data["ratio"][-1]), "mode 1: exact over leading time as ε → 0"
    return [*rows, claim_row(title, 1.0, last, abs(last - 1) < 0.05, note, disputed=True)]


def homotopy_rows(data: xarray.Dataset) -> list[Row]:
    """Closures and the homotopy identity for the first mode."""
    exact, rows = float(data["exact"][0]), []
    notes = (
        "Scales, rotations and off-block entries of layer 2, to first order, coefficients from the exact flow; the "
        "homotopy identity with two nodes, as in the paper, gives",
        "With the off-block entries of layer 3 too, which matter more than those of layer 2; two nodes give",
    )
    for number, note in zip(data.variables_kept.values.tolist(), notes):
        own, title = data.sel(variables_kept=number), f"mode 1: exact and closure of {number} variables"
        note = f"{note} {float(own['closure_predicted']):.5g}."
        rows.append(Row(title, exact, float(own["closure"]), note=note))
    end, kept = data.homotopy_end, data.conservation
    for nodes in data.nodes.values.tolist():
        time = float(data["predicted"].sel(nodes=nodes))
        agrees = abs(time / end - 1) < 1e-6 if nodes == int(data.nodes[-1]) else None
        note = "From modes by themselves to the exact block flow, on a coarser Gaussian rule."
        title = f"mode 1: T(1) and homotopy identity, {nodes} nodes"
        rows.append(claim_row(title, end, time, agrees, note if nodes == 2 else ""))
    return [*rows, claim_row("largest |p · f - 1| along the adjoint", "< 1e-06", kept, kept < 1e-6)]


def _draw(data: xarray.Dataset) -> Figure:
    """Losses, alignments, rotations; times of the first mode, shares of the homotopy, the order of two modes."""
    betas = ", ".join(f"{beta:g}" for beta in data.betas)
    title = f"Several modes escape together: tanh, depth 4, width {data.width}, β = {betas}, ε = {data.start_scale:g}"
    figure = Figure(title, columns=3, size=(16, 9))
    panel = figure.panel("Training loss of the gradient flow", "time s", log("loss"))
    panel.curve(data.time, data.loss, "-", "block flow", INK)
    panel.curve(data.time, data.network_loss, "o", "whole network", BLUE, size=4, hollow=True)
    for name, color, words in (("exact", INK, "exact"), ("leading", RED, "leading order")):
        panel.level(
            x=float(data[name][0]), label=f"mode 1 escapes, {words}", color=color, dash=":", width=1.6
        )
    title = "Alignment (dots: whole network, lines: block flow)"
    aligned = figure.panel(title, "time s", r"$\|W_1 v_k\| / \sqrt{N}$")
    title = "Every block turns towards the strong mode first"
    turned = figure.panel(title, "time s", r"rows of $W_1$ along $v_k$ (colours as left)")
    for mode, color in zip(data.mode.values.tolist(), PALETTE):
        own = data.sel(mode=mode)
        aligned.curve(data.time, own.alignment, color=color)
        aligned.curve(data.time, own.network_alignment, "o", f"mode {mode}", color, size=4, hollow=True)
        for block, style in zip(data.block.values.tolist(), ("-", "--", ":")):
            turned.curve(data.time, own.A.sel(inner_layer=1, block=block), style, "", color)
    for block, style in zip(data.block.values.tolist(), ("-", "--", ":")):
        turned.legend_entry(style, f"block {block}")
    _draw_times(figure, data)
    # Colour: who is first in the exact flow; words in the cell: whether the law says so too.
    ratio, law = np.log10(data.time_ratio.values), data.rate_ratio.values > 1
    reach = min(1.5, float(np.abs(ratio).max()))
    depths, strengths = ([f"{each:g}" for each in data[dim].values] for dim in ("critical_depth", "strength"))
    x = names_axis(depths, "critical depth of mode 2 (mode 1: 4)")
    y = names_axis(strengths, r"strength $\beta_2$ ($\beta_1 = 1$)")
    right = np.where(law == (ratio > 0), "right", "WRONG")
    texts = [[f"law: {2 if second else 1}\n{word}" for second, word in zip(*row)] for row in zip(law, right)]
    label = r"log$_{10}$ time of mode 1 / mode 2 (blue: 1 first)"
    panel = figure.panel("Which of two modes is first? (law: by Γ)", x, y)
    panel.heat_map(ratio, label=label, diverging=True, low=-reach, high=reach, texts=texts)
    return figure


def _draw_times(figure: Figure, data: xarray.Dataset) -> None:
    """By how much the predictions of the first mode's escape are off, and what makes the homotopy's difference."""
    times = {"leading order (11)": data.leading[0], "mode by itself, exact": data.alone[0]}
    times |= {f"closure, {int(each.variables_kept)} variables": each for each in data.closure}
    times |= {f"homotopy, {int(each.nodes)} nodes": each for each in data.predicted}
    times |= {"block flow, exact": data.exact[0], "whole network": data.network_escape[0]}
    values, exact = np.array([float(time) for time in times.values()]), float(data.exact[0])
    reach = np.ptp(values)
    x = Axis("time s", low=values.min() - 0.1 * reach, high=values.max() + 0.2 * reach)
    panel = figure.panel("When the first mode escapes", x, names_axis(list(times), reverse=True))
    panel.level(x=exact, color=INK)
    for place, value in enumerate(values):
        panel.curve([exact, value], [place, place], color=FAINT, width=1.2)
        panel.note(value, place, f"{value:.1f}", above=True, size=8)
    panel.curve(values, np.arange(len(values)), "o", "", BLUE, size=7)
    shares = data.share.isel(nodes=-1)
    least = float(shares.min())
    x = Axis("share of T(1) - T(0), time s", low=1.15 * least, high=0.15 * abs(least))
    panel = figure.panel("Homotopy: what makes the first mode faster", x, Axis(reverse=True))
    texts = [f"{value:+.1f}" for value in shares.values]
    colors = PALETTE[: shares.size]
    panel.bars(shares.channel.values, shares, color=colors, horizontal=True, texts=texts)
    panel.level(x=0, color=INK)
