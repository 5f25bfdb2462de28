"""The MLP inside a torch model: its layers, activation and initialisation variances, found by running it.

A chain is Linear - sigma - Linear - ... with one elementwise sigma; what comes before its first layer (flattening,
convolutions, an embedding) makes its inputs, and what comes after its last one sees nothing else.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.doctor.setup import Case, once
from foretrain.empirical.fields.chain import Chain
from foretrain.empirical.fields.recognition import find_chain
from foretrain.support.errors import ForetrainError, NotSupportedError
from foretrain.theory.architecture import MLP

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
    x = case.chosen(_SAMPLES).x
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    owned = {id(p) for module in layers for p in (module.weight, module.bias) if p is not None}
    whole = all(id(p) in owned for p in model.parameters() if p.requires_grad)
    for parameter in model.parameters():
        if id(parameter) not in owned:
            parameter.requires_grad_(False)
    called = _called_leaves(model, x)
    linears = [module for module in called if isinstance(module, nn.Linear)]
    if len(linears) < (1 if whole else 2):
        raise NotSupportedError(
            "the model has no chain of linear layers, so the theory of MLPs does not apply."
        )
    _check_rest(model, linears[-1], x)
    kind = next(model.parameters()).dtype
    try:
        fields = find_chain(_UpToLast(model, linears[-1], x), x.to(kind).reshape(len(x), -1))
    except ForetrainError as error:
        raise NotSupportedError(
            "the linear layers do not simply follow one another (normalisation, skip connections, sequences or "
            "shared layers lie between), so the theory of MLPs does not apply."
        ) from error
    names = tuple(layer.name.removeprefix("model").removeprefix(".") for layer in fields.layers)
    return MlpChain(fields, names, _common_activation(fields, called), whole)


class _UpToLast(nn.Module):
    """The model up to its last linear layer, as a function of vectors in the precision of the weights."""

    def __init__(self, model: nn.Module, last: nn.Linear, like: Tensor) -> None:
        super().__init__()
        self.model, self.kind, self.shape = model, like.dtype, like.shape[1:]
        self._last = [last]  # in a list, so that it is not registered twice

    def forward(self, x: Tensor) -> Tensor:
        """What the last layer gives."""
        held: list[Tensor] = []
        keep = self._last[0].register_forward_hook(lambda module, given, output: held.append(output.clone()))
        try:
            self.model(x.reshape(len(x), *self.shape).to(self.kind))
        finally:
            keep.remove()
        return held[-1]


def _called_leaves(model: nn.Module, x: Tensor) -> list[nn.Module]:
    """Modules without children in the order of their calls."""
    called: list[nn.Module] = []

    def note(module: nn.Module, given: Any, output: Any) -> None:
        called.append(module)

    leaves = [module for module in model.modules() if not list(module.children())]
    handles = [module.register_forward_hook(note) for module in leaves]
    try:
        with torch.no_grad():
            model(x[:2])
    finally:
        for handle in handles:
            handle.remove()
    return called


def _check_rest(model: nn.Module, last: nn.Linear, x: Tensor) -> None:
    """The output depends on the last linear layer alone: no skip connection leads around it."""
    given = x[:2].clone()
    if given.is_floating_point():
        given.requires_grad_()
    handle = last.register_forward_hook(lambda module, args, output: output.detach())
    try:
        with torch.enable_grad():
            output = model(given)
    finally:
        handle.remove()
    if output.requires_grad:
        raise NotSupportedError(
            "a skip connection leads around the last linear layer, so the model is no chain of layers."
        )


def _common_activation(fields: Chain, called: list[nn.Module]) -> Activation:
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
    for candidate in _candidates(*pairs[0], called):
        if all(_gives(candidate, *pair) for pair in pairs):
            return candidate
    raise NotSupportedError(
        "the functions between the linear layers differ or are not known, so they share no critical initialisation."
    )


def _candidates(z: Array, s: Array, called: list[nn.Module]) -> Iterator[Activation]:
    yield from (find_activation(name) for name in _CATALOGUE)
    steepest = int(np.argmin(z))
    slope = float(s[steepest] / z[steepest]) if z[steepest] < 0 else 0.0
    if _LEAKY[0] < slope < _LEAKY[1]:
        yield find_activation("leaky_relu", slope=round(slope, 6))
    kinds = {type(module): module for module in called if not any(True for _ in module.parameters())}
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
