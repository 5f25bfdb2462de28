"""Several modes escaping together (Rawal & DeWeese, figure 5): tanh, depth 4, width 60, three modes in 16 inputs.

The population gradient flow of the whole network, on the ansatz with all scales at 0.05, against the exact flow of
its block means and against what the paper predicts from: every mode by itself, the closure with rotations and
off-block entries, the homotopy identity. Then the order of two modes by Gamma_k over teacher strengths and critical
depths. Times are matrix times s = learning rate of the first layer × steps; a mode escapes when X_1 in its block is
0.5 (0.4 over the grid of two modes, there with the alignment of all blocks).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import activation
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.experiments.saddle_modes_drawing import draw
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

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

_DEPTH, _INPUTS, _THRESHOLD, _GRID_THRESHOLD = 4, 16, 0.5, 0.4
_NETWORK_ERROR = 5e-3  # three times the spread of the second mode over samples of 4096 points
_GRID_UNTIL = 2e4
_STRENGTHS, _DEPTHS = (0.1, 0.3, 0.6, 0.9), (3.0, 3.25, 3.5, 4.0)


@dataclass(frozen=True)
class Sizes:
    """The network, the points of its sample, and how far the flow and the series go."""

    width: int
    betas: tuple[float, ...]
    points: int
    until: float  # of the snapshots, in units of the first mode's escape
    snapshots: int
    followed: int  # modes whose escape the whole network is followed to
    epsilons: tuple[float, ...]
    nodes: tuple[int, ...]  # of the homotopy
    grid_nodes: int  # of the Gaussian averages inside the homotopy
    strengths: tuple[float, ...] = _STRENGTHS
    depths: tuple[float, ...] = _DEPTHS
    epsilon: float = 0.05

    @property
    def block(self) -> int:
        """Neurons of each mode."""
        return self.width // len(self.betas)

    @property
    def scales(self) -> Array:
        """X_l of every mode at the start."""
        return np.full((_DEPTH, len(self.betas)), self.epsilon)


_SIZES = {
    Scale.QUICK: Sizes(60, (1.0, 0.3, 0.08), 4096, 4.5, 60, 2, (0.1, 0.05, 0.025), (2, 4, 8), 14),
    Scale.PAPER: Sizes(
        60, (1.0, 0.3, 0.08), 16384, 4.5, 120, 2, (0.1, 0.05, 0.025, 0.0125), (2, 4, 8, 16), 24
    ),
}


def saddle_modes(scale: Scale, seed: int) -> Result:
    """Loss, alignments and escape times of three modes, and the order of two, against the predictions."""
    return run(_SIZES[scale], seed)


def run(sizes: Sizes, seed: int) -> Result:
    """The experiment at any size."""
    import xarray

    exact = block_escape(
        "tanh", sizes.scales, sizes.betas, sizes.block, threshold=_THRESHOLD, until=1e5
    ).values
    flow = _flow(sizes, exact, seed)
    splits, closures = _homotopies(sizes), _closures(sizes)
    data = xarray.merge([flow, _modes(sizes, exact), _limit(sizes), _ordering(sizes)])
    data = data.assign(
        predicted=("nodes", [sizes.block * split.predicted for split in splits]),
        share=(("nodes", "channel"), [[sizes.block * v for v in s.shares.values()] for s in splits]),
        closure=("variables_kept", [sizes.block * split.end for split in closures.values()]),
        closure_predicted=("variables_kept", [sizes.block * s.predicted for s in closures.values()]),
    )
    data = data.assign_coords(
        nodes=list(sizes.nodes), channel=list(splits[0].shares), variables_kept=list(closures)
    )
    data = data.assign_attrs(
        homotopy_end=sizes.block * splits[-1].end,
        conservation=max(split.conservation for split in splits),
        width=sizes.width,
        block_width=sizes.block,
        betas=list(sizes.betas),
        threshold=_THRESHOLD,
        start_scale=sizes.epsilon,
        points=sizes.points,
    )
    rows = (*_network_rows(data), *_mode_rows(data), *_homotopy_rows(data), *_order_rows(data))
    return Result(_verdict(data), rows, data, partial(draw, data))


def _flow(sizes: Sizes, exact: Array, seed: int) -> xarray.Dataset:
    """The whole network beside the block flow: snapshots, and the escapes of the first modes."""
    from foretrain.training.gradient_flow import (
        Integration,
        Problem,
        amplitude_observable,
        ansatz,
        escape,
        gaussian_sample,
        snapshots,
        trajectory,
    )

    problem = Problem("tanh", depth=_DEPTH, width=sizes.width, inputs=_INPUTS, betas=sizes.betas)
    sample, rules = gaussian_sample(problem, sizes.points, seed), Integration(rtol=1e-6)
    start, times = ansatz(problem, sizes.scales), _times(sizes, exact[0])
    shots = snapshots(problem, start, times, metric="normalized", sample=sample, integration=rules)
    escapes = np.full(len(sizes.betas), np.nan)
    for mode in track(range(sizes.followed), "modes of the whole network"):
        found = escape(
            problem,
            start,
            thresholds=[_THRESHOLD],
            observable=amplitude_observable(mode),
            metric="normalized",
            sample=sample,
            integration=rules,
        )
        escapes[mode] = float(found["time"][0, 0])
    blocks = block_flow("tanh", sizes.scales, sizes.betas, sizes.block, times)
    first = shots.weights[0][0, :, :, : len(sizes.betas)].numpy()
    losses = trajectory(problem, shots, sample=sample)["loss"].isel(network=0).values
    return blocks.assign(
        network_loss=("time", losses),
        network_alignment=(("time", "mode"), np.linalg.norm(first, axis=1) / np.sqrt(sizes.width)),
        network_escape=("mode", escapes),
    )


def _times(sizes: Sizes, escape: float) -> Array:
    """Snapshots, a third of them about the first escape, where everything moves."""
    third = sizes.snapshots // 3
    before, during = (
        np.linspace(0, 0.85, third, endpoint=False),
        np.linspace(0.85, 1.2, third, endpoint=False),
    )
    return escape * np.concatenate([before, during, np.linspace(1.2, sizes.until, third)])


def _modes(sizes: Sizes, exact: Array) -> xarray.Dataset:
    """Escape times of every mode: by itself at leading order and exactly, and with the others."""
    import xarray

    alone = {
        method: [
            escape_time(
                "tanh", sizes.scales[:, 0], width=sizes.block, beta=b, threshold=_THRESHOLD, method=method
            )
            for b in sizes.betas
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


def _limit(sizes: Sizes) -> xarray.Dataset:
    """The first mode's exact time over the leading one, for smaller and smaller scales."""
    import xarray

    ratios = []
    for epsilon in track(sizes.epsilons, "smaller scales"):
        X = np.full_like(sizes.scales, epsilon)
        leading = escape_time("tanh", X[:, 0], width=sizes.block, beta=sizes.betas[0], threshold=_THRESHOLD)
        found = block_escape("tanh", X, sizes.betas, sizes.block, threshold=_THRESHOLD, until=1.2 * leading)
        ratios.append(float(found[0]) / leading)
    return xarray.Dataset({"ratio": ("epsilon", ratios)}, coords={"epsilon": list(sizes.epsilons)})


