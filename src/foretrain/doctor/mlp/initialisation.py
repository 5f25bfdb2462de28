"""What the layers of an MLP do to signals and gradients, measured and predicted, and the weights they should have.

Differences between inputs and gradients are followed from the first hidden layer's activations to the last one's, so
that neither the size of the inputs nor a deliberately small last layer counts. Measured is this very network;
predicted is the mean over networks with its widths, C_b and C_W: <(s_a - s_b)^2> from the kernel (4.118), gradients
from the product of chi_perp (9.93).

Every layer should pass gradients and small differences on at their size: chi_perp = C_W <s'^2> = 1 at the kernel
which the layer really has (5.56), (9.93). On a critical point with K* > 0 all layers share it; where K* = 0 the
kernel falls slowly towards it, so that C_W runs from 1 / <s'^2> at the first kernel to the critical value. An
activation without critical point is centred by the biases, b = -m sum_j W_j with m its mean, which turns a sigmoid
into a tanh.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foretrain.activations import Activation
from foretrain.doctor.finding import dictionary_code
from foretrain.doctor.mlp.chain import MlpChain
from foretrain.gaussian.nodes import gauss_hermite
from foretrain.support.errors import ForetrainError
from foretrain.support.seeds import Seed, torch_generator
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import Criticality, criticality, susceptibility
from foretrain.theory.flow import flow

Array = NDArray[np.float64]

INPUTS = 3  # of the predictions
_PROBES = 4  # random cotangents per sample
_START = 1.0  # kernel of the first layer where the activation asks for none of its own
_NODES = 128
_STEP = 1e-5  # of numerical slopes


@dataclass(frozen=True, eq=False)
class Signals:
    """Mean squares at the activations of hidden layers 1..L-1.

    ``distance``: of the difference between two inputs; ``gradient``: of a gradient that starts with size one at the
    last hidden layer.
    """

    distance: Array
    gradient: Array

    @property
    def distance_ratio(self) -> float:
        """Size of differences at the last hidden layer over that at the first."""
        return _root_ratio(self.distance[-1], self.distance[0]) if len(self.distance) else 1.0

    @property
    def gradient_ratio(self) -> float:
        """Size of gradients at the first hidden layer over that at the last."""
        return _root_ratio(self.gradient[0], self.gradient[-1]) if len(self.gradient) else 1.0


@dataclass(frozen=True, eq=False)
class Kernels:
    """Predictions for some inputs: K (L, inputs), its deviation between networks, chi (L, inputs), and signals."""

    K: Array
    deviation: Array
    chi_parallel: Array
    chi_perpendicular: Array
    signals: Signals


def measure(chain: MlpChain, seed: Seed) -> Signals:
    """The samples' mean, with random gradients at the last hidden layer; one sample differs from nothing."""
    fields = chain.fields
    hidden = [fields.u(number).double() for number in range(1, fields.depth)]
    distances = [2 * float(one.var(0).mean()) if len(one) > 1 else 0.0 for one in hidden]
    if fields.depth < 2:
        return Signals(np.array(distances), np.empty(0))
    last = fields.u(fields.depth - 1).double()
    source = torch_generator(seed)
    delta = torch.randn(_PROBES, *last.shape, generator=source, dtype=torch.float64).to(last.device)
    delta /= delta.square().sum(-1).mean().sqrt()
    gradients = [1.0]
    for number in range(fields.depth - 1, 1, -1):
        delta = (delta * fields.a(number).double()) @ fields.layer(number).weight.double()
        gradients.append(float(delta.square().sum(-1).mean()))
    return Signals(np.array(distances), np.array(gradients[::-1]))


def predict(mlp: MLP, inputs: Array) -> Kernels:
    """From the flow of the kernel of a few inputs; single networks scatter by V / n_{l-1} + 2 K^2 / n_l."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        whole = flow(mlp, inputs)["K"].values
        # One input at a time: V among several inputs costs much more, and only its diagonal is wanted.
        V = np.stack([flow(mlp, x[None, :], ["V"])["V"].values.ravel() for x in inputs], axis=1)
    K = np.diagonal(whole, axis1=1, axis2=2)
    fan_ins, widths = np.array(mlp.widths[:-1])[:, None], np.array(mlp.widths[1:])[:, None]
    C_W = np.array(mlp.C_W)[:, None]
    chi = susceptibility(mlp.activation, K=K, C_W=np.broadcast_to(C_W, K.shape))
    parallel, perpendicular = np.asarray(chi.parallel), np.asarray(chi.perpendicular)
    deviation = np.sqrt(np.maximum(V, 0) / fan_ins + 2 * K**2 / widths)
    # K_aa + K_bb - 2 K_ab, averaged over pairs of different inputs.
    pairs = len(inputs) * (len(inputs) - 1)
    apart = (K[:, :, None] + K[:, None, :] - 2 * whole).sum((1, 2)) / pairs if pairs else np.zeros(len(K))
    distance = apart[1:] / np.where(C_W[1:, 0] > 0, C_W[1:, 0], 1)
    passed = perpendicular[1:-1].mean(1)
    gradient = np.append(np.cumprod(passed[::-1])[::-1], 1.0) if mlp.depth > 1 else np.empty(0)
    return Kernels(K, deviation, parallel, perpendicular, Signals(distance, gradient))


def _root_ratio(above: float, below: float) -> float:
    return float(np.sqrt(above / below)) if below > 0 else 1.0


@dataclass(frozen=True)
class LayerPlan:
    """What becomes of one layer: its C_W, its C_b (None: biases are multiplied like the weights), the mean m.

    ``kernel`` is that of the layer before it, at which C_W is critical; nan for the first layer.
    """

    name: str
    C_W: float
    C_b: float | None
    centre: float
    kernel: float = field(default=math.nan, compare=False)


@dataclass(frozen=True, eq=False)
class Wanted:
    """The plan of all layers that are trained, and the critical point behind it."""

    layers: tuple[LayerPlan, ...]
    critical: Criticality | None

    @property
    def exists(self) -> bool:
        """Whether the activation has a critical point."""
        return self.critical is not None and self.critical.exists


def find_wanted(chain: MlpChain, fresh: bool) -> Wanted:
    """From the first layer, whose kernel the data set, to the last one, which gives outputs of order one."""
    act = chain.activation
    try:
        found = criticality(act)
    except (ForetrainError, ArithmeticError, ValueError):
        found = None  # a function of the user's own that no rule resolves
    point = None if found is None else found.point
    centred = point is None and chain.has_bias
    C_b = point.C_b if point is not None and chain.has_bias else 0.0
    K = point.K_star if point is not None and point.K_star else _START
    size = float((chain.inputs**2).mean())
    C_W, centre, before = ((K - C_b) / size if size > 0 else 1.0), 0.0, math.nan
    plans = []
    for number, (name, layer) in enumerate(zip(chain.names, chain.fields.layers), start=1):
        last = number == chain.depth
        if layer.trains_weight:
            own_bias = (0.0 if last else _short(C_b)) if fresh else None
            plans.append(LayerPlan(name, _short(C_W), own_bias, _short(centre) if fresh else 0.0, before))
        before = K
        mean, square, slope_square = _moments(act, K)
        centre = mean if centred else 0.0
        C_W = 1 / slope_square
        K = C_b + C_W * (square - centre * mean)
        if number == chain.depth - 1:
            C_W = min(C_W, 1 / (square - centre * mean))
    return Wanted(tuple(plans), found)


def _short(number: float) -> float:
    """As it stands in the code that is shown, so that code and treatment do the same."""
    return float(f"{number:.6g}")


def critical_weights(act: Activation, kernels: Array) -> Array:
    """The C_W at which chi_perp = C_W <s'^2> = 1 (9.93) behind a layer with each of these kernels."""
    return np.array([1 / _moments(act, float(K))[2] for K in kernels])


