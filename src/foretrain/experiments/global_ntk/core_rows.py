"""The table of figure 3: what was published, and what the measurements say."""

from __future__ import annotations

import numpy as np
import xarray

from foretrain.experiments.global_ntk.core_measurements import modes_needed
from foretrain.experiments.judgements import claim_row
from foretrain.experiments.registry import Row
from foretrain.theory.architecture import FloatArray

_LEARNED = 0.05  # relative loss at which a target counts as learned
_ROUNDING = 1e-8  # of the largest singular value; networks are in single precision


def table(data: xarray.Dataset) -> tuple[Row, ...]:
    """Cosines, spectra, modes, single targets, and what another reading would change."""
    parts = (_cosine_rows, _spectrum_rows, _mode_rows, _target_rows, _reading_rows)
    return tuple(row for rows in parts for row in rows(data))


def _cosine_rows(data: xarray.Dataset) -> list[Row]:
    """Figure 3B."""
    proxy, error = (data[name].sel(operator="proxy").values for name in ("cosine", "cosine_error"))
    worst = np.abs(1 - data.cosine.sel(operator="direct sum")).max()
    baseline = (proxy / data.cosine.sel(operator="identity").values).min()
    lowest = int(proxy.argmin())
    before, least = (f"{proxy[place]:.3f} ± {error[place]:.3f}" for place in (0, lowest))
    title = f"3B: the lowest over training (step {int(data.checkpoint[lowest])})"
    note = (
        "The source shows a curve and no number. It falls when the angle is learned and the states keep it."
    )
    over = "3B: cosine with the proxy over that with the identity, at least"
    return [
        claim_row("3B: 1 - cosine of NTK_S with the direct sum, at most", 0.0, worst, worst < 1e-5),
        Row("3B: cosine with the proxy V V* (x) I, before training", "curve", before),
        Row(title, "curve", least, note=note),
        claim_row(over, 1.0, baseline, baseline > 1),
    ]


def _spectrum_rows(data: xarray.Dataset) -> list[Row]:
    """Figure 3C."""
    values = {view: _spectrum(data, "start", view) for view in ("core", "P")}
    (core, propagator), size = map(modes_needed, values.values()), len(values["P"])
    note = (
        "Of the sum of the singular values of V V*, which is the variance of V; of their squares "
        f"{modes_needed(values['core'], power=2)}."
    )
    full = (
        f"The identity would need {modes_needed(np.ones(size))}. The view is triangular with a diagonal of "
        "ones, so that its rank is full in any case."
    )
    title, nearly = f"3C: modes for 95 % of P, of {size}", propagator > 0.9 * size
    return [
        Row("3C: modes for 95 % of V V* (about)", 3, core, None, abs(core - 3) <= 1, note),
        Row(title, "nearly full rank", propagator, None, nearly, full),
        *(_above_row(data, when) for when in ("start", "end")),
    ]


def _above_row(data: xarray.Dataset, when: str) -> Row:
    """Whether the curve of NTK_S, relative to its first value, lies above that of the core."""
    values = {view: _spectrum(data, when, view) for view in ("NTK", "core", "K")}
    most, nearly_all = (
        ", ".join(f"{view} {modes_needed(own, share)}" for view, own in values.items())
        for share in (0.95, 0.99)
    )
    ratio = _tail_ratio(values["NTK"], values["core"])
    title = f"3C: singular values of NTK_S over the core's, modes 11-40, {when} of training"
    note = f"Before mode 11 the curves may cross. Modes for 95 %: {most}; for 99 %: {nearly_all}."
    return claim_row(title, "NTK_S above", ratio, ratio > 1, f"A geometric mean. {note}")


def _spectrum(data: xarray.Dataset, when: str, view: str) -> FloatArray:
    return np.asarray(data.singular_value.sel(when=when, view=view).values)


def _tail_ratio(first: FloatArray, second: FloatArray) -> float:
    """The geometric mean of ratios of modes 11 to 40, both relative to their largest, without those at rounding."""
    a, b = (own[10:40] / own[0] for own in (first, second))
    seen = (a > _ROUNDING) & (b > _ROUNDING)
    return float(np.exp(np.mean(np.log(a[seen] / b[seen])))) if seen.any() else float("nan")


