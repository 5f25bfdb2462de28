"""The six-point vertex of random networks against its recursion (epilogue, epsilon.20).

The third cumulant of the stochastic metric is U / n^2. One input is sent through random layers: given the metric, the
neurons of a layer are independent, which is exact at any width. Third cumulants of ReLU and of a function that is not
odd are measured at three widths and extrapolated to infinite width. Counts of the numbers that describe trained
networks come along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from foretrain.activations import Activation, activation
from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import Plan, limits
from foretrain.experiments.judgements import agreement_rows, limit_row
from foretrain.experiments.pictures import coloured, draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import INK, Figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.complexity import model_complexity
from foretrain.theory.recursions.six_point import metric_cumulants, six_point_flow

_BATCHES = 40
_CHUNK = 4_000_000  # random numbers at a time


@dataclass(frozen=True)
class _Case:
    label: str
    act: Activation
    C_b: float
    C_W: float
    published: tuple[float, ...]  # U at layers 2, 3, ..
    digits: float

    def network(self, width: int) -> MLP:
        """As deep as there are numbers to compare with."""
        return MLP(self.act, len(self.published) + 1, width, n_in=1, C_b=self.C_b, C_W=self.C_W)


PLANS = plans(
    quick=Plan({40: 500_000, 80: 400_000, 160: 300_000}),
    paper=Plan({40: 4_000_000, 80: 4_000_000, 160: 2_000_000}),
)


def _cases() -> tuple[_Case, ...]:
    bent = activation(lambda z: np.tanh(z) + np.tanh(z) ** 2 / 2, name="tanh + tanh²/2")
    return (
        _Case("relu", activation("relu"), 0.0, 2.0, (44, 238, 582, 1076, 1720), 1e-9),
        _Case("tanh + tanh²/2", bent, 0.05, 1.5, (1.02449, 1.42806, 1.47099), 1e-5),
    )


def six_point_vertex(plan: Plan, seed: int) -> Result:
    """U of two activations, layer by layer, and the counts of the epilogue."""
    cases = _cases()
    parts = [_limits(case, plan, own).expand_dims(case=[case.label]) for case, own in with_seeds(cases, seed)]
    data = xr.concat(parts, "case", join="outer")
    score = data.z.values[np.isfinite(data.z.values)]
    rows, bound = list(agreement_rows(score)), largest_score_allowed(score.size)
    for case in cases:
        for layer, published in enumerate(case.published, start=2):
            one, title = data.sel(case=case.label, layer=layer), f"{case.label}: U at layer {layer}"
            agrees = abs(float(one.theory) - published) <= case.digits * published
            rows.append(Row(f"{title}, recursion", published, float(one.theory), agrees=agrees))
            rows.append(limit_row(f"{title}, networks", one, bound))
    # At the narrowest width, ReLU has a closed form at any width.
    narrow = data.sel(case="relu").isel(width=0)
    bound, names = largest_score_allowed(data.sizes["layer"]), ("exact", "measured", "measured_error")
    for layer in data.layer.values:
        title = f"relu: n² κ₃ at layer {layer}, n = {int(narrow.width)}"
        rows.append(limit_row(title, narrow.sel(layer=layer), bound, names))
    # (epsilon.14), and the vertex of thirty inputs.
    total, counts = model_complexity(0, 30, 20, 3).total, model_complexity(1, 30, 20, 3).counts
    assert total is not None
    assert counts is not None
    title = "numbers that fix infinite width: 3 outputs, 20 + 10 inputs"
    rows.append(Row(title, 990, total, agrees=total == 990))
    rows.append(Row("independent entries of V, 30 inputs", 108345, counts["V"], agrees=counts["V"] == 108345))
    word = "agree" if all(row.agrees for row in rows) else "do NOT all agree"
    verdict = (
        f"Third cumulants of the metric of random networks {word} with the six-point vertex of the recursion "
        f"(largest |z| {np.abs(score).max():.1f}); at finite width they differ from it by terms of order 1/n."
    )
    return Result(verdict, tuple(rows), data, _figure)


def _limits(case: _Case, plan: Plan, seed: Seed) -> xr.Dataset:
    """U at every width with its standard error, its limit, and the recursion, at layers 2 and up."""
    values, errors = [], []
    for (width, draws), own in track(with_seeds(plan.draws.items(), seed), f"{case.label}: widths"):
        metrics = sampled_metrics(case.network(width), draws, own)
        batches = np.stack([width**2 * _third_cumulant(one) for one in np.split(metrics, _BATCHES, axis=1)])
        values.append(batches.mean(axis=0))
        errors.append(batches.std(axis=0, ddof=1) / np.sqrt(_BATCHES))
    theory = six_point_flow(case.network(1), 1.0)[1:, 0]
    exact = np.full((len(values), len(theory)), np.nan)
    if case.act.slopes is not None:
        exact = np.stack([metric_cumulants(case.network(width), 1.0)[1:, 1] for width in plan.draws])
    found = limits(list(plan.draws), values, errors, theory, "layer", np.arange(2, len(theory) + 2))
    return found.assign(exact=(("width", "layer"), exact))


def sampled_metrics(mlp: MLP, draws: int, seed: Seed) -> FloatArray:
    """The metric G of K = 1 at layer 1 in layers 2..L of so many networks: (layers, draws)."""
    source, width = generator(seed), mlp.hidden_widths[0]
    function: Callable[[Any], Any] = mlp.activation
    metrics = np.empty((mlp.depth - 1, draws))
    size = max(1, _CHUNK // width)
    for start in range(0, draws, size):
        count = min(size, draws - start)
        G = np.ones(count)
        for index, layer in enumerate(mlp.layers[1:]):
            z = np.sqrt(G)[:, None] * source.normal(size=(count, width))
            G = layer.C_b + layer.C_W * (np.asarray(function(z)) ** 2).mean(axis=1)
            metrics[index, start : start + count] = G
    return metrics


def _third_cumulant(samples: FloatArray) -> FloatArray:
    """The unbiased estimate along the last axis."""
    count = samples.shape[-1]
    centred = samples - samples.mean(axis=-1, keepdims=True)
    return np.asarray((centred**3).mean(axis=-1) * count**2 / ((count - 1) * (count - 2)))


def _figure(data: xr.Dataset) -> Figure:
    """Measured over theory against 1/n: the theory is the point (0, 1)."""
    figure = Figure("The six-point vertex: n² times the third cumulant of the metric", size=(13, 5.2))
    for case in data.case.values:
        own = data.sel(case=case).dropna("layer", subset=["theory"])
        lines = "; lines: exact at any width" if np.isfinite(own.exact.values).all() else ""
        title, ratio = f"{case} (diamonds: extrapolated{lines})", r"$n^2 \kappa_3$ / U of the recursion"
        panel = figure.panel(title, x="1 / width", y=ratio)
        for number, (layer, one, color) in enumerate(coloured(own, "layer")):
            theory, shift = float(one.theory), 0.008 * (number - own.sizes["layer"] / 2)
            draw_limit(panel, one, f"layer {layer}", color, unit=theory, shift=shift)
            if lines:
                places, exact = [0, *1 / own.width.values[::-1]], [1, *one.exact.values[::-1] / theory]
                panel.curve(places, exact, "-", "", color, width=1)
        panel.level(y=1, color=INK, dash="--")
    return figure
