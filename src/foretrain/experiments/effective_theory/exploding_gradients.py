"""Exploding and vanishing gradients, and who contributes to the tangent kernel of a deep network (section 9.4).

The mean square of dz/db of a layer is the product of chi_perp over the layers above it (9.93): one at criticality,
exponential off it. Real networks are put beside that product, and beside the published shares of layers in the
tangent kernel of a network of two hundred layers at the rates of the equivalence principle (9.96).
"""

from __future__ import annotations

from itertools import product

import numpy as np
import xarray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import Plan, limits
from foretrain.experiments.judgements import computed_row, limit_row
from foretrain.experiments.pictures import coloured, draw_limit
from foretrain.experiments.registry import Result, plans
from foretrain.support.answers import INK, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ntk_shares import contributions, diagonal

_DEPTH = 10
_X = np.array([[1.0, -0.6, 1.2, 0.5]])
_CASES = {  # activation and C_W
    "relu, vanishing": ("relu", 1.5),
    "relu, critical": ("relu", 2.0),
    "relu, exploding": ("relu", 2.5),
    "tanh, vanishing": ("tanh", 0.8),
    "tanh, critical": ("tanh", 1.0),
}
_LAYERS = 200
_SHARES = {  # terms of Theta times the depth, at the rates (9.96) with one input of mean square one
    "bias": {1: 0.714, 10: 0.904, 50: 0.977, 100: 0.991, 200: 1.000},
    "weight": {1: 0.714, 10: 0.524, 50: 0.509, 100: 0.508, 200: 0.507},
}


PLANS = plans(
    quick=Plan({32: 3_000, 64: 1_500, 128: 600}), paper=Plan({64: 30_000, 128: 30_000, 256: 15_000})
)


def exploding_gradients(plan: Plan, seed: int) -> Result:
    """Mean squares of gradients layer by layer, on and off criticality, and shares of the tangent kernel."""
    parts = []
    for case, source in track(with_seeds(_CASES, seed), "networks"):
        values, errors = [], []
        for (width, draws), own in with_seeds(plan.draws.items(), source):
            norms = gradient_squares(_network(case, width), draws, own)
            values.append(norms.mean(axis=0))
            errors.append(np.maximum(norms.std(axis=0, ddof=1) / np.sqrt(draws), 1e-15))
        # E |dz/db|^2 by layer: the bias terms of (9.28) at rates one.
        mlp = _network(case, 1)
        theory = np.asarray(contributions(mlp, diagonal(mlp, _X).factors)[:, 0, 0])
        every = np.arange(1, _DEPTH + 1)
        parts.append(limits(list(plan.draws), values, errors, theory, "layer", every).drop_vars("z"))
    data = xarray.concat(parts, xarray.Variable("case", list(_CASES)))
    layers, rows = (1, _DEPTH // 2), []
    bound = largest_score_allowed(len(_CASES) * len(layers))
    for (case, (_, C_W)), layer in product(_CASES.items(), layers):
        title = f"{case}, C_W = {C_W:g}: mean square of dz/db at layer {layer} of {_DEPTH}"
        rows.append(limit_row(title, data.sel(case=case, layer=layer), bound))
    # (9.28) of tanh, L = 200, against the published shares.
    rates = [1 / layer for layer in range(1, _LAYERS + 1)]
    mlp = MLP("tanh", _LAYERS, 1, n_in=1, lambda_b=rates, lambda_W=1.0)
    shares = _LAYERS * np.asarray(contributions(mlp, diagonal(mlp, np.ones((1, 1))).factors)[:, :, 0])
    for column, (group, published) in enumerate(_SHARES.items()):
        for layer, value in published.items():
            title = f"tanh, L = {_LAYERS}, rates (9.96): L times the {group} term of layer {layer} in Θ"
            rows.append(computed_row(title, value, shares[layer - 1, column], 6e-4))
    ends = [float(data.theory.sel(layer=1, case=f"relu, {word}")) for word in ("vanishing", "exploding")]
    judgement = "agree" if all(row.agrees is not False for row in rows) else "do NOT all agree"
    verdict = (
        f"Gradients of real networks {judgement} with the product of χ_⊥: over {_DEPTH} layers of ReLU they fall to "
        f"{ends[0]:.2g}, stay, or grow to {ends[1]:.2g}."
    )
    return Result(verdict, tuple(rows), data, _figure)


def _network(case: str, width: int) -> MLP:
    name, C_W = _CASES[case]
    return MLP(name, _DEPTH, width, n_in=_X.shape[1], C_W=C_W)


def gradient_squares(mlp: MLP, draws: int, seed: np.random.SeedSequence) -> FloatArray:
    """|dz/db|^2 of every layer of real networks: (networks, layers)."""
    import torch

    from foretrain.compare.trained.networks import draw_networks, group_size, groups_of

    found = []
    for numbers in groups_of(range(draws), group_size(mlp)):
        networks = draw_networks(mlp, numbers, seed)
        trace = networks.forward(networks.entry(_X))
        fields = networks.sensitivities(trace, torch.ones_like(trace.output))[::-1]
        found.append(np.stack([field.square().sum(dim=(1, 2)).numpy() for field in fields], axis=1))
    return np.concatenate(found)


def _figure(data: xarray.Dataset) -> Figure:
    figure = Figure("Gradients of deep networks, layer by layer", columns=2, size=(13, 5.0))
    layers = figure.panel("real networks extrapolated to n → ∞", "layer", log("mean square of dz/db"))
    widths = figure.panel(
        "first layer, by width (diamonds: extrapolated)", "1 / width", "measured / theory at layer 1"
    )
    for number, (case, own, color) in enumerate(coloured(data, "case")):
        layers.curve(data.layer, own.theory, "-", "", color)
        layers.curve(data.layer, own.limit, "o", case, color, error=own.standard_error, size=4.5)
        first = own.sel(layer=1)
        draw_limit(widths, first, case, color, unit=first.theory.item(), shift=0.015 * (number - 2))
    layers.legend_entry("-", r"theory: product of $\chi_\perp$")
    widths.level(y=1, color=INK)
    widths.level(x=0)
    return figure
