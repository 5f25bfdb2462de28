"""Plateaus of real networks, predicted in steps and trained (after Rawal & DeWeese, section 3).

Networks of 4 to 8 layers, some or all of them small, learn a Gaussian teacher or scikit-learn's digits. For each the
step at which the loss falls to half its plateau is predicted by the network's own gradient flow, the small layers are
brought to their natural scale, and both networks are trained by stochastic gradient descent with several orders of
the batches. A prediction agrees if the mean escape step is within 20 % of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import xarray

from foretrain.experiments.judgements import sampled
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, INK, ORANGE, Figure, log
from foretrain.support.loading import handwritten_digits
from foretrain.support.progress import track
from foretrain.support.seeds import integer, spawn
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch

    from foretrain.compare.plateau import Forecast, Plateau, PlateauVerification
    from foretrain.compare.plateau.descent import TrainedRuns


ALLOWED = 0.2  # of the predicted step
_POINTS = 160  # of every curve that is kept
_COLORS = {"given": BLUE, "rescaled": ORANGE}
_VARIANTS = tuple(_COLORS)


@dataclass(frozen=True)
class Case:
    """A network of ``depth`` He-normal layers, the first ``small`` of them times ``epsilon``, and what it learns."""

    data: str  # "teacher" or "digits"
    activation: str
    depth: int
    small: int
    epsilon: float
    bias: bool = False

    @property
    def name(self) -> str:
        """As it is told in the table."""
        biases = ", biases" if self.bias else ""
        return f"{self.data}, {self.activation}, L = {self.depth}, {self.small} × {self.epsilon:g}{biases}"


_CASES = (
    Case("teacher", "tanh", 4, 4, 0.1),
    Case("teacher", "gelu", 5, 4, 0.25),
    Case("teacher", "erf", 6, 4, 0.1),
    Case("teacher", "tanh", 8, 6, 0.2),
    Case("teacher", "erf", 8, 8, 0.35),
    Case("digits", "tanh", 5, 4, 0.1),
    Case("digits", "gelu", 4, 4, 0.25, bias=True),
    Case("digits", "erf", 6, 5, 0.2),
    Case("digits", "tanh", 7, 5, 0.2, bias=True),
    Case("digits", "gelu", 6, 4, 0.3),
)


@dataclass(frozen=True)
class Plan:
    """Networks and work; ``rates`` are learning rates by kind of data."""

    cases: tuple[Case, ...]
    width: int
    inputs: int  # of the teacher
    samples: int  # of the teacher
    rates: dict[str, float]
    batch: int
    runs: int


PLANS = plans(
    quick=Plan(_CASES, 64, 16, 1024, {"teacher": 0.01, "digits": 0.02}, 64, 3),
    paper=Plan(_CASES, 128, 16, 4096, {"teacher": 0.004, "digits": 0.008}, 128, 6),
)


def plateau_prediction(plan: Plan, seed: int, parts: Parts) -> Result:
    """Escape steps of real networks, as given and rescaled as advised: predicted beside stochastic descent."""
    cases = track(list(zip(plan.cases, spawn(seed, len(plan.cases)))), "networks")
    found = [parts.get(case.name, partial(_measure, plan, case, own)) for case, own in cases]
    names = xarray.Variable("case", [case.name for case in plan.cases])
    data = xarray.concat(found, dim=names, join="exact", combine_attrs="drop")
    data = data.assign_attrs(width=plan.width, batch=plan.batch, runs=plan.runs)
    rows: list[Row] = []
    for case in data.case.values:
        own = data.sel(case=case)
        rows.append(_step_row(own, str(case), "given"))
        if not np.isfinite(own["predicted"].sel(variant="rescaled")):
            continue  # no plateau, so nothing is advised
        title = f"{case}: what halving ε does to the plateau (law as ε → 0)"
        note = "By the law (12), and by the flow of this network: ε is not small here."
        halving = Row(title, float(own["halving_law"]), float(own["halving_flow"]), note=note)
        rows += [_step_row(own, str(case), "rescaled"), _shortening_row(own, str(case)), halving]
    means = data["measured"].mean("run")
    given, rescaled = (abs(means / data["predicted"] - 1).sel(variant=variant) for variant in _VARIANTS)
    ratio = (means.sel(variant="given") / means.sel(variant="rescaled")).values
    verdict = (
        f"{int((given <= ALLOWED).sum())} of {data.sizes['case']} plateaus end within {ALLOWED:.0%} of the predicted "
        f"step (largest distance {float(given.max()):.1%}); rescaled as advised the networks escape "
        f"{ratio.min():.3g} to {ratio.max():.3g} times sooner, at most {float(rescaled.max()):.1%} off."
    )
    return Result(verdict, tuple(rows), data, _draw)


def _measure(plan: Plan, case: Case, seed: np.random.SeedSequence) -> xarray.Dataset:
    """Forecast and training of one network."""
    import torch

    from foretrain.compare.plateau import plateau

    drawing, descending = spawn(seed, 2)
    if case.data == "teacher":  # y = σ(v·x) of Gaussian inputs, v a unit vector
        source = torch.Generator().manual_seed(integer(spawn(drawing, 1)[0]))
        x = torch.randn(plan.samples, plan.inputs, generator=source)
        y, outputs = _function(case.activation)(x[:, :1]), 1
    else:
        (x, y), outputs = _digits(), 10
    model = _network(case, [x.shape[1], *[plan.width] * (case.depth - 1), outputs], drawing)
    found = plateau(model, x, y, lr=plan.rates[case.data], batch_size=plan.batch)
    return _kept(found, found.verify(runs=plan.runs, seed=descending))


def _function(name: str) -> Callable[[torch.Tensor], torch.Tensor]:
    import torch

    known: dict[str, Callable[[torch.Tensor], torch.Tensor]]
    known = {"tanh": torch.tanh, "gelu": torch.nn.functional.gelu, "erf": torch.erf}
    return known[name]


def _network(case: Case, sizes: list[int], seed: np.random.SeedSequence) -> torch.nn.Sequential:
    import torch
    from torch import nn

    from foretrain.support.seeds import torch_generator

    function = _function(case.activation)

    class Pointwise(nn.Module):
        """The activation as a module of its own."""

        def forward(self, z: torch.Tensor) -> torch.Tensor:
            return function(z)

    source = torch_generator(seed)
    layers: list[nn.Module] = []
    for place, (inputs, outputs) in enumerate(pairwise(sizes)):
        layer = nn.Linear(inputs, outputs, bias=case.bias)
        scale = (2 / inputs) ** 0.5 * (case.epsilon if place < case.small else 1.0)
        with torch.no_grad():
            layer.weight.copy_(scale * torch.randn(outputs, inputs, generator=source))
            if case.bias:
                layer.bias.zero_()
        layers += [Pointwise(), layer] if place else [layer]
    return nn.Sequential(*layers)


def _digits() -> tuple[torch.Tensor, torch.Tensor]:
    """The 1797 images of 8 × 8 pixels, centred, with mean square one, and their labels."""
    import torch

    images, labels = handwritten_digits()
    x = torch.tensor(images, dtype=torch.float32)
    x = x - x.mean(dim=0)
    return x / x.square().mean().sqrt(), torch.tensor(labels)


def _kept(found: Plateau, trained: PlateauVerification) -> xarray.Dataset:
    """Numbers of both networks, and curves thinned to a fixed number of points; nan where there is no advice."""

    def numbers(flow: Forecast, runs: TrainedRuns) -> xarray.Dataset:
        shown, (steps, losses) = _shown(flow.followed), _thinned(runs.steps, runs.losses[0])
        curves = {"flow_step": shown, "flow_loss": flow.loss_at(shown)}
        curves |= {"descent_step": steps, "descent_loss": losses}
        values = {"predicted": flow.escape, "length": flow.length, "stability": flow.stability}
        measured = ("run", np.asarray(runs.escapes, dtype=float))
        found = {name: ("point", curve) for name, curve in curves.items()}
        return xarray.Dataset({**found, **values, "measured": measured})

    law, forecast, advised = found.law, found.forecast, found.rescaled_forecast
    given = numbers(forecast, trained.networks["given"])
    nothing = xarray.full_like(given, np.nan)
    rescaled = nothing if advised is None else numbers(advised, trained.networks["rescaled"])
    both = xarray.concat([given, rescaled], dim=xarray.Variable("variant", list(_VARIANTS)))
    return both.assign(
        small_layers=found.bottleneck.count,
        epsilon=found.bottleneck.epsilon,
        halving_law=np.nan if law is None else law.halving,
        halving_flow=np.nan if law is None else law.halving_here,
        level=forecast.level,
        threshold=forecast.threshold,
    )


def _shown(last: float) -> FloatArray:
    """Steps worth drawing: even in the logarithm for the wait, even in the step for the fall."""
    half, last = _POINTS // 2, max(last, 1.0)
    return np.sort(np.concatenate([np.geomspace(1, last, half), np.linspace(1, last, half)]))


def _thinned(steps: FloatArray, losses: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Looks at real descent near those steps, filled up with nan."""
    known = np.flatnonzero(np.isfinite(losses) & (steps >= 1))
    if not len(known):
        return np.full(_POINTS, np.nan), np.full(_POINTS, np.nan)
    wanted = _shown(steps[known[-1]])
    chosen = known[np.unique(np.searchsorted(steps[known], wanted).clip(max=len(known) - 1))]
    filling = np.full(_POINTS - len(chosen), np.nan)
    return np.append(steps[chosen], filling), np.append(losses[chosen], filling)


