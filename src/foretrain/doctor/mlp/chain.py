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

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.doctor.setup import Case, once
from foretrain.empirical.autograd_graph.chain import Chain, check_chain_model, record_run
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
