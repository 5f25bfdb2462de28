"""The initialisation that an MLP should have: every layer passes gradients and small differences on at their size.

That is chi_perp = C_W <s'^2> = 1 at the kernel which the layer really has (5.56), (9.93). On a critical point with
K* > 0 all layers share it; where K* = 0 the kernel falls slowly towards it, so that C_W runs from 1 / <s'^2> at the
first kernel to the critical value. An activation without critical point is centred by the biases, b = -m sum_j W_j
with m its mean, which turns a sigmoid into a tanh.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foretrain.activations import Activation
from foretrain.doctor.finding import dictionary_code
from foretrain.doctor.mlp.chain import MlpChain
from foretrain.gaussian.nodes import gauss_hermite
from foretrain.support.errors import ForetrainError
from foretrain.theory.criticality import Criticality, criticality

Array = NDArray[np.float64]

_START = 1.0  # kernel of the first layer where the activation asks for none of its own
_NODES = 128
_STEP = 1e-5  # of numerical slopes


@dataclass(frozen=True)
class LayerPlan:
    """What becomes of one layer: its C_W, its C_b (None: biases are multiplied like the weights), the mean m."""

    name: str
    C_W: float
    C_b: float | None
    centre: float


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
    C_W, centre = ((K - C_b) / size if size > 0 else 1.0), 0.0
    plans = []
    for number, (name, layer) in enumerate(zip(chain.names, chain.fields.layers), start=1):
        last = number == chain.depth
        if layer.trains_weight:
            own_bias = (0.0 if last else _short(C_b)) if fresh else None
            plans.append(LayerPlan(name, _short(C_W), own_bias, _short(centre) if fresh else 0.0))
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
