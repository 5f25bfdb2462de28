"""Several modes escaping together (Rawal & DeWeese, figure 5): tanh, depth 4, width 60, three modes in 16 inputs.

The population gradient flow of the whole network, on the ansatz with all scales at 0.05, against the exact flow of
its block means and against what the paper predicts from: every mode by itself, the closure with rotations and
off-block entries, the homotopy identity. Then the order of two modes by Gamma_k over teacher strengths and critical
depths. Times are matrix times s = learning rate of the first layer × steps; a mode escapes when X_1 in its block is
0.5 (0.4 over the grid of two modes, there with the alignment of all blocks).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import activation
from foretrain.experiments.registry import Result, Scale
from foretrain.experiments.saddle_escape.modes.descent import Descent, descend, descent_row
from foretrain.experiments.saddle_escape.modes.drawing import draw
from foretrain.experiments.saddle_escape.modes.table import (
    homotopy_rows,
    mode_rows,
    network_rows,
    order_rows,
    verdict,
)
from foretrain.saddle import escape_time
from foretrain.saddle.modes import (
    Decoupled,
    Exact,
    HomotopyTimes,
    LinearClosure,
    block_escape,
    block_field,
    block_flow,
    critical_scale,
    hermite_grid,
    homotopy,
    mode_times,
)
from foretrain.support.progress import track
from foretrain.support.seeds import spawn

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

_DEPTH, _INPUTS, _THRESHOLD, _GRID_THRESHOLD = 4, 16, 0.5, 0.4
_GRID_UNTIL = 2e4
_STRENGTHS, _DEPTHS = (0.1, 0.3, 0.6, 0.9), (3.0, 3.25, 3.5, 4.0)


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
    strengths: tuple[float, ...] = _STRENGTHS
    depths: tuple[float, ...] = _DEPTHS
    epsilon: float = 0.05
    descent: Descent = Descent(24, 0.12, 1024, 430, 6)  # noqa: RUF009 - frozen

    @property
    def block(self) -> int:
        """Neurons of each mode."""
        return self.width // len(self.betas)

    @property
    def scales(self) -> Array:
        """X_l of every mode at the start."""
        return np.full((_DEPTH, len(self.betas)), self.epsilon)


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(60, (1.0, 0.3, 0.08), 4096, 4.5, 60, 2, 4, (0.1, 0.05, 0.025), (2, 4, 8, 12), 14),
    Scale.PAPER: Plan(
        60,
        (1.0, 0.3, 0.08),
        16384,
        4.5,
        120,
        2,
        8,
        (0.1, 0.05, 0.025, 0.0125),
        (2, 4, 8, 16),
        24,
        descent=Descent(60, 0.05, 4096, 150_000, 3, every=50),
    ),
}


def saddle_modes(plan: Plan, seed: int) -> Result:
    """Loss, alignments and escape times of three modes, and the order of two, against the predictions."""
    import xarray

    exact = block_escape("tanh", plan.scales, plan.betas, plan.block, threshold=_THRESHOLD, until=1e5).values
    flow = _flow(plan, exact, seed)
    splits, closures = _homotopies(plan), _closures(plan)
    steps = descend(plan.descent, plan.betas, _INPUTS, _DEPTH, _THRESHOLD, seed)
    data = xarray.merge(
        [flow, _escapes(plan, seed), steps, _modes(plan, exact), _limit(plan), _ordering(plan)]
    )
    data = data.assign(
        predicted=("nodes", [plan.block * split.predicted for split in splits]),
        share=(("nodes", "channel"), [[plan.block * v for v in s.shares.values()] for s in splits]),
        closure=("variables_kept", [plan.block * split.end for split in closures.values()]),
        closure_predicted=("variables_kept", [plan.block * s.predicted for s in closures.values()]),
    )
    data = data.assign_coords(
        nodes=list(plan.nodes), channel=list(splits[0].shares), variables_kept=list(closures)
    )
    data = data.assign_attrs(
        homotopy_end=plan.block * splits[-1].end,
        conservation=max(split.conservation for split in splits),
        width=plan.width,
        block_width=plan.block,
        betas=list(plan.betas),
        threshold=_THRESHOLD,
        start_scale=plan.epsilon,
        points=plan.points,
        samples=plan.samples,
    )
    rows = (
        *network_rows(data),
        descent_row(data, plan.descent),
        *mode_rows(data),
        *homotopy_rows(data),
        *order_rows(data),
    )
    return Result(verdict(data), rows, data, partial(draw, data))


def _flow(plan: Plan, exact: Array, seed: int) -> xarray.Dataset:
    """Snapshots of the whole network beside the block flow."""
    from foretrain.training.gradient_flow import (
        Integration,
        Problem,
        ansatz,
        gaussian_sample,
        snapshots,
        trajectory,
    )

    problem = Problem("tanh", depth=_DEPTH, width=plan.width, inputs=_INPUTS, betas=plan.betas)
    sample, rules = gaussian_sample(problem, plan.points, seed), Integration(rtol=1e-6)
    start, times = ansatz(problem, plan.scales), _times(plan, exact[0])
    shots = snapshots(problem, start, times, metric="normalized", sample=sample, integration=rules)
    blocks = block_flow("tanh", plan.scales, plan.betas, plan.block, times)
    first = shots.weights[0][0, :, :, : len(plan.betas)].numpy()
    losses = trajectory(problem, shots, sample=sample)["loss"].isel(network=0).values
    return blocks.assign(
        network_loss=("time", losses),
        network_alignment=(("time", "mode"), np.linalg.norm(first, axis=1) / np.sqrt(plan.width)),
    )


def _escapes(plan: Plan, seed: int) -> xarray.Dataset:
    """Escape times of the whole network's first modes: means over samples of points, with standard errors."""
    import xarray

    from foretrain.training.gradient_flow import (
        Integration,
        Problem,
        amplitude_observable,
        ansatz,
        escape,
        gaussian_sample,
    )

    problem = Problem("tanh", depth=_DEPTH, width=plan.width, inputs=_INPUTS, betas=plan.betas)
    times = np.full((plan.samples, len(plan.betas)), np.nan)
    for place, own in enumerate(track(spawn(seed, plan.samples), "samples of the whole network")):
        for mode in range(plan.followed):
            found = escape(
                problem,
                ansatz(problem, plan.scales),
                thresholds=[_THRESHOLD],
                observable=amplitude_observable(mode),
                metric="normalized",
                sample=gaussian_sample(problem, plan.points, own),
                integration=Integration(rtol=1e-6),
            )
            times[place, mode] = float(found["time"][0, 0])
    error = times.std(axis=0, ddof=1) / np.sqrt(plan.samples)
    return xarray.Dataset({"network_escape": ("mode", times.mean(axis=0)), "network_error": ("mode", error)})


