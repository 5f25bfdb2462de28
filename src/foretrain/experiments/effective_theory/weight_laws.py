"""Does the law of the weights matter? Gaussian, uniform, truncated normal weights of the same variance (chapter 2).

In deep linear networks the four-point function of non-Gaussian weights is known exactly: an extra term D sits on one
neuron and does not pile up with depth. Real networks of widths four and five are put beside it. In tanh networks the
law shows in the metric of deeper layers; what it changes there must fall as 1/n. And neurons that start alike stay
alike, whatever is learned: a network of a thousand of them learns as a network of one.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.compare.judging.powers import Sizes, power_of
from foretrain.experiments.judgements import agreeing, computed_row, limit_row, power_row, sampled
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import INK, PALETTE, Figure, log, names_axis
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles import Ensemble, sample_metric, weight_law
from foretrain.theory.linear import DeepLinear, nongaussian_weights

_LAWS = ("gaussian", "uniform", "truncated_normal")
_HIDDEN, _OUTPUTS = (4, 5), 6
_PUBLISHED = {"gaussian": (1.0, 2.1, 0.0), "uniform": (1.0, 1.833, -0.8316)}  # G_2, G_4, D at layer 3
_MOMENTS = {"G2": "G_2", "G4": "G_4", "D": "D, on one neuron"}
_BATCHES = 50
_LAYER = 3


@dataclass(frozen=True)
class Plan:
    """How many linear networks, and tanh networks of which widths, are drawn."""

    linear_draws: int
    draws: dict[int, int]  # tanh networks by width


PLANS = plans(
    quick=Plan(400_000, {4: 400_000, 8: 400_000, 16: 300_000, 32: 100_000}),
    paper=Plan(8_000_000, {4: 4_000_000, 8: 4_000_000, 16: 4_000_000, 32: 2_000_000}),
)


def weight_laws(plan: Plan, seed: int) -> Result:
    """Moments of linear networks by law of the weights, what the law changes of tanh networks, and equal neurons."""
    linear, bent = spawn(seed, 2)
    data = xr.merge([_linear(plan.linear_draws, linear), _tanh(plan.draws, bent)])
    rows = [
        computed_row(f"linear, hidden 4 and 5, {law}: {name}", value, here, 1e-9)
        for law, values in _PUBLISHED.items()
        for name, value, here in zip(_MOMENTS.values(), values, _exact(law), strict=True)
    ]
    bound = largest_score_allowed(len(_LAWS) * len(_MOMENTS))
    names = ("linear_theory", "linear", "linear_error")
    for law, (name, words) in product(_LAWS, _MOMENTS.items()):
        at = data.sel(law=law, moment=name)
        rows.append(limit_row(f"linear networks, {law}: {words}", at, bound, names))
    rows += _tanh_rows(data)
    # Neurons that start alike: after training they still do, and the width has acted as one.
    wide, narrow = (_trained_alike(width) for width in (1000, 1))
    spread, apart = float(wide.std(axis=1).max()), float(np.abs(wide[:, 0] - narrow[:, 0]).max())
    note = "equal neurons get equal gradients: symmetry must be broken by the draw of the weights"
    title = "their course against that of a single neuron, 50 steps: largest difference"
    rows.append(computed_row("1000 equal neurons after training: spread", 0.0, spread, 1e-12))
    rows.append(computed_row(title, 0.0, apart, 1e-9, note))
    widest = data.isel(width=-1)
    verdict = (
        f"{agreeing(rows)} checks agree: the law of the weights enters linear networks as the exact theory says "
        f"and changes tanh networks by 1/n, {float(widest.change.sel(law='uniform')):.2%} of the metric at width "
        f"{int(widest.width)}."
    )
    return Result(verdict, tuple(rows), data, _figure)


def _exact(law: str) -> list[float]:
    """G_2, G_4 and D of the linear networks at the output."""
    network = DeepLinear.critical([*_HIDDEN, _OUTPUTS])
    found = nongaussian_weights(network, np.ones(4), weight_law(law).excess_kurtosis)
    return [float(found[name].sel(layer=len(_HIDDEN) + 1)) for name in _MOMENTS]


def _linear(draws: int, seed: Seed) -> xr.Dataset:
    """The same moments of real linear networks, with standard errors from batches."""
    depth, size = len(_HIDDEN) + 1, draws // _BATCHES
    mlp, x = MLP("linear", depth, _HIDDEN, n_in=4, n_out=_OUTPUTS), np.ones((1, 4))
    values, errors = [], []
    for law, own in track(with_seeds(_LAWS, seed), "linear networks"):
        batches = []
        for batch in spawn(own, _BATCHES):
            ensemble = Ensemble(mlp, x, size, method="weights", law=law, seed=batch)
            z = np.concatenate([chunk[depth][..., 0] for chunk in ensemble.preactivations([depth])])
            batches.append(moments_of(z))
        values.append(np.mean(batches, axis=0))
        errors.append(np.std(batches, axis=0, ddof=1) / np.sqrt(_BATCHES))
    dims, theory = ("law", "moment"), [_exact(law) for law in _LAWS]
    return xr.Dataset(
        {"linear": (dims, values), "linear_error": (dims, errors), "linear_theory": (dims, theory)},
        coords={"law": list(_LAWS), "moment": list(_MOMENTS)},
    )


def moments_of(z: FloatArray) -> FloatArray:
    """G_2, G_4 from pairs of different neurons, and D = E z^4 - 3 G_4, of outputs (networks, neurons)."""
    square = z**2
    total = square.sum(axis=1)
    count = z.shape[1]
    pairs = (total**2 - (square**2).sum(axis=1)).mean() / (count * (count - 1))
    return np.array([square.mean(), pairs, (square**2).mean() - 3 * pairs])


def _tanh(draws: dict[int, int], seed: Seed) -> xr.Dataset:
    """Relative change of the mean metric at layer 3 against Gaussian weights, by law and width.

    Inputs are as wide as the layers: a sum of few weights keeps the shape of their law at any width of the network.
    """
    change, error = np.zeros((len(_LAWS), len(draws))), np.zeros((len(_LAWS), len(draws)))
    tasks = with_seeds(draws.items(), seed)
    for column, ((width, count), width_seed) in enumerate(track(tasks, "tanh networks")):
        mlp, x = MLP("tanh", _LAYER, width, n_in=width, C_W=1.5), np.ones((1, width))
        found = []
        for law, own in with_seeds(_LAWS, width_seed):
            G = sample_metric(mlp, x, count, method="weights", law=law, layers=[_LAYER], seed=own)
            found.append(sampled(G.values.ravel()))
        base, base_error = found[0]
        change[:, column] = [mean / base - 1 for mean, _ in found]
        error[1:, column] = [np.hypot(own, base_error) / base for _, own in found[1:]]
    return xr.Dataset(
        {"change": (("law", "width"), change), "change_error": (("law", "width"), error)},
        coords={"law": list(_LAWS), "width": list(draws)},
    )


def _tanh_rows(data: xr.Dataset) -> list[Row]:
    """n times the change, extrapolated: finite, and the change itself tends to nothing."""
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
        rows.append(power_row(title, -1.0, power, seen))
    return rows


def _trained_alike(width: int) -> FloatArray:
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


def _figure(data: xr.Dataset) -> Figure:
    figure = Figure("The law of the weights: same variance, different shape", size=(13, 5.0))
    place = np.arange(len(_MOMENTS))
    names = names_axis(["$G_2$", "$G_4$", "D, on one neuron"])
    panel = figure.panel("deep linear networks, hidden widths 4 and 5", x=names, y="moment of the outputs")
    panel.level(y=0)
    for shift, color, law in zip((-0.2, 0.0, 0.2), PALETTE, _LAWS):
        own = data.sel(law=law)
        panel.curve(place + shift, own.linear_theory, "_", "exact", INK, size=20)
        panel.curve(place + shift, own.linear, "o", law, color, error=own.linear_error)
    title, width = f"tanh, layer {_LAYER}: against Gaussian weights; dashed 1/n", data.width.values
    change = log("|change of the mean metric|, relative")
    panel = figure.panel(title, x=log("width n", ticks=width), y=change)
    for color, law in zip(PALETTE[1:], _LAWS[1:]):
        own = data.sel(law=law)
        panel.curve(data.width, np.abs(own.change), "o", law, color, error=own.change_error)
        guide = abs(float(own.change[-1])) * float(data.width[-1]) / data.width
        panel.curve(data.width, guide, "--", "", color, width=1)
    return figure
