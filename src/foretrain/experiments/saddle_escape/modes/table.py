"""The table of several modes escaping together."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from scipy.stats import t as student

from foretrain.experiments.registry import Row

if TYPE_CHECKING:
    import xarray

_CONFIDENCE = 0.995  # one-sided, of Student's law for the few samples


def network_rows(data: xarray.Dataset) -> list[Row]:
    """The whole network on the block flow."""
    bound, rows = float(student.ppf(_CONFIDENCE, data.samples - 1)), []
    for mode in data.mode.values[np.isfinite(data["network_escape"].values)].tolist():
        own = data.sel(mode=mode)
        expected, here, error = (float(own[name]) for name in ("exact", "network_escape", "network_error"))
        note = f"Mean over {data.samples} samples of {data.points} points; |z| may be {bound:.1f} for so few."
        agrees = abs(here - expected) < bound * error
        rows.append(
            Row(f"mode {mode}: escape, block flow and whole network", expected, here, error, agrees, note)
        )
    far = np.abs(data["network_loss"].values - data["loss"].values)
    worst, slope = int(np.argmax(far)), np.gradient(data["loss"].values, data.time.values)
    shift = float(far[worst]) / abs(slope[worst])
    note = (
        f"In the fall at s = {float(data.time[worst]):.5g}; a shift in time of {shift:.2g} makes that much."
    )
    share = float(far[worst]) / float(data["loss"][0])
    rows.append(Row("largest distance of the losses over the first loss", 0.0, share, note=note))
    return rows


def mode_rows(data: xarray.Dataset) -> list[Row]:
    """Every mode by itself against all together, and the limit of small scales."""
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
    title, agrees = "mode 1: exact over leading time as ε → 0", abs(last - 1) < 0.05
    rows.append(Row(title, 1.0, last, None, agrees, note, disputed=True))
    return rows


def homotopy_rows(data: xarray.Dataset) -> list[Row]:
    """Closures and the homotopy identity for the first mode."""
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
        agrees = bool(abs(found / end - 1) < 1e-6) if last else None
        note = (
            "From modes by themselves to the exact block flow, on a coarser Gaussian rule."
            if nodes == 2
            else ""
        )
        rows.append(Row(f"mode 1: T(1) and homotopy identity, {nodes} nodes", end, found, None, agrees, note))
    kept = data.conservation
    rows.append(Row("largest |p · f - 1| along the adjoint", "< 1e-06", kept, None, kept < 1e-6))
    return rows


def order_rows(data: xarray.Dataset) -> list[Row]:
    """Which of two modes is first."""
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
        disputed=True,
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
