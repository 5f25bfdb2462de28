"""The MLP inside a torch model, what its layers do to signals and gradients, and the weights they should have.

A chain is Linear - sigma - Linear - ... with one elementwise sigma; what comes before its first layer (flattening,
convolutions, an embedding) makes its inputs, and what comes after its last one sees nothing else.

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

import copy
import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.doctor.finding import dictionary_code
from foretrain.doctor.setup import Case, once
from foretrain.empirical.autograd_graph.chain import Chain, check_chain_model, record_run
from foretrain.gaussian.nodes import gauss_hermite
from foretrain.support.errors import ForetrainError, NotSupportedError
from foretrain.support.seeds import Seed, torch_generator
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import Criticality, criticality, susceptibility
from foretrain.theory.flow import flow

Array = NDArray[np.float64]

_SAMPLES = 64
_CATALOGUE = (
    "linear",
    "relu",
    "tanh",
    "gelu",
    "gelu_tanh",
    "swish",
    "sigmoid",
    "erf",
    "sin",
    "selu",
    "elu",
    "softplus",
    "softsign",
    "mish",
)
_ALIKE = 1e-5  # values of two activations that differ by less, in units of the largest, are the same function
_REACH = 3.0  # arguments at which activations are told apart
_LEAKY = (1e-4, 0.999)  # slopes of a leaky rectifier


@dataclass(frozen=True, eq=False)
class MlpChain:
    """Layers 1..L of the MLP inside a model, with the fields of some samples in it.

    ``names`` are those of the model's own modules. ``whole``: all that the model trains belongs to the chain.
    """

    fields: Chain
    names: tuple[str, ...]
    activation: Activation
    whole: bool

    @property
    def depth(self) -> int:
        """The number L of layers of weights."""
        return self.fields.depth

    @property
    def widths(self) -> tuple[int, ...]:
        """n_0..n_L."""
        return self.fields.widths

    @cached_property
    def C_W(self) -> Array:
        """n_{l-1} times the mean square of the weights, layer by layer (2.20)."""
        layers = self.fields.layers
        return np.array([float(one.weight.double().square().mean()) * one.weight.shape[1] for one in layers])

    @cached_property
    def C_b(self) -> Array:
        """The mean square of the biases, layer by layer (2.19); 0 without a bias."""
        biases = [one.bias for one in self.fields.layers]
        return np.array([0.0 if bias is None else float(bias.double().square().mean()) for bias in biases])

    @cached_property
    def has_bias(self) -> bool:
        """Whether every layer has one."""
        return all(one.bias is not None for one in self.fields.layers)

    @cached_property
    def inputs(self) -> Array:
        """What enters the first layer, (samples, n_0)."""
        return np.asarray(self.fields.u(0).double().cpu().numpy())

    @cached_property
    def kernels(self) -> Array:
        """Mean square preactivation of every layer and sample, (L, samples)."""
        values = [v.double().square().mean(1).cpu().numpy() for v in self.fields.preactivations]
        return np.asarray(values)

    @cached_property
    def mlp(self) -> MLP:
        """The theory's network with these widths and variances."""
        return MLP(
            self.activation,
            depth=self.depth,
            width=list(self.widths[1:-1]) or None,
            n_in=self.widths[0],
            n_out=self.widths[-1],
            C_b=list(self.C_b),
            C_W=list(self.C_W),
        )


@once
def chain_of(case: Case) -> MlpChain:
    """The MLP that the model is, or the MLP that it ends with; NotSupportedError says why there is none."""
    model = copy.deepcopy(case.model)
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    owned = {id(p) for module in layers for p in (module.weight, module.bias) if p is not None}
    whole = all(id(p) in owned for p in model.parameters() if p.requires_grad)
    for parameter in model.parameters():
        if id(parameter) not in owned:
            parameter.requires_grad_(False)
    fields, reason = (
        None,
        (
            "the linear layers do not simply follow one another (normalisation, skip connections, sequences or "
            "shared layers lie between), so the theory of MLPs does not apply."
        ),
    )
    try:
        run = record_run(model, case.chosen(_SAMPLES).x)
        plain = [call for call in run.calls if not list(call.module.children())]  # not parametrised
        if len(plain) < (1 if whole else 2):
            reason = "the model has no chain of linear layers, so the theory of MLPs does not apply."
        elif run.goes_around():
            reason = (
                "a skip connection leads around the last linear layer, so the model is no chain of layers."
            )
        else:
            check_chain_model(model)
            fields = run.chain(to_the_end=False)
    except ForetrainError as error:
        raise NotSupportedError(reason) from error
    if fields is None:
        raise NotSupportedError(reason)
    names = tuple("" if layer.module is model else layer.name for layer in fields.layers)
    return MlpChain(fields, names, _common_activation(fields), whole)


def _common_activation(fields: Chain) -> Activation:
    """The one function between all layers; a chain of a single layer has none, which is linear."""
    if fields.depth == 1:
        return find_activation("linear")
    # Arguments of order one and what the model's own code makes of them: the signals may be too small to tell.
    pairs = list[tuple[Array, Array]]()
    for number in range(1, fields.depth):
        like = fields.v(number)
        z = torch.linspace(-_REACH, _REACH, like.numel()).to(like).reshape(like.shape)
        with torch.no_grad():
            s = fields.activate(number, z)
        pairs.append((z.double().cpu().numpy().ravel(), s.double().cpu().numpy().ravel()))
    for candidate in _candidates(*pairs[0], fields.model):
        if all(_gives(candidate, *pair) for pair in pairs):
            return candidate
    raise NotSupportedError(
        "the functions between the linear layers differ or are not known, so they share no critical initialisation."
    )


def _candidates(z: Array, s: Array, model: nn.Module) -> Iterator[Activation]:
    yield from (find_activation(name) for name in _CATALOGUE)
    steepest = int(np.argmin(z))
    slope = float(s[steepest] / z[steepest]) if z[steepest] < 0 else 0.0
    if _LEAKY[0] < slope < _LEAKY[1]:
        yield find_activation("leaky_relu", slope=round(slope, 6))
    leaves = [module for module in model.modules() if not list(module.children())]
    kinds = {type(module): module for module in leaves if not list(module.parameters())}
    for module in kinds.values():
        try:
            yield find_activation(module)
        except (ForetrainError, RuntimeError, TypeError, ValueError):  # a pooling, say: no activation
            continue


def _gives(candidate: Activation, z: Array, s: Array) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            values = candidate.value(z)
    except (ForetrainError, RuntimeError, TypeError, ValueError):
        return False
    scale = float(np.abs(s).max())
    return bool(np.abs(values - s).max() <= _ALIKE * scale) if scale else not values.any()


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