def _moments(act: Activation, K: float) -> tuple[float, float, float]:
    """<s>, <s^2> and <s'^2> at variance K."""
    nodes, weights = gauss_hermite(_NODES)
    z = np.sqrt(K) * nodes
    step = _STEP * np.sqrt(K)
    values, slopes = act.value(z), (act.value(z + step) - act.value(z - step)) / (2 * step)
    return float(weights @ values), float(weights @ values**2), float(weights @ slopes**2)


def carry_out(model: nn.Module, plans: tuple[LayerPlan, ...]) -> None:
    """Multiply weights to their scale; biases become zero, centring, or of variance C_b."""
    source = torch.Generator().manual_seed(0)
    for plan in plans:
        layer = model.get_submodule(plan.name)
        weight, bias = layer.get_parameter("weight"), layer._parameters.get("bias")
        if not weight.any():
            weight.copy_(torch.randn(weight.shape, generator=source))
        factor = (plan.C_W / weight.shape[1]) ** 0.5 / weight.square().mean().sqrt()
        weight.mul_(factor)
        if bias is None:
            continue
        if plan.C_b is None:
            bias.mul_(factor)
        elif plan.C_b:
            bias.copy_(torch.randn(len(weight), generator=source).to(weight).mul(plan.C_b**0.5))
        else:
            bias.copy_(weight.sum(1).mul(-plan.centre))


def code_for(chain: MlpChain, plans: tuple[LayerPlan, ...]) -> str:
    """The same in Python, without this package."""
    runs: list[tuple[list[str], LayerPlan]] = []  # neighbours that are treated alike, together
    for plan in plans:
        if runs and replace(runs[-1][1], name=plan.name) == plan:
            runs[-1][0].append(plan.name)
        else:
            runs.append(([plan.name], plan))
    rows = []
    for names, plan in runs:
        values = (plan.C_W, plan.C_b or 0.0, plan.centre)
        rows.append(f"{names[0]!r}: {values}" if len(names) == 1 else f"**dict.fromkeys({names}, {values})")
    layers = dict(zip(chain.names, chain.fields.layers))
    draws = any(plan.C_b for plan in plans) or any(not layers[plan.name].weight.any() for plan in plans)
    lines = [
        *dictionary_code("wanted", rows, "layer: (C_W, C_b, mean of the activations before it)"),
        *(["source = torch.Generator().manual_seed(0)"] if draws else []),
        "with torch.no_grad():",
        "    for name, (C_W, C_b, mean) in wanted.items():",
        "        layer = model.get_submodule(name)",
        *(
            [
                "        if not layer.weight.any():",
                "            layer.weight.copy_(torch.randn(layer.weight.shape, generator=source))",
            ]
            if draws
            else []
        ),
        "        factor = (C_W / layer.in_features) ** 0.5 / layer.weight.square().mean().sqrt()",
        "        layer.weight.mul_(factor)",
        *_bias_lines(chain, plans),
    ]
    return "\n".join(lines)


def _bias_lines(chain: MlpChain, plans: tuple[LayerPlan, ...]) -> list[str]:
    if all(layer.bias is None for layer in chain.fields.layers):
        return []
    lines = [] if chain.has_bias else ["        if layer.bias is None:", "            continue"]
    if plans[0].C_b is None:
        return [*lines, "        layer.bias.mul_(factor)"]
    if not any(plan.C_b for plan in plans):
        return [*lines, "        layer.bias.copy_(-mean * layer.weight.sum(1))"]
    return [
        *lines,
        "        layer.bias.zero_()",
        "        if C_b:",
        "            layer.bias.copy_(C_b**0.5 * torch.randn(len(layer.bias), generator=source))",
    ]
