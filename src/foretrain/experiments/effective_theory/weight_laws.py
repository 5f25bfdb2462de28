"""Does the law of the weights matter? Gaussian, uniform, truncated normal weights of the same variance (chapter 2).

In deep linear networks the four-point function of non-Gaussian weights is known exactly: an extra term D sits on one
neuron and does not pile up with depth. Real networks of widths four and five are put beside it. In tanh networks the
law shows in the metric of deeper layers; what it changes there must fall as 1/n. And neurons that start alike stay
alike, whatever is learned: a network of a thousand of them learns as a network of one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.judgements import computed_row, measured_row
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import FAINT, INK, PALETTE, new_figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.ensembles import Ensemble, weight_law
from foretrain.theory.linear import DeepLinear, nongaussian_weights

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_LAWS = ("gaussian", "uniform", "truncated_normal")
_HIDDEN, _OUTPUTS = (4, 5), 6
_PUBLISHED = {"gaussian": (1.0, 2.1, 0.0), "uniform": (1.0, 1.833, -0.8316)}  # G_2, G_4, D at layer 3
_NAMES = ("G2", "G4", "D")
_TOLD = {"G2": "G_2", "G4": "G_4", "D": "D, on one neuron"}
_BATCHES = 50
_LAYER = 3


@dataclass(frozen=True)
class Plan:
    """How many linear networks, and tanh networks of which widths, are drawn."""

    linear_draws: int
    draws: dict[int, int]  # tanh networks by width


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(400_000, {4: 400_000, 8: 400_000, 16: 300_000, 32: 100_000}),
    Scale.PAPER: Plan(8_000_000, {4: 4_000_000, 8: 4_000_000, 16: 4_000_000, 32: 2_000_000}),
}


def weight_laws(plan: Plan, seed: int) -> Result:
    """Moments of linear networks by law of the weights, what the law changes of tanh networks, and equal neurons."""
    import xarray

    linear, bent = spawn(seed, 2)
    data = xarray.merge([_linear(plan.linear_draws, linear), _tanh(plan.draws, bent)])
    rows = (*_published_rows(), *_linear_rows(data), *_tanh_rows(data), *_symmetry_rows())
    good = sum(row.agrees is True for row in rows)
    tested = sum(row.agrees is not None for row in rows)
    widest = data.isel(width=-1)
    verdict = (
        f"{good} of {tested} checks agree: the law of the weights enters linear networks as the exact theory says "
        f"and changes tanh networks by 1/n, {float(widest.change.sel(law='uniform')):.2%} of the metric at width "
        f"{int(widest.width)}."
    )
    return Result(verdict, rows, data, partial(_draw, data))


def _exact(law: str) -> dict[str, float]:
    """G_2, G_4 and D of the linear networks at the output."""
    found = nongaussian_weights(
        DeepLinear.critical([*_HIDDEN, _OUTPUTS]), np.ones(4), weight_law(law).excess_kurtosis
    )
    return {name: float(found[name].sel(layer=len(_HIDDEN) + 1)) for name in _NAMES}


def _published_rows() -> list[Row]:
    rows = []
    for law, values in _PUBLISHED.items():
        exact = _exact(law)
        for name, value in zip(_NAMES, values, strict=True):
            title = f"linear, hidden 4 and 5, {law}: {_TOLD[name]}"
            rows.append(computed_row(title, value, exact[name], 1e-9))
    return rows


def _linear(draws: int, seed: Seed) -> xarray.Dataset:
    """The same moments of real linear networks, with standard errors from batches."""
    import xarray

    mlp = MLP("linear", len(_HIDDEN) + 1, _HIDDEN, n_in=4, n_out=_OUTPUTS)
    values, errors = [], []
    for law, own in track(list(zip(_LAWS, spawn(seed, len(_LAWS)), strict=True)), "linear networks"):
        batches = []
        for batch in spawn(own, _BATCHES):
            ensemble = Ensemble(
                mlp, np.ones((1, 4)), draws // _BATCHES, method="weights", law=law, seed=batch
            )
            z = np.concatenate([chunk[mlp.depth][..., 0] for chunk in ensemble.preactivations([mlp.depth])])
            batches.append(moments_of(z))
        values.append(np.mean(batches, axis=0))
        errors.append(np.std(batches, axis=0, ddof=1) / np.sqrt(_BATCHES))
    theory = [[_exact(law)[name] for name in _NAMES] for law in _LAWS]
    dims = ("law", "moment")
    return xarray.Dataset(
        {"linear": (dims, values), "linear_error": (dims, errors), "linear_theory": (dims, theory)},
        coords={"law": list(_LAWS), "moment": list(_NAMES)},
    )


def moments_of(z: Array) -> Array:
    """G_2, G_4 from pairs of different neurons, and D = E z^4 - 3 G_4, of outputs (networks, neurons)."""
    square = z**2
    total = square.sum(axis=1)
    count = z.shape[1]
    pairs = (total**2 - (square**2).sum(axis=1)).mean() / (count * (count - 1))
    return np.array([square.mean(), pairs, (square**2).mean() - 3 * pairs])


def _linear_rows(data: xarray.Dataset) -> list[Row]:
    bound, rows = largest_score_allowed(len(_LAWS) * len(_NAMES)), []
    for law in _LAWS:
        for name in _NAMES:
            at = data.sel(law=law, moment=name)
            theory, here, error = (float(at[key]) for key in ("linear_theory", "linear", "linear_error"))
            rows.append(measured_row(f"linear networks, {law}: {_TOLD[name]}", theory, here, error, bound))
    return rows


def _tanh(draws: dict[int, int], seed: Seed) -> xarray.Dataset:
    """Relative change of the mean metric at layer 3 against Gaussian weights, by law and width.

    Inputs are as wide as the layers: a sum of few weights keeps the shape of their law at any width of the network.
    """
    import xarray

    change, error = np.zeros((len(_LAWS), len(draws))), np.zeros((len(_LAWS), len(draws)))
    for column, (width, count) in enumerate(track(draws.items(), "tanh networks", total=len(draws))):
        mlp, x = MLP("tanh", _LAYER, width, n_in=width, C_W=1.5), np.ones((1, width))
        found = []
        for law, own in zip(_LAWS, spawn(spawn(seed, len(draws))[column], len(_LAWS)), strict=True):
            ensemble = Ensemble(mlp, x, count, method="weights", law=law, seed=own)
            G = np.concatenate([chunk[_LAYER].ravel() for chunk in ensemble.metrics([_LAYER])])
            found.append((G.mean(), G.std(ddof=1) / np.sqrt(count)))
        base, base_error = found[0]
        change[:, column] = [mean / base - 1 for mean, _ in found]
        error[1:, column] = [np.hypot(own, base_error) / base for _, own in found[1:]]
    return xarray.Dataset(
        {"change": (("law", "width"), change), "change_error": (("law", "width"), error)},
        coords={"law": list(_LAWS), "width": list(draws)},
    )


def _tanh_rows(data: xarray.Dataset) -> list[Row]:
    """n times the change, extrapolated: finite, and the change itself tends to nothing."""
    from foretrain.compare.judging.powers import Sizes, power_of

    rows = []
    n = data.width.values.astype(float)
    for law in _LAWS[1:]:
        own = data.sel(law=law)
        change, error = own.change.values, own.change_error.values
        # Squares freed of noise, with the errors of squares of noisy numbers.
        sizes = Sizes(change**2 - error**2, np.sqrt(4 * change**2 * error**2 + 2 * error**4))
        power = power_of(n, sizes)
        title = f"tanh networks, {law}: power of n in the change of the metric at layer {_LAYER}"
        seen = ", ".join(f"{value:.2%} at {width:g}" for value, width in zip(change, n, strict=True))
        if power is None:
            rows.append(Row(title, -1.0, "hidden by noise", note=f"{seen}; more networks resolve it"))
            continue
        rows.append(Row(title, -1.0, power.value, power.standard_error, power.agrees(-1.0), seen))
    return rows


def _symmetry_rows() -> list[Row]:
    """Neurons that start alike: after training they still do, and the width has acted as one."""
    wide, narrow = (_trained_alike(width) for width in (1000, 1))
    spread, apart = float(wide.std(axis=1).max()), float(np.abs(wide[:, 0] - narrow[:, 0]).max())
    return [
        Row("1000 equal neurons after training: spread", 0.0, spread, agrees=spread < 1e-12),
        Row(
            "their course against that of a single neuron, 50 steps: largest difference",
            0.0,
            apart,
            agrees=apart < 1e-9,
            note="equal neurons get equal gradients: symmetry must be broken by the draw of the weights",
        ),
    ]


def _trained_alike(width: int) -> Array:
    """First-layer weights (steps, neurons) of y = sum_j w tanh(a x) / n, all neurons equal at the start."""
    first, last = np.full(width, 0.7), np.full(width, 0.5)
    x, y = np.array([0.8, -0.5, 1.3]), np.array([0.4, 0.1, -0.6])
    course = [first.copy()]
    for _ in range(50):
        signal = np.tanh(np.outer(x, first))
        error = signal @ last / width - y
        slope = error[:, None] * (1 - signal**2) * x[:, None]
        first, last = first - 0.1 * last * slope.sum(axis=0), last - 0.1 * signal.T @ error
        course.append(first.copy())
    return np.array(course)


def _draw(data: xarray.Dataset) -> Figure:
    figure, (linear, tanh) = new_figure(
        "The law of the weights: same variance, different shape", 1, 2, (13, 5.0)
    )
    _draw_linear(linear, data)
    for colour, law in zip(PALETTE, _LAWS[1:], strict=False):
        own = data.sel(law=law)
        tanh.errorbar(data.width, np.abs(own.change), own.change_error, fmt="o", color=colour, label=law)
        guide = float(np.abs(own.change[-1])) * float(data.width[-1]) / data.width
        tanh.plot(data.width, guide, "--", color=colour, linewidth=1)
    tanh.set(xscale="log", yscale="log", xlabel="width n", ylabel="|change of the mean metric|, relative")
    tanh.set_xticks(data.width.values, [str(width) for width in data.width.values])
    tanh.minorticks_off()
    tanh.set_title(f"tanh, layer {_LAYER}: against Gaussian weights; dashed 1/n", fontsize=11)
    tanh.legend(frameon=False, fontsize=9)
    return figure


def _draw_linear(panel: Axes, data: xarray.Dataset) -> None:
    place = np.arange(len(_NAMES))
    for number, (colour, law) in enumerate(zip(PALETTE, _LAWS, strict=False)):
        own, shift = data.sel(law=law), 0.2 * (number - 1)
        panel.plot(place + shift, own.linear_theory, "_", color=INK, markersize=20)
        panel.errorbar(place + shift, own.linear, own.linear_error, fmt="o", color=colour, label=law)
    panel.plot([], [], "_", color=INK, markersize=12, label="exact")
    panel.axhline(0, color=FAINT, linewidth=0.8)
    panel.set_xticks(place, [_TOLD[name] for name in _NAMES])
    panel.set_title("deep linear networks, hidden widths 4 and 5", fontsize=11)
    panel.legend(frameon=False, fontsize=9)