def _times(plan: Plan, escape: float) -> Array:
    """Snapshots, a third of them about the first escape, where everything moves."""
    third = plan.snapshots // 3
    before, during = (
        np.linspace(0, 0.85, third, endpoint=False),
        np.linspace(0.85, 1.2, third, endpoint=False),
    )
    return escape * np.concatenate([before, during, np.linspace(1.2, plan.until, third)])


def _modes(plan: Plan, exact: Array) -> xarray.Dataset:
    """Escape times of every mode: by itself at leading order and exactly, and with the others."""
    import xarray

    alone = {
        method: [
            escape_time(
                "tanh", plan.scales[:, 0], width=plan.block, beta=b, threshold=_THRESHOLD, method=method
            )
            for b in plan.betas
        ]
        for method in ("leading", "reduced")
    }
    return xarray.Dataset(
        {
            "exact": ("mode", exact),
            "leading": ("mode", alone["leading"]),
            "alone": ("mode", alone["reduced"]),
        },
        coords={"mode": np.arange(1, len(exact) + 1)},
    )


def _limit(plan: Plan) -> xarray.Dataset:
    """The first mode's exact time over the leading one, for smaller and smaller scales."""
    import xarray

    ratios = []
    for epsilon in track(plan.epsilons, "smaller scales"):
        X = np.full_like(plan.scales, epsilon)
        leading = escape_time("tanh", X[:, 0], width=plan.block, beta=plan.betas[0], threshold=_THRESHOLD)
        found = block_escape("tanh", X, plan.betas, plan.block, threshold=_THRESHOLD, until=1.2 * leading)
        ratios.append(float(found[0]) / leading)
    return xarray.Dataset({"ratio": ("epsilon", ratios)}, coords={"epsilon": list(plan.epsilons)})


def _closures(plan: Plan) -> dict[int, HomotopyTimes]:
    """By number of variables: the paper's closure, and the one with the off-block entries of every layer."""
    modes = len(plan.betas)
    choices = [(1, 2), tuple(range(1, _DEPTH))]
    return {modes * (_DEPTH + len(layers) * (modes - 1)): _homotopy(plan, 2, layers) for layers in choices}


def _homotopies(plan: Plan) -> list[HomotopyTimes]:
    return [_homotopy(plan, nodes, None) for nodes in plan.nodes]


def _homotopy(plan: Plan, nodes: int, layers: Sequence[int] | None) -> HomotopyTimes:
    """From modes by themselves to the closure of some layers, or to the exact flow."""
    act = activation("tanh")
    grid = hermite_grid(act, len(plan.betas), plan.grid_nodes)
    field = block_field(act, _DEPTH, plan.betas, plan.block, grid)
    end = Exact(field) if layers is None else LinearClosure(field, tuple(layers))
    state = field.layout.from_scales(plan.scales)
    return homotopy(Decoupled(field), end, state, threshold=_THRESHOLD, nodes=nodes)


def _ordering(plan: Plan) -> xarray.Dataset:
    """Two modes, the second weaker but with scales of another critical depth: who is first, by law and in fact?"""
    import xarray

    shape = (len(plan.strengths), len(plan.depths))
    law, aligned = np.empty(shape), np.empty((*shape, 2))
    for row, beta in enumerate(track(plan.strengths, "order of two modes")):
        for column, depth in enumerate(plan.depths):
            rhos = (plan.epsilon, critical_scale(depth, plan.epsilon, _DEPTH))
            table = mode_times("tanh", (1.0, beta), rhos, depth=_DEPTH, block_width=plan.block)
            law[row, column] = float(table["rate"][1] / table["rate"][0])
            aligned[row, column] = block_escape(
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
