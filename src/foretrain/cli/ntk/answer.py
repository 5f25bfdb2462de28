"""What ``foretrain ntk`` tells of a kernel: for people, for machines, and as labelled data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.support.answers import Table
from foretrain.support.memory import human_bytes

if TYPE_CHECKING:
    import xarray

    from foretrain.cli.ntk.work import Found
    from foretrain.empirical.kernel_analysis import KernelRegression
    from foretrain.empirical.kernel_analysis.summary import KernelSummary

_MOST_LAYERS = 24  # in the table; the picture and --json have all


def text(
    summary: KernelSummary,
    kernel: Found,
    fit: KernelRegression | None,
    error: float | None,
    misfit: str | None,
) -> list[str | Table]:
    """The summary in words and tables."""
    rank = summary.entropy_rank
    plus = f" ± {rank.standard_error:.2g}" if rank.standard_error > 0 else ""
    form = "summed over" if summary.traced else "of"
    parts: list[str | Table] = [
        f"Tangent kernel of {summary.samples} samples, {form} {len(summary.outputs)} outputs: {summary.size} x "
        f"{summary.size} in {summary.dtype}, {human_bytes(summary.bytes)}.\nParameters: {_ways(kernel)}.",
        f"Trace {summary.trace:.6g}. Effective rank {summary.effective_rank:.4g} (trace² / sum of squares), "
        f"entropy rank {rank.value:.4g}{plus}.",
        _mode_table(summary),
    ]
    if summary.layer_shares:
        parts.append(_layer_table(summary))
    above = summary.density.counts([summary.density.resolution, np.inf])
    parts.append(
        f"Eigenvalues above {summary.density.resolution:.3g}: {above.value[0]:.4g}"
        + (f" ± {above.standard_error[0]:.2g}" if above.standard_error[0] > 0 else "")
        + f" of {summary.size}."
    )
    if summary.alignment is not None:
        needed = summary.alignment.modes_for(0.9)
        reach = (
            f"{needed} modes hold" if needed else f"more than {len(summary.eigenvalues)} modes are needed for"
        )
        parts.append(
            f"Alignment with the targets {summary.alignment.alignment:.4g}, centred {summary.alignment.centred:.4g}; "
            f"{reach} 90 % of their energy."
        )
    if misfit is not None:
        parts.append(misfit)
    if fit is not None:
        parts.append(_fit_text(fit, error))
    if summary.path is not None:
        parts.append(
            f"In {summary.path}, computed in {summary.seconds:.3g} s of work and read {summary.readings} times in "
            f"{summary.summary_seconds:.3g} s. In Python: foretrain.load({summary.path!r})."
        )
    return parts


def _ways(kernel: Found) -> str:
    ways = Counter(str(route).partition(":")[0] for route in kernel.routes.values())
    return ", ".join(f"{count} by {way}" for way, count in ways.items())


def _mode_table(summary: KernelSummary) -> Table:
    columns = ["mode", "eigenvalue", "share of the trace", "residual"]
    values = [summary.eigenvalues, summary.eigenvalues / summary.trace, summary.residuals]
    if summary.alignment is not None:
        columns.append("energy of y")
        values.append(summary.alignment.energies)
    rows = [[number, *map(float, row)] for number, row in enumerate(zip(*values, strict=True), start=1)]
    return Table(tuple(columns), rows)


def _layer_table(summary: KernelSummary) -> Table:
    shares = list(summary.layer_shares.items())
    rows: list[Sequence[Any]] = [[name or "(whole model)", share] for name, share in shares[:_MOST_LAYERS]]
    if len(shares) > _MOST_LAYERS:
        rows.append(
            [f"{len(shares) - _MOST_LAYERS} others", sum(share for _, share in shares[_MOST_LAYERS:])]
        )
    return Table(("layer", "share of the trace"), rows)


def _fit_text(fit: KernelRegression, error: float | None) -> str:
    how = (
        fit.method
        if fit.iterations is None
        else f"{fit.method}, {fit.iterations} products to {fit.tolerance:.1g}"
    )
    kind = "share of wrong labels" if fit.one_hot else "mean squared error"
    tested = "" if error is None else f" On the test samples: {kind} {error:.4g}."
    return f"Kernel regression with ridge {fit.ridge:g} ({how}) leaves {fit.residual:.3g} of the targets.{tested}"


def document(
    summary: KernelSummary,
    kernel: Found,
    fit: KernelRegression | None,
    error: float | None,
    misfit: str | None,
    seed: int,
) -> dict[str, Any]:
    """The same for machines; what was not asked for is None."""
    density = summary.density.to_dataset()
    document: dict[str, Any] = {
        "samples": summary.samples,
        "outputs": list(summary.outputs),
        "traced": summary.traced,
        "size": summary.size,
        "dtype": summary.dtype,
        "bytes": summary.bytes,
        "store": summary.path,
        "trace": summary.trace,
        "effective_rank": summary.effective_rank,
        "entropy_rank": summary.entropy_rank.value,
        "entropy_rank_error": summary.entropy_rank.standard_error,
        "eigenvalues": summary.eigenvalues,
        "residuals": summary.residuals,
        "layer_shares": dict(summary.layer_shares),
        "density": {name: density[name].values for name in ("lower", "upper", "count", "count_error")}
        | {"below": density.attrs["below"], "probes": summary.density.probes},
        "routes": {name: str(route) for name, route in kernel.routes.items()},
        "seconds": summary.seconds,
        "readings": summary.readings,
        "summary_seconds": summary.summary_seconds,
        "seed": seed,
        "note": misfit,
        "alignment": None,
        "regression": None,
    }
    if summary.alignment is not None:
        found = summary.alignment
        document["alignment"] = {
            "plain": found.alignment,
            "centred": found.centred,
            "energies": found.energies,
        }
    if fit is not None:
        document["regression"] = {
            "ridge": fit.ridge,
            "residual": fit.residual,
            "method": fit.method,
            "products": fit.iterations,
            "tolerance": fit.tolerance,
            "labels": fit.one_hot,
            "test_error": error,
        }
    return document


def dataset(summary: KernelSummary, fit: KernelRegression | None) -> xarray.Dataset:
    """Spectrum and density, with the predictions of the regression if there is one."""
    found = summary.to_dataset()
    if fit is None:
        return found
    fitted = (
        fit.to_dataset().rename(input="test_input")
        if len(fit.predictions) != summary.samples
        else fit.to_dataset()
    )
    return found.merge(fitted.drop_attrs()).assign_attrs(ridge=fit.ridge, fit_residual=fit.residual)
