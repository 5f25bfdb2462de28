"""What each layer gives to gradients and to the tangent kernel, and the learning rates that follow (section 9.4)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.experiments.effective_theory.width_limits import WidthPlan, infinite_width, limits
from foretrain.experiments.judgements import agreeing, computed_row, limit_row
from foretrain.experiments.networks import descend
from foretrain.experiments.pictures import coloured, draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, INK, ORANGE, RED, Axis, Figure, labelled, log
from foretrain.support.progress import track
from foretrain.support.seeds import generator, integer, spawn, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.flow import flow
from foretrain.theory.learning_rates import recommended
from foretrain.theory.ntk_shares import contributions, diagonal

if TYPE_CHECKING:
    import torch

    from foretrain.compare.build import Network

PLANS: dict[str, Any] = {}

_GRADIENT_DEPTH = 10
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


PLANS["exploding_gradients"] = plans(
    quick=WidthPlan({32: 3_000, 64: 1_500, 128: 600}), paper=WidthPlan({64: 30_000, 128: 30_000, 256: 15_000})
)


def exploding_gradients(plan: WidthPlan, seed: int) -> Result:
    """Exploding and vanishing gradients, and who contributes to the tangent kernel of a deep network (section 9.4).

    The mean square of dz/db of a layer is the product of chi_perp over the layers above it (9.93): one at
    criticality, exponential off it. Real networks are put beside that product, and beside reference shares of
    layers in the tangent kernel of a network of two hundred layers at the rates of the equivalence principle (9.96).
    """
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
        every = np.arange(1, _GRADIENT_DEPTH + 1)
        parts.append(limits(list(plan.draws), values, errors, theory, "layer", every).drop_vars("z"))
    data = xr.concat(parts, xr.Variable("case", list(_CASES)))
    layers, rows = (1, _GRADIENT_DEPTH // 2), []
    bound = largest_score_allowed(len(_CASES) * len(layers))
    for (case, (_, C_W)), layer in product(_CASES.items(), layers):
        title = f"{case}, C_W = {C_W:g}: mean square of dz/db at layer {layer} of {_GRADIENT_DEPTH}"
        rows.append(limit_row(title, data.sel(case=case, layer=layer), bound))
    # The terms of (9.28) for tanh and L = 200 are held against reference shares.
    rates = [1 / layer for layer in range(1, _LAYERS + 1)]
    mlp = MLP("tanh", _LAYERS, 1, n_in=1, lambda_b=rates, lambda_W=1.0)
    shares = _LAYERS * np.asarray(contributions(mlp, diagonal(mlp, np.ones((1, 1))).factors)[:, :, 0])
    for column, (group, reference) in enumerate(_SHARES.items()):
        for layer, value in reference.items():
            title = f"tanh, L = {_LAYERS}, rates (9.96): L times the {group} term of layer {layer} in Θ"
            rows.append(computed_row(title, value, shares[layer - 1, column], 6e-4))
    ends = [float(data.theory.sel(layer=1, case=f"relu, {word}")) for word in ("vanishing", "exploding")]
    judgement = "agree" if all(row.agrees is not False for row in rows) else "do NOT all agree"
    verdict = (
        f"Gradients of real networks {judgement} with the product of χ_⊥: over {_GRADIENT_DEPTH} layers of "
        f"ReLU they fall to {ends[0]:.2g}, stay, or grow to {ends[1]:.2g}."
    )
    return Result(verdict, tuple(rows), data, _gradient_figure)


def _network(case: str, width: int) -> MLP:
    name, C_W = _CASES[case]
    return MLP(name, _GRADIENT_DEPTH, width, n_in=_X.shape[1], C_W=C_W)


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


def _gradient_figure(data: xr.Dataset) -> Figure:
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


_RATE_DEPTH = 30
_ACTIVATIONS = ("tanh", "relu")
_COLORS = {"recommended": BLUE, "uniform": ORANGE, "plain": RED}
_RULES = tuple(_COLORS)
_SHARE_RULES = _RULES[:2]
_GROUPS = ("bias", "weight")
_SHOWN_LAYERS = (1, 5, 15, 30)
_SAMPLES = 24
_STEP = 0.25  # of what the largest eigenvalue of the tangent kernel allows, were all its trace in it


@dataclass(frozen=True)
class RatePlan:
    """Networks whose kernel is split into layers, and those that are trained."""

    widths: tuple[int, ...]
    draws: tuple[int, ...]  # networks of each width
    steps: int
    trained: int  # networks per rule
    train_width: int


PLANS["learning_rate_scaling"] = plans(
    quick=RatePlan((72, 108, 216), (200, 160, 80), 150, 3, 72),
    paper=RatePlan((120, 240, 480), (3000, 2000, 1000), 1000, 8, 240),
)


def learning_rate_scaling(plan: RatePlan, seed: int) -> Result:
    """Learning rates by the equivalence principle against uniform ones (section 9.4), on real torch networks.

    Three rules share the same tangent kernel in the mean, hence the same overall step: the recommended rates, one
    lambda for all, and plain gradient descent with one step for every parameter, which is lambda_W = n_{l-1}. What
    each layer contributes to the tangent kernel is measured at three widths, extrapolated to infinite width and put
    beside (9.28); then networks are trained on two moons by each rule, beside the loss that the frozen tangent
    kernel predicts.
    """
    X, y = _two_moons(generator(seed))
    shares, losses = [], []
    for name, source in with_seeds(_ACTIVATIONS, seed):
        measuring, training = spawn(source, 2)
        networks = {rule: _with_rule(name, rule, plan.train_width, X) for rule in _RULES}
        norms = [
            _gradient_norms(networks["recommended"].replace(width=width), X, draws, own)
            for (width, draws), own in with_seeds(zip(plan.widths, plan.draws, strict=True), measuring)
        ]
        for mlp in (networks[rule] for rule in _SHARE_RULES):
            terms = _terms(mlp, X)
            shares.append((terms / terms.sum(), *_extrapolated_shares(mlp, plan.widths, norms)))
        losses += _train_all(networks, X, y, plan, training)

    def by_activation(values: tuple[FloatArray, ...]) -> FloatArray:
        return np.stack(values).reshape(len(_ACTIVATIONS), -1, *values[0].shape)

    names, dims = ("theory", "measured", "standard_error"), ("activation", "share_rule", "layer", "group")
    columns = {key: (dims, by_activation(each)) for key, each in zip(names, zip(*shares, strict=True))}
    loss, kernel_loss = map(by_activation, zip(*losses, strict=True))
    data = labelled(
        {
            **columns,
            "loss": ("activation rule network step", loss),
            "kernel_loss": ("activation rule step", kernel_loss),
        },
        {"widths": list(plan.widths), "train_width": plan.train_width},
        activation=list(_ACTIVATIONS),
        share_rule=list(_SHARE_RULES),
        rule=list(_RULES),
        group=list(_GROUPS),
        layer=np.arange(1, _RATE_DEPTH + 1),
    )
    rows = _table(data)
    measured = agreeing([row for row in rows if "share of layer" in row.quantity])
    tanh, relu = ({rule: _final(data, name, rule) for rule in _RULES} for name in _ACTIVATIONS)
    verdict = (
        f"{measured} measured shares agree with (9.28); with equal tangent kernels, tanh ends at loss "
        f"{tanh['recommended']:.3g} with the recommended rates, {tanh['uniform']:.3g} with uniform and "
        f"{tanh['plain']:.3g} with plain ones, relu, whose recommended rates are uniform, at "
        f"{relu['recommended']:.3g}, plain {relu['plain']:.3g}."
    )
    return Result(verdict, rows, data, _rate_figure)


def _gradient_norms(mlp: MLP, X: FloatArray, draws: int, seed: np.random.SeedSequence) -> FloatArray:
    """Mean over inputs of |dz/db|^2 and |dz/dW|^2 / n_{l-1} of random networks: (draws, L, 2)."""
    import torch

    from foretrain.compare.build import build

    found = []
    for own in track(spawn(seed, draws), f"width {mlp.hidden_widths[0]}"):
        network = build(mlp, seed=own)
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        found.append(_norms(network, torch.from_numpy(X)))
    return np.array(found)


def _two_moons(source: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Two interleaved half circles with mean square coordinate one, and targets ±1."""
    angle = np.pi * source.uniform(0, 1, _SAMPLES)
    label = np.where(np.arange(_SAMPLES) < _SAMPLES // 2, 1.0, -1.0)
    x = np.stack([label * np.cos(angle) - 0.5 * label, label * np.sin(angle) - 0.25 * label], axis=1)
    x += 0.05 * source.normal(size=x.shape)
    return x / np.sqrt(np.mean(x**2)), label[:, None]


def _with_rule(name: str, rule: str, width: int, X: FloatArray) -> MLP:
    """A critical network whose rates follow a rule, scaled to the mean tangent kernel of the recommended ones."""
    critical = MLP.critical(name, _RATE_DEPTH, width, n_in=X.shape[1])
    if rule == "recommended":
        return recommended(critical).on(critical)
    weights = [1.0] * _RATE_DEPTH if rule == "uniform" else [float(fan_in) for fan_in in critical.widths[:-1]]
    other = critical.replace(lambda_b=1.0, lambda_W=weights)
    scale = float(_terms(critical, X).sum() / _terms(other, X).sum())
    return other.replace(lambda_b=scale, lambda_W=[scale * weight for weight in weights])


def _terms(mlp: MLP, X: FloatArray) -> FloatArray:
    """The terms of (9.28) averaged over inputs: (L, 2)."""
    return np.asarray(contributions(mlp, diagonal(mlp, X).factors).mean(axis=2))


def _norms(network: Network, x: torch.Tensor) -> FloatArray:
    """From the sensitivity of the output to each preactivation, for all inputs in one backward pass."""
    import torch

    z = network.preactivations(x.clone().requires_grad_())
    slopes = torch.autograd.grad(z[-1].sum(), z)
    signals = [x, *(network.activation(before) for before in z[:-1])]
    bias = torch.stack([(slope**2).sum(dim=1) for slope in slopes])
    weight = bias * torch.stack([(signal.detach() ** 2).mean(dim=1) for signal in signals])
    return np.asarray(torch.stack([bias.mean(dim=1), weight.mean(dim=1)], dim=1).numpy())


def _extrapolated_shares(
    mlp: MLP, widths: tuple[int, ...], norms: list[FloatArray]
) -> tuple[FloatArray, FloatArray]:
    """Shares of layers and groups as ratios of means, in the limit of infinite width, and their errors: (L, 2)."""
    rates = np.stack([mlp.lambda_b, mlp.lambda_W], axis=1)
    values, errors = [], []
    for each in norms:
        terms = rates * each
        total = terms.sum(axis=(1, 2))
        share = terms.mean(axis=0) / total.mean()
        influence = (terms - share * total[:, None, None]) / total.mean()
        values.append(share.ravel())
        errors.append(influence.std(axis=0).ravel() / np.sqrt(len(each)))
    limit, error = infinite_width(widths, np.stack(values), np.maximum(np.stack(errors), 1e-15))
    return limit.reshape(-1, 2), error.reshape(-1, 2)


def _train_all(
    networks: dict[str, MLP], X: FloatArray, y: FloatArray, plan: RatePlan, seed: np.random.SeedSequence
) -> list[tuple[FloatArray, FloatArray]]:
    """By rule, losses (networks, steps + 1) from the same initial networks, and what the kernel predicts."""
    import torch

    from foretrain.compare.build import build, parameter_groups

    best = networks["recommended"]
    eta = _STEP / (float(_terms(best, X).sum()) * len(X))
    seeds = [integer(own) for own in spawn(seed, plan.trained)]
    found: list[tuple[FloatArray, FloatArray]] = []
    for rule, mlp in networks.items():
        same = np.allclose(mlp.lambda_b, best.lambda_b) and np.allclose(mlp.lambda_W, best.lambda_W)
        if rule == "uniform" and same:
            found.append(found[0])
            continue
        losses, x, target = np.empty((plan.trained, plan.steps + 1)), torch.from_numpy(X), torch.from_numpy(y)
        for run, own in enumerate(track(seeds, f"training, {rule}")):
            network = build(mlp, seed=own)
            optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta=eta))
            half = partial(_half_of_squares, network, x, target)
            losses[run] = descend(optimizer, half, plan.steps + 1)
        found.append((losses, _kernel_losses(mlp, X, y, eta, plan.steps)))
    return found


