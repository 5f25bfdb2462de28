"""The second layer of real random networks against Gaussian expectations that are exact at any width.

With K the first layer's covariance (4.8), for every width n_1 of the first layer (4.37), (4.40)

    E[z_α z_β]                    = C_b + C_W ⟨σ_α σ_β⟩_K                                        one neuron,
    E[z_α z_β z'_γ z'_δ] conn.    = C_W²/n_1 (⟨σ_α σ_β σ_γ σ_δ⟩_K − ⟨σ_α σ_β⟩_K ⟨σ_γ σ_δ⟩_K)     two neurons.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

import numpy as np

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.score_drawing import draw_scores
from foretrain.experiments.judgements import agreement_rows
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.gaussian import expectations_at
from foretrain.support.drawing import FAINT, INK, PALETTE, new_mosaic
from foretrain.support.progress import track
from foretrain.support.seeds import spawn
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import Ensemble, connected_correlator, correlator

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INPUTS = 4
_PAIRS = list(combinations_with_replacement(range(_INPUTS), 2))
_QUADRUPLES = [(*left, *right) for left, right in combinations_with_replacement(_PAIRS, 2)]
_SHOWN_PAIRS = ((0, 0), (0, 1))
_SHOWN_QUADRUPLES = ((0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 2, 3))
_OUTPUTS = 16  # neurons of layer 2 over which one network's correlators are averaged
_C_B, _C_W = 0.2, 1.5
_MARKERS = "os^D"


@dataclass(frozen=True)
class Plan:
    """Activations and widths of the networks, and how many are drawn."""

    activations: tuple[str, ...]
    widths: tuple[int, ...]
    draws: int


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(("tanh", "relu", "gelu"), (3, 8), 60_000),
    Scale.PAPER: Plan(("tanh", "relu", "gelu", "sin", "swish", "softplus"), (1, 3, 8, 32), 400_000),
}


def metric_fluctuations(plan: Plan, seed: int) -> Result:
    """Two-point and inter-neuron four-point functions at layer 2, measured and exact, entry by entry."""
    import xarray

    cases = [(name, width) for name in plan.activations for width in plan.widths]
    seeds = spawn(seed, 1 + len(cases))
    X = np.random.default_rng(seeds[0]).normal(size=(_INPUTS, 5))
    theory, value, error = [], [], []
    for (name, width), own_seed in track(list(zip(cases, seeds[1:], strict=True)), "networks"):
        mlp = MLP(name, depth=2, width=width, n_out=_OUTPUTS, C_b=_C_B, C_W=_C_W)
        theory.append(_exact(mlp, X))
        ensemble = Ensemble(mlp, X, plan.draws, method="weights", seed=own_seed)
        found = _measured(ensemble)
        value.append(found[0])
        error.append(found[1])
    shape = (len(plan.activations), len(plan.widths), len(_PAIRS) + len(_QUADRUPLES))
    dims = ("activation", "width", "entry")
    arrays = {"theory": theory, "measured": value, "standard_error": error}
    data = xarray.Dataset(
        {label: (dims, np.reshape(columns, shape)) for label, columns in arrays.items()},
        coords={
            "activation": list(plan.activations),
            "width": list(plan.widths),
            "entry": [_entry_name(indices) for indices in (*_PAIRS, *_QUADRUPLES)],
            "points": ("entry", [len(indices) for indices in (*_PAIRS, *_QUADRUPLES)]),
        },
        attrs={"C_b": _C_B, "C_W": _C_W, "draws": plan.draws, "outputs": _OUTPUTS},
    )
    data["z"] = (data.measured - data.theory) / data.standard_error
    return Result(_verdict(data), _table(data), data, partial(_draw, data))


def _exact(mlp: MLP, X: FloatArray) -> FloatArray:
    """Two-point function of all pairs, then connected four-point function of all quadruples."""
    K = mlp.first_kernel(X)
    C_b, C_W, width = mlp.C_b[1], mlp.C_W[1], mlp.hidden_widths[0]
    quadruples = np.array(_QUADRUPLES)
    pairs, left, right = (
        expectations_at([mlp.activation] * 2, K, indices).value
        for indices in (_PAIRS, quadruples[:, :2], quadruples[:, 2:])
    )
    four = expectations_at([mlp.activation] * 4, K, quadruples).value
    return np.concatenate([C_b + C_W * pairs, C_W**2 / width * (four - left * right)])


def _measured(ensemble: Ensemble) -> tuple[FloatArray, FloatArray]:
    """Values and standard errors from the neurons of real networks, in the order of the theory."""
    two = correlator(ensemble, "11", layers=[2], inputs=_PAIRS, estimator="neurons")
    four = connected_correlator(ensemble, "1122", layers=[2], inputs=_QUADRUPLES, estimator="neurons")
    values, errors = (
        np.concatenate([dataset[name].values[0] for dataset in (two, four)])
        for name in ("value", "standard_error")
    )
    return values, errors


def _entry_name(indices: tuple[int, ...]) -> str:
    numbers = [str(index + 1) for index in indices]
    if len(numbers) == 2:
        return f"G_{''.join(numbers)}"
    return f"V_({''.join(numbers[:2])})({''.join(numbers[2:])})/n"


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    bound = largest_score_allowed(data.z.size)
    rows = list(agreement_rows(data.z.values.ravel()))
    for name in data.activation.values:
        for width in data.width.values:
            for indices in (*_SHOWN_PAIRS, *_SHOWN_QUADRUPLES):
                entry = data.sel(activation=name, width=width, entry=_entry_name(indices))
                rows.append(
                    Row(
                        f"{name}, n_1 = {width}: {_entry_name(indices)}",
                        entry.theory.item(),
                        entry.measured.item(),
                        entry.standard_error.item(),
                        agrees=bool(abs(entry.z.item()) <= bound),
                    )
                )
    return tuple(rows)


def _verdict(data: xarray.Dataset) -> str:
    spread, largest = agreement_rows(data.z.values.ravel())
    four = data.isel(entry=data.points.values == 4)
    signal = float(np.abs(four.theory / four.standard_error).max())
    judgement = "agree" if spread.agrees and largest.agrees else "do not agree"
    return (
        f"{data.z.size} correlators of layer 2 {judgement} with the exact Gaussian expectations "
        f"(rms z {spread.here:.2f}, largest |z| {largest.here:.1f}); "
        f"independent neurons would be wrong by up to {signal:.0f} standard errors."
    )


def _draw(data: xarray.Dataset) -> Figure:
    title = "Layer 2 of real random networks against exact Gaussian expectations"
    layout = [["two", "four", "scores"], ["two pulls", "four pulls", "scores"]]
    figure, panels = new_mosaic(title, layout, [3, 1], (14.5, 5.6))
    for name, points in (("two", 2), ("four", 4)):
        chosen = data.isel(entry=data.points.values == points)
        chosen = chosen.assign_coords(unit=_units(data, points))
        _draw_agreement(panels[name], chosen)
        panels[f"{name} pulls"].sharex(panels[name])
        _draw_pulls(panels[f"{name} pulls"], chosen, largest_score_allowed(data.z.size))
        panels[name].set_ylabel(f"measured, {int(data.attrs['draws']):,} networks each")
        panels[name].tick_params(labelbottom=False)
    panels["two"].set_title("two-point function, one neuron", fontsize=11)
    panels["two pulls"].set_xlabel(
        r"theory  $G_{\alpha\beta}$,  in units of $\sqrt{G_{\alpha\alpha}G_{\beta\beta}}$"
    )
    panels["four"].set_title("connected four-point function, two neurons", fontsize=11)
    panels["four pulls"].set_xlabel(
        r"theory  $V_{(\alpha\beta)(\gamma\delta)}/n_1$,  same units, signed logarithm"
    )
    _signed_logarithm(panels["four"])
    _draw_legend(panels["two"], data)
    scores = data.z.values.ravel()
    spread, largest = agreement_rows(scores)
    note = f"rms {spread.here:.2f}\nlargest {largest.here:.2f}\n1 % bound {largest.expected:.2f}"
    draw_scores(panels["scores"], scores, f"all {scores.size} z-scores", note)
    return figure


def _units(data: xarray.Dataset, points: int) -> tuple[tuple[str, str], FloatArray]:
    """√G_αα for each leg of each entry, so that all activations fit on one axis."""
    variances = [data.theory.sel(entry=_entry_name((i, i))).isel(width=0).values for i in range(_INPUTS)]
    deviations = np.sqrt(np.array(variances))
    entries = _PAIRS if points == 2 else _QUADRUPLES
    units = np.stack([deviations[list(entry)].prod(axis=0) for entry in entries], axis=-1)
    return ("activation", "entry"), units


def _cases(data: xarray.Dataset) -> Iterator[tuple[xarray.Dataset, str, str]]:
    """Each activation and width with its colour and marker."""
    for color, name in zip(PALETTE, data.activation.values, strict=False):
        for marker, width in zip(_MARKERS, data.width.values, strict=False):
            yield data.sel(activation=name, width=width), color, marker


def _draw_legend(panel: Axes, data: xarray.Dataset) -> None:
    """Colours are activations, markers are widths."""
    for color, name in zip(PALETTE, data.activation.values, strict=False):
        panel.plot([], [], color=color, linewidth=3, label=str(name))
    for marker, width in zip(_MARKERS, data.width.values, strict=False):
        panel.plot([], [], marker, color=INK, markerfacecolor="white", label=f"$n_1 = {width}$")
    panel.legend(frameon=False, fontsize=9, loc="upper left")


def _draw_agreement(panel: Axes, data: xarray.Dataset) -> None:
    for case, color, marker in _cases(data):
        panel.errorbar(
            case.theory / case.unit,
            case.measured / case.unit,
            case.standard_error / case.unit,
            fmt=marker,
            color=color,
            markersize=4.5,
            markerfacecolor="white",
            elinewidth=1.2,
        )
    ends = [float((data.theory / data.unit).min()), float((data.theory / data.unit).max())]
    panel.plot(ends, ends, color=FAINT, linewidth=1, zorder=0)


def _draw_pulls(panel: Axes, data: xarray.Dataset, bound: float) -> None:
    """z-scores against the same theory axis, with the bands of one standard error and of the 1 % bound."""
    for limit, shade in ((bound, "#f2f2f2"), (1.0, "#dddddd")):
        panel.axhspan(-limit, limit, color=shade, zorder=0)
    for case, color, marker in _cases(data):
        panel.plot(case.theory / case.unit, case.z, marker, color=color, markersize=3.5, alpha=0.8)
    panel.set_ylim(-1.1 * bound, 1.1 * bound)
    panel.set_ylabel("z")


def _signed_logarithm(panel: Axes) -> None:
    low, high = panel.get_xlim()
    ticks = [tick for tick in (-1, -0.1, -0.01, 0, 0.01, 0.1, 1) if low <= tick <= high]
    names = [f"{tick:g}" for tick in ticks]
    panel.set_xscale("symlog", linthresh=0.01)
    panel.set_yscale("symlog", linthresh=0.01)
    panel.set_xticks(ticks, names)
    panel.set_yticks(ticks, names)
