"""A comparison as a labelled dataset and as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import xarray

    from foretrain.compare.comparison import Comparison

Array = NDArray[np.float64]


def comparison_dataset(found: Comparison) -> xarray.Dataset:
    """Dimensions ``entry``, ``width`` (from narrow to wide), ``batch`` and ``score``."""
    import xarray

    both, one = ("width", "entry"), ("entry",)
    values = np.stack([batch.values for batch in found.batches])
    return xarray.Dataset(
        {
            "theory": (one, found.theory),
            "limit": (one, found.limit),
            "standard_error": (one, found.standard_error),
            "z": (one, found.z),
            "measured": (both, found.measured),
            "measured_error": (both, found.measured_error),
            "corrected": (both, found.corrected),
            "batch_value": (("width", "batch", "entry"), values),
            "independent_score": (("score",), found.independent_scores),
        },
        coords={
            "entry": [f"layer {e.layer} {e.label}" for e in found.entries],
            "observable": (one, [e.observable for e in found.entries]),
            "layer": (one, [e.layer for e in found.entries]),
            "inputs": (one, [" ".join(map(str, e.inputs)) for e in found.entries]),
            "width": [network.hidden_widths[0] for network in found.ladder.networks],
            "scale": (("width",), list(found.ladder.scales)),
            "inverse_width": (("width",), found.ladder.inverse),
            "draws": (("width",), list(found.ladder.draws)),
            "batch": np.arange(found.ladder.batches),
            "score": np.arange(found.independent_scores.size),
        },
        attrs={
            "activation": found.mlp.activation.label,
            "network": repr(found.mlp),
            "method": found.ladder.method,
            "estimator": found.estimator,
            "seed": found.seed,
            "rms_z": found.judgement.rms,
            "largest_z": found.judgement.largest,
            "bound": found.judgement.bound,
            "agrees": int(found.agrees),
            "verdict": found.verdict,
        },
    )


def last_layer_rows(found: Comparison) -> list[tuple[str, float, float, float, float | None]]:
    """Entry, theory, measured limit, standard error and z of the output layer."""
    last = max(entry.layer for entry in found.entries)
    return [
        (e.label, float(theory), float(limit), float(error), None if np.isnan(z) else round(float(z), 2))
        for e, theory, limit, error, z in zip(
            found.entries, found.theory, found.limit, found.standard_error, found.z
        )
        if e.layer == last
    ]


def score_rows(found: Comparison) -> list[tuple[str | float | None, ...]]:
    """For each observable the root mean square of z in each layer; None where nothing fluctuates."""
    rows: list[tuple[str | float | None, ...]] = []
    for name in found.observables:
        cells: list[float | None] = []
        for layer in range(2, found.mlp.depth + 1):
            here = np.array([entry.layer == layer for entry in found.entries])
            z = found.z[here & found.of(name) & found.fluctuates]
            cells.append(round(float(np.sqrt(np.mean(z**2))), 2) if z.size else None)
        rows.append((name, *cells))
    return rows


def own_width_rows(found: Comparison) -> list[tuple[str, float, float, float, float]]:
    """Entry of K or Theta of the last layer at the own width: infinite width, with 1/n, measured, standard error."""
    last = max(entry.layer for entry in found.entries)
    return [
        (
            entry.label,
            float(found.theory[column]),
            float(found.corrected[found.own, column]),
            float(found.measured[found.own, column]),
            float(found.measured_error[found.own, column]),
        )
        for column, entry in enumerate(found.entries)
        if entry.layer == last and np.isfinite(found.corrected[found.own, column])
    ]


def ladder_text(found: Comparison) -> str:
    """Which networks were drawn, and how."""
    how = {
        "weights": "every weight drawn",
        "conditional": "layers drawn from their law given the layer before",
    }[found.ladder.method]
    parts = [
        f"{draws:,} of width {_widths(network.hidden_widths)}"
        for draws, network in zip(found.ladder.draws, found.ladder.networks)
    ]
    return f"networks: {', '.join(parts)} ({how}), extrapolated with a quadratic in 1/n"


def notes(found: Comparison) -> list[str]:
    """What the numbers leave out."""
    kinked = [name for name in ("P", "Q") if name in found.observables and found.mlp.activation.kinks]
    if not kinked:
        return []
    return [
        f"{' and '.join(kinked)} without a second derivative at the kinks of {found.mlp.activation.label}, as "
        "automatic differentiation has it, in theory and in the networks"
    ]


def _widths(hidden: Sequence[int]) -> str:
    return str(hidden[0]) if len(set(hidden)) == 1 else "-".join(map(str, hidden))


def comparison_text(found: Comparison) -> str:
    """Output layer, spread of z by layer, finite width, verdict."""
    last = max(entry.layer for entry in found.entries)
    lines = [
        f"Comparison of {found.mlp.activation.label}, depth {found.mlp.depth}",
        f"  {ladder_text(found)}",
    ]
    lines.append(f"  {f'layer {last}':<14}{'theory':>14}{'limit':>14}{'std. error':>12}{'z':>8}")
    for label, theory, limit, error, z in last_layer_rows(found):
        same = math.isclose(theory, limit, rel_tol=1e-6, abs_tol=1e-9)
        score = f"{z:.2f}" if z is not None else "exact" if same else "differs"
        lines.append(f"  {label:<14}{theory:>14.6g}{limit:>14.6g}{error:>12.2g}{score:>8}")
    header = "".join(f"{f'layer {layer}':>10}" for layer in range(2, found.mlp.depth + 1))
    lines.append(f"  {'rms z':<14}{header}")
    for name, *cells in score_rows(found):
        texts = ("" if cell is None else f"{cell:.2f}" for cell in cells)
        lines.append(f"  {name:<14}" + "".join(f"{text:>10}" for text in texts))
    lines += [f"  {note}" for note in notes(found)]
    for label, leading, corrected, measured, error in own_width_rows(found):
        lines.append(
            f"  {label} at the own width: {leading:.6g} at infinite width, {corrected:.6g} with 1/n, "
            f"measured {measured:.6g} ± {error:.1g}"
        )
    return "\n".join([*lines, f"  {found.verdict}"])