def _half_of_squares(network: Network, x: torch.Tensor, target: torch.Tensor) -> Any:
    return 0.5 * ((network(x) - target) ** 2).sum()


def _kernel_losses(mlp: MLP, X: FloatArray, y: FloatArray, eta: float, steps: int) -> FloatArray:
    """Mean loss at infinite width: errors ~ N(-y, K) shrink by 1 - eta Theta at every step (section 10.2)."""
    found = flow(mlp, X, ["K", "Theta"])
    K, Theta = (found[name].sel(layer=mlp.depth).values for name in ("K", "Theta"))
    values, modes = np.linalg.eigh(Theta)
    start = np.diagonal(modes.T @ (K + y @ y.T) @ modes)
    factor = (1 - eta * values)[None] ** (2 * np.arange(steps + 1)[:, None])
    return np.asarray(0.5 * factor @ start)


def _table(data: xr.Dataset) -> tuple[Row, ...]:
    # Uniform rates are the same as recommended ones for relu.
    cases = (("tanh", "recommended"), ("tanh", "uniform"), ("relu", "recommended"))
    bound = largest_score_allowed(2 * len(cases) * len(_SHOWN_LAYERS))
    rows = []
    for (name, rule), group, layer in product(cases, _GROUPS, _SHOWN_LAYERS):
        entry = data.sel(activation=name, share_rule=rule, group=group, layer=layer)
        title = f"{name}, {rule}: {group} share of layer {layer}"
        rows.append(limit_row(title, entry, bound, ("theory", "measured", "standard_error")))
    for name, rule in product(_ACTIVATIONS, _RULES):
        kernel = float(data.kernel_loss.sel(activation=name, rule=rule).isel(step=-1))
        title = f"{name}, {rule}: median final loss (frozen kernel)"
        rows.append(Row(title, kernel, _final(data, name, rule)))
    gain = _final(data, "tanh", "recommended") / _final(data, "tanh", "uniform")
    rows.append(Row("tanh: final loss, recommended over uniform (at most)", 1.0, gain, agrees=gain < 1))
    spread = float(data.theory.sel(activation="relu", share_rule="uniform").max() * 2 * _RATE_DEPTH)
    return (*rows, computed_row("relu: largest share times 2 L, uniform rates", 1.0, spread, 1e-9))