def _closures(sizes: Sizes) -> dict[int, HomotopyTimes]:
    """By number of variables: the paper's closure, and the one with the off-block entries of every layer."""
    modes = len(sizes.betas)
    choices = [(1, 2), tuple(range(1, _DEPTH))]
    return {modes * (_DEPTH + len(layers) * (modes - 1)): _homotopy(sizes, 2, layers) for layers in choices}


def _homotopies(sizes: Sizes) -> list[HomotopyTimes]:
    return [_homotopy(sizes, nodes, None) for nodes in sizes.nodes]


def _homotopy(sizes: Sizes, nodes: int, layers: Sequence[int] | None) -> HomotopyTimes:
    """From modes by themselves to the closure of some layers, or to the exact flow."""
    act = activation("tanh")
    grid = hermite_grid(act, len(sizes.betas), sizes.grid_nodes)
    field = block_field(act, _DEPTH, sizes.betas, sizes.block, grid)
    end = Exact(field) if layers is None else LinearClosure(field, tuple(layers))
    state = field.layout.from_scales(sizes.scales)
    return homotopy(Decoupled(field), end, state, threshold=_THRESHOLD, nodes=nodes)


def _ordering(sizes: Sizes) -> xarray.Dataset:
    """Two modes, the second weaker but with scales of another critical depth: who is first, by law and in fact?"""
    import xarray

    shape = (len(sizes.strengths), len(sizes.depths))
    law, aligned = np.empty(shape), np.empty((*shape, 2))
    for row, beta in enumerate(track(sizes.strengths, "order of two modes")):
        for column, depth in enumerate(sizes.depths):
            rhos = (sizes.epsilon, critical_scale(depth, sizes.epsilon, _DEPTH))
            table = mode_times("tanh", (1.0, beta), rhos, depth=_DEPTH, block_width=sizes.block)
            law[row, column] = float(table["rate"][1] / table["rate"][0])
            aligned[row, column] = block_escape(
                "tanh",
                np.tile(rhos, (_DEPTH, 1)),
                (1.0, beta),
                sizes.block,
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
        coords={"strength": list(sizes.strengths), "critical_depth": list(sizes.depths)},
    )