def _mode_rows(data: xarray.Dataset) -> list[Row]:
    """Figure 3D: how much of the three leading modes lies in the response period."""
    rows = []
    for when in ("start", "end"):
        for view, name in (("NTK", "NTK_S"), ("core", "the core")):
            modes = data["mode"].sel(when=when, shown_view=view).values[:3]
            share = max(in_response(mode, data) for mode in modes)
            # Before training there is nothing that could fill the response; afterwards it is shown, not claimed.
            agrees = share < 0.05 if when == "start" else None
            title = f"3D: modes 1-3 of {name} in the response, {when} of training, at most"
            note = "The trained states keep the angle, and with them the kernel." if when == "end" else ""
            rows.append(claim_row(title, 0.0, share, agrees, note))
    return rows


def in_response(mode: FloatArray, data: xarray.Dataset) -> float:
    """How much of a mode (batch, time) lies in the response period."""
    start = sum(data.attrs["periods"][:2])
    return float((mode[:, start:] ** 2).sum() / (mode**2).sum())


def _target_rows(data: xarray.Dataset) -> list[Row]:
    """Figure 3E: 1 is the Rayleigh quotient of a random direction."""
    names = ("aligned", "response, angle", "response, constant")
    good, bad, easy = (data.sel(target_name=name) for name in names)
    first, last, third = (float(own.target_loss[-1]) for own in (good, bad, easy))
    after = f"after {data.sizes['descent_step'] - 1} steps"
    apart = float(np.abs(good.target_loss - good.frozen_loss).max())
    note = (
        f"Rayleigh quotient {float(easy.rayleigh):.2g}: only the angle is gone in the response; what all "
        "trials share can be told from the end of the fixation and by the bias of the readout."
    )
    quotient = "3E: Rayleigh quotient of the aligned target"
    return [
        claim_row(quotient, "large", good.rayleigh, good.rayleigh > 10),
        claim_row("3E: of the angle in the response period", "near 0", bad.rayleigh, bad.rayleigh < 0.1),
        claim_row(f"3E: loss of the aligned target {after}", "learned", first, first < _LEARNED),
        claim_row(f"3E: loss of the response target {after}", "not learned", last, last > 1 - _LEARNED),
        Row("3E: the same for a response that is one for all angles", "not shown", third, note=note),
        Row("3E: largest distance of the aligned loss from that of the frozen kernel", "not shown", apart),
    ]


def _reading_rows(data: xarray.Dataset) -> list[Row]:
    """What would change with another reading: averages over all pairs of units, and biases."""
    trace, core = (modes_needed(_spectrum(data, "start", view)) for view in ("NTK", "core"))
    pairs, P = (modes_needed(data.singular_value_pairs.sel(view_pairs=v).values) for v in ("NTK", "P"))
    biases = modes_needed(data.singular_value_biases.sel(view_biases="core").values)
    modes = data.mode_biases.sel(shown_view_biases="NTK").values
    share = [in_response(mode, data) for mode in modes]
    title = "all pairs of units in place of the partial trace: modes for 95 % of NTK_S"
    note = (
        f"Their columns of ones are a mode that lasts: {max(share):.0%} of mode {int(np.argmax(share)) + 1} "
        "of NTK_S then lies in the response period."
    )
    return [
        Row(title, trace, pairs, note=f"P needs {P}. The matrices differ, the answers here do not."),
        Row("with biases: modes for 95 % of V V*", core, biases, note=note),
    ]


def verdict(data: xarray.Dataset) -> str:
    """The experiment in one sentence."""
    proxy = data.cosine.sel(operator="proxy").values
    core, propagator = (modes_needed(_spectrum(data, "start", view)) for view in ("core", "P"))
    good, bad = (float(data.target_loss.sel(target_name=name)[-1]) for name in ("aligned", "response, angle"))
    return (
        f"The direct sum over weights is NTK_S; the proxy V V* has cosine {proxy[0]:.2f} with it before training and "
        f"{proxy[-1]:.2f} after; V V* needs {core} modes for 95 %, P {propagator} of {data.sizes['index']}; a target "
        f"along a mode of the core is learned to {good:.1g} of its loss, the angle in the response to {bad:.2f}."
    )