def _final(data: xr.Dataset, name: str, rule: str) -> float:
    """The median over networks, since single ones may spike at the last step."""
    return float(data.loss.sel(activation=name, rule=rule).isel(step=-1).median())


def _rate_figure(data: xr.Dataset) -> Figure:
    title = f"Learning rates by the equivalence principle, networks of depth {_RATE_DEPTH}"
    figure = Figure(title, columns=3, size=(15, 8))
    for name in _ACTIVATIONS:
        own = data.sel(activation=name)
        for group in _GROUPS:
            shares, y = own.sel(group=group), Axis("share times depth", low=0, room=0.12)
            title = f"{name}: {group} shares of the tangent kernel"
            panel = figure.panel(title, x="layer", y=y, legend_columns=3)
            for rule, label in _drawn_rules(shares.theory.rename(share_rule="rule")).items():
                one, color = shares.sel(share_rule=rule), _COLORS[rule]
                panel.curve(one.layer, _RATE_DEPTH * one.theory, "-", "", color)
                times, error = _RATE_DEPTH * one.measured, _RATE_DEPTH * one.standard_error
                panel.curve(one.layer, times, "o", label, color, error=error, size=3.5, hollow=True)
            panel.legend_entry("-", "theory (9.28)")
        title = f"{name}: full-batch gradient descent on two moons"
        panel = figure.panel(title, x="step", y=log("half the sum of squares"))
        for rule, label in _drawn_rules(own.loss).items():
            one, color = own.sel(rule=rule), _COLORS[rule]
            for run in one.loss.values:
                panel.curve(data.step, run, "-", label, color, width=1.3)
            panel.curve(data.step, one.kernel_loss, ":", "", color, width=1.3)
        panel.legend_entry(":", "infinite width, mean")
    return figure


def _drawn_rules(values: xr.DataArray) -> dict[str, str]:
    """Rules to draw and their labels: the uniform rule joins the recommended one where both are the same."""
    labels = {str(rule): str(rule) for rule in values.rule.values}
    if np.allclose(values.sel(rule="recommended"), values.sel(rule="uniform")):
        labels["recommended"] = f"recommended, {labels.pop('uniform')}"
    return labels
