"""A comparison with trained networks as a labelled dataset and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from foretrain.compare.presentation import comparison_dataset, ladder_text, last_layer_rows
from foretrain.compare.trained.columns import TrainedEntry

if TYPE_CHECKING:
    import xarray

    from foretrain.compare.trained.comparison import TrainedComparison

_SHOWN = 12
_NO_OUTPUT = -1


def trained_dataset(found: TrainedComparison) -> xarray.Dataset:
    """What every comparison holds, with data, prediction, deviations times n, their sizes and powers of n."""
    base = comparison_dataset(found).drop_vars(["corrected", "layer"])
    goal, names = found.goal, found.observables
    sizes, powers = [found.sizes(name) for name in names], [found.power(name) for name in names]
    entries = [cast("TrainedEntry", entry) for entry in found.entries]
    by_size = ("kind", "width")
    added = {
        "x_train": (("train", "feature"), goal.X_train),
        "y_train": (("train", "output"), goal.training.targets),
        "x_test": (("test", "feature"), goal.X_test),
        "predicted_mean": (("test", "output"), goal.law.mean),
        "predicted_covariance": (("test", "test_2"), goal.law.covariance),
        "scaled_deviation": (("width", "entry"), found.scaled_deviation),
        "scaled_deviation_error": (("width", "entry"), found.scaled_deviation_error),
        "size": (by_size, np.stack([each.root for each in sizes])),
        "size_error": (by_size, np.stack([each.root_error for each in sizes])),
        "power": (("kind",), [np.nan if power is None else power.value for power in powers]),
        "power_error": (("kind",), [np.nan if power is None else power.standard_error for power in powers]),
        "steps": (("width",), found.steps),
    }
    labels = {
        "kind": names,
        "entry": [entry.label for entry in entries],
        "output_of_entry": (
            ("entry",),
            [_NO_OUTPUT if entry.output is None else entry.output for entry in entries],
        ),
    }
    training = goal.training
    attributes = {
        "learner": found.learner,
        "algorithm": training.algorithm,
        "loss": training.loss,
        "eta": training.eta,
        "noise": training.noise,
        "prediction": goal.law.statement,
    }
    return base.assign_coords(labels).assign(added).assign_attrs(attributes)


def size_rows(found: TrainedComparison) -> list[tuple[str | int | float, ...]]:
    """For each width: networks, steps, and n times the size of the deviation of each observable with its error."""
    rows = []
    sizes = [found.sizes(name) for name in found.observables]
    for place, width in enumerate(found.widths.tolist()):
        cells = [_with_error(width * s.root[place], width * s.root_error[place]) for s in sizes]
        rows.append((width, found.ladder.draws[place], round(float(found.steps[place])), *cells))
    return rows


def _with_error(value: float, error: float) -> str:
    return f"{value:.3g} ± {error:.1g}" if value > 0 else f"0 ± {error:.1g}"


def power_text(found: TrainedComparison) -> str:
    """With which power of n deviations fall."""
    powers = {name: found.power(name) for name in found.observables}
    seen = [f"{name} n^({power})" for name, power in powers.items() if power is not None]
    hidden = [name for name, power in powers.items() if power is None]
    parts = [f"deviations at finite width fall as: {', '.join(seen)} (-1 is expected)"] if seen else []
    parts += [f"deviations of {', '.join(hidden)} are hidden by noise"] if hidden else []
    return "; ".join(parts)


def trained_text(found: TrainedComparison) -> str:
    """Sizes by width, the first entries, powers, verdict."""
    goal = found.goal
    lines = [
        f"Trained {found.mlp.activation.label} networks, depth {found.mlp.depth}, on {len(goal.X_train)} inputs "
        f"{goal.law.statement}",
        f"  {ladder_text(found)}",
        f"  {'width':>6}{'networks':>10}{'steps':>8}"
        + "".join(f"{f'n x {name}':>18}" for name in found.observables)
        + "   (root mean square deviation)",
    ]
    for width, networks, steps, *cells in size_rows(found):
        lines.append(f"  {width:>6}{networks:>10}{steps:>8}" + "".join(f"{cell:>18}" for cell in cells))
    rows = last_layer_rows(found)
    lines.append(f"  {'':<26}{'theory':>12}{'limit':>12}{'std. error':>12}{'z':>8}")
    for label, theory, limit, error, z in rows[:_SHOWN]:
        score = "exact" if z is None else f"{z:.2f}"
        lines.append(f"  {label:<26}{theory:>12.5g}{limit:>12.5g}{error:>12.2g}{score:>8}")
    if len(rows) > _SHOWN:
        lines.append(f"  … {len(rows) - _SHOWN} more in .rows()")
    return "\n".join([*lines, f"  {power_text(found)}", f"  {found.verdict}"])
