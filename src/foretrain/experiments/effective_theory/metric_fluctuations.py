"""The second layer of real random networks against Gaussian expectations that are exact at any width.

With K the first layer's covariance (4.8), for every width n_1 of the first layer (4.37), (4.40)

    E[z_α z_β]                    = C_b + C_W ⟨σ_α σ_β⟩_K                                        one neuron,
    E[z_α z_β z'_γ z'_δ] conn.    = C_W²/n_1 (⟨σ_α σ_β σ_γ σ_δ⟩_K − ⟨σ_α σ_β⟩_K ⟨σ_γ σ_δ⟩_K)     two neurons.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import combinations_with_replacement, product

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.judgements import agreement_rows, limit_row
from foretrain.experiments.pictures import add_scores, coloured
from foretrain.experiments.registry import Result, plans
from foretrain.gaussian import expectations_at
from foretrain.support.answers import FAINT, Axis, Figure
from foretrain.support.progress import track
from foretrain.support.seeds import spawn
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import Ensemble, connected_correlator, correlator

_INPUTS = 4
_PAIRS = list(combinations_with_replacement(range(_INPUTS), 2))
_QUADRUPLES = [(*left, *right) for left, right in combinations_with_replacement(_PAIRS, 2)]
_SHOWN = ((0, 0), (0, 1), (0, 0, 0, 0), (0, 0, 1, 1), (0, 1, 2, 3))
_OUTPUTS = 16  # neurons of layer 2 over which one network's correlators are averaged
_C_B, _C_W = 0.2, 1.5
_MARKERS = "os^D"


@dataclass(frozen=True)
class Plan:
    """Activations and widths of the networks, and how many are drawn."""

    activations: tuple[str, ...]
    widths: tuple[int, ...]
    draws: int


PLANS = plans(
    quick=Plan(("tanh", "relu", "gelu"), (3, 8), 60_000),
    paper=Plan(("tanh", "relu", "gelu", "sin", "swish", "softplus"), (1, 3, 8, 32), 400_000),
)


def metric_fluctuations(plan: Plan, seed: int) -> Result:
    """Two-point and inter-neuron four-point functions at layer 2, measured and exact, entry by entry."""
    cases = list(product(plan.activations, plan.widths))
    seeds = spawn(seed, 1 + len(cases))
    X = np.random.default_rng(seeds[0]).normal(size=(_INPUTS, 5))
    columns = []
    for (name, width), own_seed in track(list(zip(cases, seeds[1:], strict=True)), "networks"):
        mlp = MLP(name, depth=2, width=width, n_out=_OUTPUTS, C_b=_C_B, C_W=_C_W)
        ensemble = Ensemble(mlp, X, plan.draws, method="weights", seed=own_seed)
        # From the neurons of real networks, in the order of the theory.
        two = correlator(ensemble, "11", layers=[2], inputs=_PAIRS, estimator="neurons")
        four = connected_correlator(ensemble, "1122", layers=[2], inputs=_QUADRUPLES, estimator="neurons")
        names = ("value", "standard_error")
        found = [np.concatenate([each[key].values[0] for each in (two, four)]) for key in names]
        columns.append((_exact(mlp, X), *found))
    shape, entries = (len(plan.activations), len(plan.widths), -1), (*_PAIRS, *_QUADRUPLES)
    data = xr.Dataset(
        {
            label: (("activation", "width", "entry"), np.reshape(values, shape))
            for label, values in zip(("theory", "measured", "standard_error"), zip(*columns, strict=True))
        },
        coords={
            "activation": list(plan.activations),
            "width": list(plan.widths),
            "entry": [_entry_name(indices) for indices in entries],
            "points": ("entry", [len(indices) for indices in entries]),
        },
        attrs={"C_b": _C_B, "C_W": _C_W, "draws": plan.draws, "outputs": _OUTPUTS},
    )
    data["z"] = (data.measured - data.theory) / data.standard_error
    spread, largest = agreement_rows(data.z.values.ravel())
    rows, bound = [spread, largest], largest_score_allowed(data.z.size)
    for name, width, indices in product(plan.activations, plan.widths, _SHOWN):
        entry = data.sel(activation=name, width=width, entry=_entry_name(indices))
        title = f"{name}, n_1 = {width}: {_entry_name(indices)}"
        rows.append(limit_row(title, entry, bound, ("theory", "measured", "standard_error")))
    fours = data.isel(entry=data.points.values == 4)
    signal = float(np.abs(fours.theory / fours.standard_error).max())
    judgement = "agree" if spread.agrees and largest.agrees else "do not agree"
    verdict = (
        f"{data.z.size} correlators of layer 2 {judgement} with the exact Gaussian expectations "
        f"(rms z {spread.here:.2f}, largest |z| {largest.here:.1f}); "
        f"independent neurons would be wrong by up to {signal:.0f} standard errors."
    )
    return Result(verdict, tuple(rows), data, _figure)


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


def _entry_name(indices: tuple[int, ...]) -> str:
    numbers = [str(index + 1) for index in indices]
    if len(numbers) == 2:
        return f"G_{''.join(numbers)}"
    return f"V_({''.join(numbers[:2])})({''.join(numbers[2:])})/n"


def _figure(data: xr.Dataset) -> Figure:
    title = "Layer 2 of real random networks against exact Gaussian expectations"
    figure = Figure(title, layout="ABC DEC", heights=(3, 1), size=(14.5, 5.6))
    # √G_αα for each leg of each entry, so that all activations fit on one axis.
    variances = [data.theory.sel(entry=_entry_name((i, i))).isel(width=0).values for i in range(_INPUTS)]
    legs = [np.sqrt(variances)[list(entry)].prod(axis=0) for entry in (*_PAIRS, *_QUADRUPLES)]
    data = data.assign_coords(unit=(("activation", "entry"), np.stack(legs, axis=-1)))
    two, four = (data.isel(entry=data.points.values == points) for points in (2, 4))
    sizes, widths = (four.theory / four.unit).values, data.width.values.tolist()
    ticks = [tick for tick in (-1, -0.1, -0.01, 0, 0.01, 0.1, 1) if 2 * sizes.min() <= tick <= sizes.max()]
    signed = partial(Axis, scale="symlog", ticks=ticks, threshold=0.01)
    measured = f"measured, {int(data.attrs['draws']):,} networks each"
    scores = data.z.values.ravel()
    bound = largest_score_allowed(scores.size)
    title, pulls = "connected four-point function, two neurons", Axis("z", low=-1.1 * bound, high=1.1 * bound)
    above = (
        figure.panel("two-point function, one neuron", y=measured),
        figure.panel(title, signed(), signed(measured), legend=""),
    )
    for panel, own in zip(above, (two, four)):
        theory = own.theory / own.unit
        ends = [float(theory.min()), float(theory.max())]
        panel.curve(ends, ends, "-", "", FAINT, width=1)
    spread, largest = agreement_rows(scores)
    label = f"rms {spread.here:.2f}\nlargest {largest.here:.2f}\n1 % bound {largest.expected:.2f}"
    add_scores(figure, scores, f"all {scores.size} z-scores", label)
    label = r"theory  $G_{\alpha\beta}$,  in units of $\sqrt{G_{\alpha\alpha}G_{\beta\beta}}$"
    signs = r"theory  $V_{(\alpha\beta)(\gamma\delta)}/n_1$,  same units, signed logarithm"
    below = figure.panel(x=label, y=pulls), figure.panel(x=signed(signs), y=pulls)
    for agreement, panel, own in zip(above, below, (two, four)):
        for end in (bound, 1.0):  # bands of the 1 % bound and of one standard error
            panel.region(low=-end, high=end)
        for (_, each, color), (marker, width) in product(coloured(own, "activation"), zip(_MARKERS, widths)):
            one = each.sel(width=width)
            x, y, error = (one[key] / one.unit for key in ("theory", "measured", "standard_error"))
            agreement.curve(x, y, marker, "", color, error=error, size=4.5, hollow=True)
            panel.curve(x, one.z, marker, "", color, size=3.5, alpha=0.8)
        for name, _, color in coloured(own, "activation"):
            agreement.legend_entry("-", name, color)
        for marker, width in zip(_MARKERS, widths):
            agreement.legend_entry(marker, f"$n_1 = {width}$", hollow=True)
    return figure
