"""Learning rates by the equivalence principle against uniform ones (section 9.4), on real torch networks.

Three rules share the same tangent kernel in the mean, hence the same overall step: the recommended rates, one lambda
for all, and plain gradient descent with one step for every parameter, which is lambda_W = n_{l-1}. What each layer
contributes to the tangent kernel is measured at three widths, extrapolated to infinite width and put beside (9.28);
then networks are trained on two moons by each rule, beside the loss that the frozen tangent kernel predicts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.compare.judging.widths import extrapolation_weights
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import BLUE, INK, ORANGE, RED, new_figure
from foretrain.support.progress import track
from foretrain.support.seeds import generator, integer, spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow
from foretrain.theory.learning_rates import recommended
from foretrain.theory.ntk_shares import contributions, diagonal

if TYPE_CHECKING:
    import torch
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from foretrain.compare.build import Network

Array = NDArray[np.float64]

_DEPTH = 30
_ACTIVATIONS = ("tanh", "relu")
_RULES = ("recommended", "uniform", "plain")
_SHOWN_LAYERS = (1, 5, 15, 30)
_COLORS = {"recommended": BLUE, "uniform": ORANGE, "plain": RED}
_SAMPLES = 24
_STEP = 0.25  # of what the largest eigenvalue of the tangent kernel allows, were all its trace in it


@dataclass(frozen=True)
class Plan:
    """Networks whose kernel is split into layers, and those that are trained."""

    widths: tuple[int, ...]
    draws: tuple[int, ...]  # networks of each width
    steps: int
    trained: int  # networks per rule
    train_width: int


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan((72, 108, 216), (200, 160, 80), 150, 3, 72),
    Scale.PAPER: Plan((120, 240, 480), (3000, 2000, 1000), 1000, 8, 240),
}


class _Measured(NamedTuple):
    """Shares of layers and groups under one rule, extrapolated, with standard errors: (L, 2)."""

    limit: Array
    error: Array


def learning_rate_scaling(plan: Plan, seed: int) -> Result:
    """Shares of the tangent kernel by layer, and training curves, for recommended and other learning rates."""
    X, y = _two_moons(generator(seed))
    shares: dict[tuple[str, str], tuple[Array, _Measured]] = {}
    losses: dict[tuple[str, str], tuple[Array, Array]] = {}
    for name, source in zip(_ACTIVATIONS, spawn(seed, len(_ACTIVATIONS)), strict=True):
        measuring, training = spawn(source, 2)
        networks = {rule: _with_rule(name, rule, plan.train_width, X) for rule in _RULES}
        norms = [
            _gradient_norms(networks["recommended"].replace(width=width), X, draws, own)
            for width, draws, own in zip(
                plan.widths, plan.draws, spawn(measuring, len(plan.widths)), strict=True
            )
        ]
        for rule in _RULES[:2]:
            theory, measured = _theory(networks[rule], X), _extrapolated(networks[rule], plan.widths, norms)
            shares[name, rule] = theory, measured
        losses |= {(name, rule): found for rule, found in _train_all(networks, X, y, plan, training).items()}
    data = _dataset(shares, losses, plan)
    rows = _table(data)
    return Result(_verdict(data, rows), rows, data, partial(_draw, data))


def _two_moons(source: np.random.Generator) -> tuple[Array, Array]:
    """Two interleaved half circles with mean square coordinate one, and targets ±1."""
    angle = np.pi * source.uniform(0, 1, _SAMPLES)
    label = np.where(np.arange(_SAMPLES) < _SAMPLES // 2, 1.0, -1.0)
    x = np.stack([label * np.cos(angle) - 0.5 * label, label * np.sin(angle) - 0.25 * label], axis=1)
    x += 0.05 * source.normal(size=x.shape)
    return x / np.sqrt(np.mean(x**2)), label[:, None]


def _with_rule(name: str, rule: str, width: int, X: Array) -> MLP:
    """A critical network whose rates follow a rule, scaled to the mean tangent kernel of the recommended ones."""
    critical = MLP.critical(name, _DEPTH, width, n_in=X.shape[1])
    if rule == "recommended":
        return recommended(critical).on(critical)
    weights = [1.0] * _DEPTH if rule == "uniform" else [float(fan_in) for fan_in in critical.widths[:-1]]
    other = critical.replace(lambda_b=1.0, lambda_W=weights)
    scale = float(_terms(critical, X).sum() / _terms(other, X).sum())
    return other.replace(lambda_b=scale, lambda_W=[scale * weight for weight in weights])


def _terms(mlp: MLP, X: Array) -> Array:
    """The terms of (9.28) averaged over inputs: (L, 2)."""
    return np.asarray(contributions(mlp, diagonal(mlp, X).factors).mean(axis=2))


def _theory(mlp: MLP, X: Array) -> Array:
    terms = _terms(mlp, X)
    return np.asarray(terms / terms.sum())


def _gradient_norms(mlp: MLP, X: Array, draws: int, seed: np.random.SeedSequence) -> Array:
    """Mean over inputs of |dz/db|^2 and |dz/dW|^2 / n_{l-1} of random networks: (draws, L, 2)."""
    import torch

    from foretrain.compare.build import build

    x = torch.from_numpy(X)
    found = np.empty((draws, mlp.depth, 2))
    for place, own in enumerate(track(spawn(seed, draws), f"width {mlp.hidden_widths[0]}")):
        network = build(mlp, seed=own)
        for parameter in network.parameters():
            parameter.requires_grad_(False)
        found[place] = _norms(network, x)
    return found


def _norms(network: Network, x: torch.Tensor) -> Array:
    """From the sensitivity of the output to each preactivation, for all inputs in one backward pass."""
    import torch

    z = network.preactivations(x.clone().requires_grad_())
    slopes = torch.autograd.grad(z[-1].sum(), z)
    signals = [x, *(network.activation(before) for before in z[:-1])]
    bias = torch.stack([(slope**2).sum(dim=1) for slope in slopes])
    weight = bias * torch.stack([(signal.detach() ** 2).mean(dim=1) for signal in signals])
    return np.asarray(torch.stack([bias.mean(dim=1), weight.mean(dim=1)], dim=1).numpy())


def _extrapolated(mlp: MLP, widths: tuple[int, ...], norms: list[Array]) -> _Measured:
    """Ratios of means at each width, with errors of ratios, and their limit of infinite width."""
    rates = np.stack([mlp.lambda_b, mlp.lambda_W], axis=1)
    values, errors = [], []
    for each in norms:
        terms = rates * each
        total = terms.sum(axis=(1, 2))
        share = terms.mean(axis=0) / total.mean()
        influence = (terms - share * total[:, None, None]) / total.mean()
        values.append(share.ravel())
        errors.append(influence.std(axis=0).ravel() / np.sqrt(len(each)))
    error = np.maximum(np.stack(errors), 1e-15)
    weights = extrapolation_weights(widths[0] / np.array(widths, dtype=float), error)
    limit = (weights * np.stack(values)).sum(axis=0)
    return _Measured(limit.reshape(-1, 2), np.sqrt((weights**2 * error**2).sum(axis=0)).reshape(-1, 2))


def _train_all(
    networks: dict[str, MLP], X: Array, y: Array, plan: Plan, seed: np.random.SeedSequence
) -> dict[str, tuple[Array, Array]]:
    """Losses (networks, steps + 1) of every rule, from the same initial networks, and what the kernel predicts."""
    size = float(_terms(networks["recommended"], X).sum())
    eta = _STEP / (size * len(X))
    seeds = [integer(own) for own in spawn(seed, plan.trained)]
    found: dict[str, tuple[Array, Array]] = {}
    for rule, mlp in networks.items():
        if rule == "uniform" and _rates_agree(mlp, networks["recommended"]):
            found[rule] = found["recommended"]
            continue
        runs = [_train(mlp, X, y, eta, plan.steps, own) for own in track(seeds, f"training, {rule}")]
        found[rule] = np.stack(runs), _kernel_losses(mlp, X, y, eta, plan.steps)
    return found


def _rates_agree(first: MLP, second: MLP) -> bool:
    return np.allclose(first.lambda_b, second.lambda_b) and np.allclose(first.lambda_W, second.lambda_W)


def _train(mlp: MLP, X: Array, y: Array, eta: float, steps: int, seed: int) -> Array:
    import torch

    from foretrain.compare.build import build, parameter_groups

    network = build(mlp, seed=seed)
    optimizer = torch.optim.SGD(parameter_groups(network, mlp, eta=eta))
    x, target, losses = torch.from_numpy(X), torch.from_numpy(y), np.empty(steps + 1)
    for step in range(steps + 1):
        optimizer.zero_grad()
        loss = 0.5 * ((network(x) - target) ** 2).sum()
        losses[step] = loss.item()
        if step < steps:
            loss.backward()
            optimizer.step()
    return losses


def _kernel_losses(mlp: MLP, X: Array, y: Array, eta: float, steps: int) -> Array:
    """Mean loss at infinite width: errors ~ N(-y, K) shrink by 1 - eta Theta at every step (section 10.2)."""
    found = flow(mlp, X, ["K", "Theta"])
    K, Theta = (found[name].sel(layer=mlp.depth).values for name in ("K", "Theta"))
    values, modes = np.linalg.eigh(Theta)
    start = np.diagonal(modes.T @ (K + y @ y.T) @ modes)
    factor = (1 - eta * values)[None] ** (2 * np.arange(steps + 1)[:, None])
    return np.asarray(0.5 * factor @ start)


def _dataset(
    shares: dict[tuple[str, str], tuple[Array, _Measured]],
    losses: dict[tuple[str, str], tuple[Array, Array]],
    plan: Plan,
) -> xarray.Dataset:
    import xarray

    def table(values: list[Array], rules: tuple[str, ...]) -> Array:
        return np.stack(values).reshape(len(_ACTIVATIONS), len(rules), *values[0].shape)

    dims = ("activation", "share_rule", "layer", "group")
    runs = ("activation", "rule", "network", "step")
    return xarray.Dataset(
        {
            "theory": (dims, table([theory for theory, _ in shares.values()], _RULES[:2])),
            "measured": (dims, table([found.limit for _, found in shares.values()], _RULES[:2])),
            "standard_error": (dims, table([found.error for _, found in shares.values()], _RULES[:2])),
            "loss": (runs, table([found for found, _ in losses.values()], _RULES)),
            "kernel_loss": (runs[:2] + runs[3:], table([law for _, law in losses.values()], _RULES)),
        },
        coords={
            "activation": list(_ACTIVATIONS),
            "share_rule": list(_RULES[:2]),
            "rule": list(_RULES),
            "group": ["bias", "weight"],
            "layer": np.arange(1, _DEPTH + 1),
        },
        attrs={"widths": list(plan.widths), "train_width": plan.train_width},
    )


def _table(data: xarray.Dataset) -> tuple[Row, ...]:
    shown = data.sel(layer=list(_SHOWN_LAYERS))
    told = [
        ("tanh", "recommended"),
        ("tanh", "uniform"),
        ("relu", "recommended"),
    ]  # uniform is the same for relu
    bound = largest_score_allowed(2 * len(told) * len(_SHOWN_LAYERS))
    rows = []
    for name, rule in told:
        for group in ("bias", "weight"):
            for layer in _SHOWN_LAYERS:
                entry = shown.sel(activation=name, share_rule=rule, group=group, layer=layer)
                theory, found, error = (float(entry[key]) for key in ("theory", "measured", "standard_error"))
                title = f"{name}, {rule}: {group} share of layer {layer}"
                rows.append(
                    Row(title, theory, found, error, agrees=bool(abs(found - theory) <= bound * error))
                )
    for name in _ACTIVATIONS:
        for rule in _RULES:
            kernel = float(data.kernel_loss.sel(activation=name, rule=rule).isel(step=-1))
            rows.append(
                Row(f"{name}, {rule}: median final loss (frozen kernel)", kernel, _final(data, name, rule))
            )
    gain = _final(data, "tanh", "recommended") / _final(data, "tanh", "uniform")
    rows.append(Row("tanh: final loss, recommended over uniform (at most)", 1.0, gain, agrees=gain < 1))
    spread = float(data.theory.sel(activation="relu", share_rule="uniform").max() * 2 * _DEPTH)
    rows.append(
        Row("relu: largest share times 2 L, uniform rates", 1.0, spread, agrees=abs(spread - 1) < 1e-9)
    )
    return tuple(rows)


def _final(data: xarray.Dataset, name: str, rule: str) -> float:
    """The median over networks, since single ones may spike at the last step."""
    return float(data.loss.sel(activation=name, rule=rule).isel(step=-1).median())


def _verdict(data: xarray.Dataset, rows: tuple[Row, ...]) -> str:
    shares = [row for row in rows if "share of layer" in row.quantity]
    agree = sum(row.agrees is True for row in shares)
    tanh = {rule: _final(data, "tanh", rule) for rule in _RULES}
    relu = {rule: _final(data, "relu", rule) for rule in _RULES}
    return (
        f"{agree} of {len(shares)} measured shares agree with (9.28); with equal tangent kernels, tanh ends at loss "
        f"{tanh['recommended']:.3g} with the recommended rates, {tanh['uniform']:.3g} with uniform and "
        f"{tanh['plain']:.3g} with plain ones, relu, whose recommended rates are uniform, at "
        f"{relu['recommended']:.3g}, plain {relu['plain']:.3g}."
    )


def _draw(data: xarray.Dataset) -> Figure:
    title = f"Learning rates by the equivalence principle, networks of depth {_DEPTH}"
    figure, panels = new_figure(title, 2, 3, (15, 8))
    for row, name in enumerate(_ACTIVATIONS):
        for column, group in enumerate(("bias", "weight")):
            panel = panels[3 * row + column]
            _draw_shares(panel, data.sel(activation=name, group=group))
            panel.set_title(f"{name}: {group} shares of the tangent kernel", fontsize=11)
        _draw_losses(panels[3 * row + 2], data.sel(activation=name))
        panels[3 * row + 2].set_title(f"{name}: full-batch gradient descent on two moons", fontsize=11)
    return figure


def _draw_shares(panel: Axes, data: xarray.Dataset) -> None:
    for rule in _drawn_rules(data.theory, "share_rule", _RULES[:2]):
        own = data.sel(share_rule=rule.split(",")[0])
        color = _COLORS[rule.split(",")[0]]
        panel.plot(own.layer, _DEPTH * own.theory, color=color, linewidth=1.6)
        panel.errorbar(
            own.layer,
            _DEPTH * own.measured,
            _DEPTH * own.standard_error,
            fmt="o",
            color=color,
            markersize=3.5,
            markerfacecolor="white",
            elinewidth=0.9,
            label=rule,
        )
    panel.plot([], [], color=INK, label="theory (9.28)")
    panel.set(xlabel="layer", ylabel="share times depth", ylim=(0, 1.3 * panel.get_ylim()[1]))
    panel.legend(frameon=False, fontsize=9, loc="upper left", ncols=3)


def _drawn_rules(values: xarray.DataArray, dim: str, rules: tuple[str, ...]) -> list[str]:
    """Names of the curves to draw: the uniform rule joins the recommended one where both are the same."""
    first, second = (values.sel({dim: rule}).values for rule in rules[:2])
    if np.allclose(first, second):
        return ["recommended, uniform", *rules[2:]]
    return list(rules)


def _draw_losses(panel: Axes, data: xarray.Dataset) -> None:
    for rule in _drawn_rules(data.loss, "rule", _RULES):
        own, color = data.sel(rule=rule.split(",")[0]), _COLORS[rule.split(",")[0]]
        for place, run in enumerate(own.loss.values):
            panel.plot(run, color=color, linewidth=1.3, label=rule if not place else None)
        panel.plot(own.kernel_loss, ":", color=color, linewidth=1.3)
    panel.plot([], [], ":", color=INK, label="infinite width, mean")
    panel.set(xlabel="step", ylabel="half the sum of squares", yscale="log")
    panel.legend(frameon=False, fontsize=9)
