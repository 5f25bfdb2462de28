"""A comparison of the order 1/n as a labelled dataset and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.compare.presentation import comparison_dataset, ladder_text

if TYPE_CHECKING:
    import xarray

    from foretrain.compare.trained.finite.comparison import FiniteComparison

_SHOWN = 16


def finite_dataset(found: FiniteComparison) -> xarray.Dataset:
    """What every comparison holds, with z-scores at each width, and n times the terms of the prediction."""
    base = comparison_dataset(found).drop_vars(["corrected", "layer"])
    outputs = [" ".join(map(str, getattr(entry, "outputs", ()))) for entry in found.entries]
    added: dict[str, Any] = {
        "score": (("width", "entry"), found.scores),
        "steps": (("width",), found.steps),
        "infinite_mean": (("test", "output"), found.goal.prediction.infinite_mean.values),
        **{f"term_{name}": (("test", "output"), term) for name, term in scaled_terms(found).items()},
    }
    labels = {"entry": [entry.label for entry in found.entries], "outputs": (("entry",), outputs)}
    attributes = {"learner": found.learner, "statement": found.goal.statement}
    whole = base.rename({"score": "direction"}).assign_coords(labels)
    return whole.assign_coords(width=found.widths).assign(added).assign_attrs(attributes)


def scaled_terms(found: FiniteComparison) -> dict[str, Any]:
    """n times the terms of the mean."""
    prediction, n = found.goal.prediction, found.widths[-1]
    return {name: n * np.asarray(term.values) for name, term in prediction.terms.items()}


def finite_text(found: FiniteComparison) -> str:
    """Entries at each width and in the limit, beside the theory; verdict."""
    lines = [
        f"{found.mlp.activation.label} {found.goal.statement}, depth {found.mlp.depth}: n times what finite width "
        "changes, beside theory",
        f"  {ladder_text(found)}",
        f"  {'':<34}{'theory':>10}"
        + "".join(f"{f'n = {width}':>16}" for width in found.widths)
        + f"{'limit':>17}{'z':>8}",
    ]
    columns = (found.entries, found.theory, found.measured.T, found.measured_error.T)
    ends = (found.limit, found.standard_error, found.z)
    for entry, theory, values, errors, limit, error, z in [*zip(*columns, *ends, strict=True)][:_SHOWN]:
        cells = "".join(f"{_told(value, own):>16}" for value, own in zip(values, errors))
        score = "exact" if np.isnan(z) else f"{z:.2f}"
        lines.append(f"  {entry.label:<34}{theory:>10.4g}{cells}{_told(limit, error):>17}{score:>8}")
    if len(found.entries) > _SHOWN:
        lines.append(f"  … {len(found.entries) - _SHOWN} more in .rows()")
    return "\n".join([*lines, f"  {found.verdict}"])


def _told(value: float, error: float) -> str:
    return f"{value:.4g} ± {error:.1g}"