def _step_row(own: xarray.Dataset, case: str, variant: str) -> Row:
    """Mean over orders of the batches, with its standard error."""
    runs = own["measured"].sel(variant=variant).values
    predicted, measured = float(own["predicted"].sel(variant=variant)), float(runs.mean())
    if not np.isfinite(predicted):
        return Row(f"{case}, {variant}: escape step", "no prediction", measured, agrees=False)
    error = sampled(runs).error if len(runs) > 1 else None
    off = measured / predicted - 1
    note = f"{off:+.1%}; to be within {ALLOWED:.0%} of the prediction."
    return Row(f"{case}, {variant}: escape step", predicted, measured, error, bool(abs(off) <= ALLOWED), note)


def _shortening_row(own: xarray.Dataset, case: str) -> Row:
    """How many times sooner the rescaled network escapes."""
    predicted, means = own["predicted"].values, own["measured"].mean("run").values
    expected, here = float(predicted[0] / predicted[1]), float(means[0] / means[1])
    runs = own["measured"].values
    error = None
    if runs.shape[1] > 1:
        spreads = runs.std(axis=1, ddof=1) / (means * np.sqrt(runs.shape[1]))
        error = float(here * np.hypot(*spreads))
    agrees = bool(here > 1 and abs(here / expected - 1) <= ALLOWED)
    note = f"{int(own['small_layers'])} layers found at {float(own['epsilon']):.2g} of their natural scale."
    return Row(f"{case}: times sooner after rescaling", expected, here, error, agrees, note)