def _network_rows(data: xarray.Dataset) -> list[Row]:
    rows = []
    for mode in data.mode.values[np.isfinite(data["network_escape"].values)].tolist():
        expected, here = (float(data[name].sel(mode=mode)) for name in ("exact", "network_escape"))
        agrees = abs(here / expected - 1) < _NETWORK_ERROR
        note = f"What is left is the average over {data.points} points in {_INPUTS} dimensions."
        rows.append(
            Row(f"mode {mode}: escape, block flow and whole network", expected, here, None, agrees, note)
        )
    far = float(np.abs(data["network_loss"] - data["loss"]).max() / data["loss"][0])
    rows.append(
        Row(
            "largest distance of the losses, of the start",
            f"< {_NETWORK_ERROR:g}",
            far,
            None,
            far < _NETWORK_ERROR,
        )
    )
    return rows


def _mode_rows(data: xarray.Dataset) -> list[Row]:
    rows = []
    for mode in data.mode.values.tolist():
        own = data.sel(mode=mode)
        note = f"By itself, without leading order, the mode would take {float(own['alone']):.5g}."
        rows.append(
            Row(
                f"mode {mode}: escape, leading and exact",
                float(own["leading"]),
                float(own["exact"]),
                note=note,
            )
        )
    ratios = ", ".join(f"{float(r):.3f} at {e:g}" for r, e in zip(data["ratio"], data["epsilon"].values))
    last = float(data["ratio"][-1])
    note = (
        f"Over ε: {ratios}. The teacher turns the rows of every block towards every v_m, with a drive of the same "
        "order in ε as the growth of the scales; the modes do not decouple, and each helps the first one out."
    )
    rows.append(Row("mode 1: exact over leading time as ε → 0", 1.0, last, None, abs(last - 1) < 0.05, note))
    return rows


def _homotopy_rows(data: xarray.Dataset) -> list[Row]:
    exact, rows = float(data["exact"][0]), []
    notes = (
        "Scales, rotations and off-block entries of layer 2, to first order, coefficients from the exact flow; the "
        "homotopy identity with two nodes, as in the paper, gives",
        "With the off-block entries of layer 3 too, which matter more than those of layer 2; two nodes give",
    )
    for number, note in zip(data.variables_kept.values.tolist(), notes):
        own = data.sel(variables_kept=number)
        told = f"{note} {float(own['closure_predicted']):.5g}."
        rows.append(
            Row(f"mode 1: exact and closure of {number} variables", exact, float(own["closure"]), note=told)
        )
    end = data.homotopy_end
    for nodes in data.nodes.values.tolist():
        found = float(data["predicted"].sel(nodes=nodes))
        last = nodes == int(data.nodes[-1])
        agrees = bool(abs(found / end - 1) < 1e-4) if last else None
        note = (
            "From modes by themselves to the exact block flow, on a coarser Gaussian rule."
            if nodes == 2
            else ""
        )
        rows.append(Row(f"mode 1: T(1) and homotopy identity, {nodes} nodes", end, found, None, agrees, note))
    kept = data.conservation
    rows.append(Row("largest |p · f - 1| along the adjoint", "< 1e-06", kept, None, kept < 1e-6))
    return rows


def _order_rows(data: xarray.Dataset) -> list[Row]:
    law, fact = data["rate_ratio"] > 1, data["time_ratio"] > 1
    right, total = int((law == fact).sum()), law.size
    both = law & fact
    note = (
        "Where it fails, a block with larger scales learns the stronger mode instead of its own: its rows turn to "
        "v_1 before they grow along v_2."
    )
    first = Row(
        "pairs of modes that Γ_k orders rightly",
        f"{total} of {total}",
        f"{right} of {total}",
        None,
        right == total,
        note,
    )
    found = np.argwhere(both.values)
    if not len(found):
        return [first, Row("a weaker mode with larger scales goes first", "yes", "no", None, False)]
    place = [(float(data.strength[i]), float(data.critical_depth[j])) for i, j in found]
    told = ", ".join(f"β = {beta:g}, r = {depth:g}" for beta, depth in place)
    return [
        first,
        Row("a weaker mode with larger scales goes first", "yes", "yes", None, True, f"At {told}."),
    ]


def _verdict(data: xarray.Dataset) -> str:
    exact, leading, alone = (float(data[name][0]) for name in ("exact", "leading", "alone"))
    network = float(data["network_escape"][0])
    right = int(((data["rate_ratio"] > 1) == (data["time_ratio"] > 1)).sum())
    return (
        f"The whole network's first mode escapes at {network:.5g}, the block flow's at {exact:.5g}; by itself it "
        f"would at {leading:.5g} by leading order and {alone:.5g} exactly; the homotopy identity gives "
        f"{float(data['predicted'][-1]):.5g}; Γ_k orders {right} of {data['rate_ratio'].size} pairs of modes rightly."
    )
