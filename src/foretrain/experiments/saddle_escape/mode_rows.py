"""The table of several modes escaping together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import xarray
from scipy.stats import t as student

from foretrain.experiments.judgements import claim_row, measured_row
from foretrain.experiments.registry import Row

if TYPE_CHECKING:
    from foretrain.experiments.saddle_escape.modes import Descent

_ALLOWED = 0.02  # relative: the finite rate and the noise of the batches, beyond three standard errors
_CONFIDENCE = 0.995  # one-sided, of Student's law for the few samples


def rows(data: xarray.Dataset, descent: Descent) -> tuple[Row, ...]:
    """All of them."""
    above = (*network_rows(data), _descent_row(data, descent), *_mode_rows(data))
    return (*above, *homotopy_rows(data), *_order_rows(data))


def network_rows(data: xarray.Dataset) -> list[Row]:
    """The whole network on the block flow."""
    bound, rows = float(student.ppf(_CONFIDENCE, data.samples - 1)), []
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


def _descent_row(data: xarray.Dataset, sizes: Descent) -> Row:
    """Mean over seeds of stochastic descent beside the block flow."""
    times, exact = data["descent_time"].values, float(data["descent_exact"])
    mean, error = float(times.mean()), float(times.std(ddof=1) / np.sqrt(len(times)))
    title = "first mode's escape, block flow and whole networks"
    note = (
        f"Batch {sizes.batch}, {sizes.steps} steps, {len(times)} seeds; to agree within three standard errors "
        f"and {_ALLOWED:.0%} for the finite rate."
    )
    agrees = bool(abs(mean - exact) <= 3 * error + _ALLOWED * exact)
    return Row(f"SGD, width {sizes.width}, ε = {sizes.epsilon:g}: {title}", exact, mean, error, agrees, note)


def _mode_rows(data: xarray.Dataset) -> list[Row]:
    """Every mode by itself against all together, and the limit of small scales."""
    rows = []
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


def _order_rows(data: xarray.Dataset) -> list[Row]:
    """Which of two modes is first."""
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
    return [first, claim_row(title, "yes", "yes" if places else "no", bool(places), note)]


def verdict(data: xarray.Dataset) -> str:
    """One sentence."""
    exact, leading, alone = (float(data[name][0]) for name in ("exact", "leading", "alone"))
    network = float(data["network_escape"][0])
    right = int(((data["rate_ratio"] > 1) == (data["time_ratio"] > 1)).sum())
    return (
        f"The whole network's first mode escapes at {network:.5g}, the block flow's at {exact:.5g}; by itself it "
        f"would at {leading:.5g} by leading order and {alone:.5g} exactly; the homotopy identity gives "
        f"{float(data['predicted'][-1]):.5g}; Γ_k orders {right} of {data['rate_ratio'].size} pairs of modes rightly."
    )