def _draw(data: xarray.Dataset) -> Figure:
    """Loss curves of four evenly chosen networks beside the scatter of all escape steps."""
    title = f"Plateaus of real networks: gradient flow against descent in batches of {data.attrs['batch']}"
    places = np.unique(np.linspace(0, data.sizes["case"] - 1, 4).round().astype(int))
    layout = {1: "AB", 2: "AB AC", 3: "ABC ADD", 4: "ABC ADE"}[len(places)]
    figure = Figure(title, layout=layout, size=(14.5, 7.6))
    ends = np.array([0.6 * np.nanmin(data.predicted), 1.6 * np.nanmax(data.predicted)])
    panel = figure.panel("all networks", log("predicted escape step"), log("escape step of real descent"))
    panel.region(ends, (1 - ALLOWED) * ends, (1 + ALLOWED) * ends, "within 20 %")
    panel.curve(ends, ends, color=INK, width=1)
    for variant, color in _COLORS.items():
        one = data.sel(variant=variant)
        mean, spread = one.measured.mean("run"), one.measured.std("run")
        panel.curve(one.predicted, mean, "o", variant, color, error=spread, size=6, hollow=True)
    for place in places:
        own, legend = data.isel(case=place), "" if place else "best"
        panel = figure.panel(str(own.case.values), log("step"), "loss over all data", legend=legend)
        for variant, color in _COLORS.items():
            one = own.sel(variant=variant)
            panel.curve(one.flow_step, one.flow_loss, "-", f"{variant}, predicted", color)
            steps, losses = one.descent_step[::3], one.descent_loss[::3]  # as many as can be told apart
            panel.curve(steps, losses, "o", f"{variant}, real descent", color, size=3.6, hollow=True)
        panel.level(y=own.level, label="loss at the saddle", dash="--")
        panel.level(y=own.threshold, label="escaped below", color=INK, dash=":")
    return figure
