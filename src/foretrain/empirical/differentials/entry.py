"""``dntk`` and ``ddntk``: how the tangent kernel of any torch model begins to change, exactly."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from operator import index
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.chain import Chain, find_chain
from foretrain.empirical.differentials.autodiff import BACKWARD, Directions, derivative, gradients_of_changes
from foretrain.empirical.differentials.layered import Rates as LayerRates
from foretrain.empirical.differentials.layered import Stack, with_derivatives
from foretrain.empirical.differentials.layered_tensors import LayeredDifferentials
from foretrain.empirical.differentials.result import Differential, SecondDifferentials, by_index
from foretrain.empirical.kernel_operator.passes import Linearised
from foretrain.empirical.models.batches import as_batch
from foretrain.empirical.models.model import Output, unchanged
from foretrain.empirical.models.parameters import Rates
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, prepare
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import available_bytes, require_memory

_WAY_OUT = "name fewer `samples=` or `outputs=`"
_LAYERED = "layer by layer"  # the route of chains
_COPIES = 8  # of the changes of fields of all layers
_SHARE = 0.4  # of the available memory


class Options(TypedDict, total=False):
    """What ``dntk``, ``ddntk`` and ``step_prediction`` take besides a model and its samples."""

    outputs: Sequence[int] | None
    samples: Sequence[int] | None
    output: Output
    parameters: Any
    rates: Rates
    batch_axis: int
    shared: Collection[str | int]


def dntk(model: Any, x: Any, **options: Unpack[Options]) -> Differential:
    """The dNTK: second derivatives of outputs along the gradients of two others (11.8), (N0, N1, N2, C0, C1, C2).

    dH_012 = Σ λ_μ λ_ν d²z_0/dθ_μ dθ_ν · dz_1/dθ_μ · dz_2/dθ_ν. Index 0 is the output that is differentiated twice,
    and the tensor is symmetric in 1 and 2. No matrix of parameters by parameters is formed.

    Parameters
    ----------
    model, x, output, parameters, batch_axis, shared
        As for ``ntk``.
    outputs, samples
        Numbers of the outputs and of the samples that count, for all indices; by default all.
    rates
        Learning rates λ that weigh the parameters, as for ``ntk``: a number, {pattern: rate}, an optimizer's
        ``param_groups``, or a function ``(name, tensor) -> rate``. By default 1.

    Examples
    --------
    >>> import torch, foretrain as ft
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    >>> ft.dntk(net, torch.randn(5, 3)).shape
    (5, 5, 5, 2, 2, 2)
    """
    with unchanged(model):
        return prepared(model, x, **options).dntk()


def ddntk(model: Any, x: Any, **options: Unpack[Options]) -> SecondDifferentials:
    """Both ddNTKs, ``.dd_I`` (∞.5) and ``.dd_II`` (∞.7), each with four axes of samples, then four of outputs.

    With g_a = λ∇z_a and u_ac = (∇∇z_a) g_c: dd_I_0123 = D³z_0[g_1, g_2, g_3], totally symmetric in 1, 2, 3, and
    dd_II_1234 = u_13 · λ u_24, symmetric under 1 ↔ 2 together with 3 ↔ 4. Arguments are those of ``dntk``.

    Examples
    --------
    >>> import torch, foretrain as ft
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    >>> found = ft.ddntk(net, torch.randn(2, 3))
    >>> found.dd_I.shape, found.dd_II.shape
    ((2, 2, 2, 2, 1, 1, 1, 1), (2, 2, 2, 2, 1, 1, 1, 1))
    """
    with unchanged(model):
        return prepared(model, x, **options).ddntk()


@dataclass(frozen=True, eq=False)
class Preparation:
    """A checked request: the model at its samples, and, if it is a chain, its layers."""

    directions: Directions
    stack: Stack | None
    samples: tuple[int, ...]
    notes: tuple[str, ...]

    def dntk(self) -> Differential:
        """dH."""
        self._require(3, self.directions.legs)
        if self.stack is not None:
            return self._labelled("dntk", LayeredDifferentials(self.stack).first()[0], _LAYERED)
        return self._labelled("dntk", *derivative(self.directions, 2))

    def ddntk(self) -> SecondDifferentials:
        """dd_I and dd_II."""
        legs = self.directions.legs
        self._require(4, legs if self.stack is not None else legs**2)
        if self.stack is not None:
            layered = LayeredDifferentials(self.stack)
            third, second = layered.third()[0], layered.second()[0]
            return SecondDifferentials(
                self._labelled("dd_I", third, _LAYERED), self._labelled("dd_II", second, _LAYERED)
            )
        first = self._labelled("dd_I", *derivative(self.directions, 3))
        changes = gradients_of_changes(self.directions)
        flat = torch.zeros(legs**2, legs**2, dtype=first.values.dtype, device=first.values.device)
        for name, value in changes.items():
            rows = value.reshape(legs**2, -1)
            flat += self.directions.rates[name] * (rows @ rows.mT)
        second = flat.view(legs, legs, legs, legs).transpose(1, 2)  # a c, b d as a b c d
        return SecondDifferentials(first, self._labelled("dd_II", second, BACKWARD))

    def _labelled(self, name: str, joint: Tensor, route: str) -> Differential:
        """From one axis of legs for every index; those of a stack have the output first."""
        samples, outputs = len(self.samples), tuple(self.directions.linear.outputs)
        if route == _LAYERED:
            split = joint.view((len(outputs), samples) * joint.ndim)
            places = [axis for i in range(joint.ndim) for axis in (2 * i + 1, 2 * i)]
            joint = split.permute(places).reshape(joint.shape)
        values = by_index(joint, samples, len(outputs))
        return Differential(name, values, self.samples, outputs, int(name == "dd_II"), route, self.notes)

    def _require(self, order: int, vectors: int) -> None:
        legs = self.directions.legs
        size = next(iter(self.directions.at.values())).element_size()
        needed = 4 * size * legs**order
        if self.stack is None:
            needed += 2 * vectors * self.directions.parameter_bytes
        what = f"the differential of {legs} outputs of samples ({legs}^{order} entries)"
        require_memory(needed, what, _WAY_OUT)


def prepared(model: Any, x: Any, **options: Unpack[Options]) -> Preparation:
    """Check everything that was given, look at the model, and choose the way."""
    for name in options:
        if name not in Options.__annotations__:
            raise unknown_name("option", name, Options.__annotations__)
    outputs, samples = options.get("outputs"), options.get("samples")
    if isinstance(outputs, str):
        raise InputError(f"`outputs=`{outputs!r}: give a list of output numbers, or None for all.")
    whole = as_batch(x, options.get("batch_axis", 0), options.get("shared", ()))
    chosen = _chosen_samples(samples, whole.count)
    others: dict[str, Any] = {key: options.get(key) for key in ("output", "parameters", "rates")}
    engine, batch, _ = prepare(
        model,
        whole if samples is None else whole.pick(chosen),
        options=KernelOptions("full" if outputs is None else outputs, **others),
    )
    linear = Linearised(replace(engine.model, channels_last=False), engine.parameters, engine.outputs)
    directions = Directions(linear, batch, engine.rates, engine.memory.passes)
    notes = kink_notes(linear.rows(batch.pick([0])))
    stack = _as_stack(getattr(model, "_orig_mod", model), directions)
    return Preparation(directions, stack, tuple(chosen), notes)


def _as_stack(model: Any, directions: Directions) -> Stack | None:
    """A chain of linear layers and elementwise activations, found out by running it, as a stack of one network.

    None if it is no chain that ends in a linear layer, or its fields do not fit, or an output is named twice: to a
    stack all outputs have weights of their own.
    """
    x = directions.batch.arguments
    if not isinstance(model, nn.Module) or not isinstance(x, Tensor) or x.ndim != 2 or directions.batch.axis:
        return None
    outputs = directions.linear.outputs
    if directions.linear.model.output is not None or len(set(outputs)) < len(outputs):
        return None
    try:
        chain = find_chain(model, x)
        plain = chain.depth > 1 and torch.equal(chain.u(chain.depth), chain.v(chain.depth))
        needed = _COPIES * chain.x.element_size() * directions.legs**2 * sum(chain.widths[1:-1])
        if not plain or needed >= _SHARE * available_bytes():
            return None
        derivatives = [_derivatives(chain, number) for number in range(1, chain.depth)]
    except (InputError, NotSupportedError, RuntimeError):
        return None
    last = chain.layer(chain.depth).weight[list(outputs)]
    known = {id(value): directions.rates[name] for name, value in directions.linear.parameters.items()}
    return Stack(
        signals=[chain.u(number)[None] for number in range(chain.depth)],
        derivatives=derivatives,
        weights=[*(chain.layer(number).weight[None] for number in range(2, chain.depth)), last[None]],
        rates=[
            LayerRates(known.get(id(layer.module.weight), 0.0), known.get(id(layer.module.bias), 0.0))
            for layer in chain.layers
        ],
    )


def _derivatives(chain: Chain, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """σ', σ'', σ''' at the preactivations of a layer, as one network."""
    _, one, two, three = with_derivatives(lambda v: chain.activate(number, v), chain.v(number))
    return one[None], two[None], three[None]


def _chosen_samples(samples: Sequence[int] | None, count: int) -> list[int]:
    if samples is None:
        return list(range(count))
    try:
        numbers = [index(number) for number in samples]
    except TypeError:
        numbers = []
    if not numbers or any(not -count <= number < count for number in numbers):
        raise InputError(f"`samples=` must be a list of numbers from 0 to {count - 1}, not {samples!r}.")
    return [number % count for number in numbers]


# Beginnings of the names of backward nodes; what pieces of straight lines are made of.
_KINKED = (
    "Relu",
    "LeakyRelu",
    "PreluKernel",
    "Rrelu",
    "Threshold",
    "Hardtanh",
    "Hardsigmoid",
    "Hardshrink",
    "Softshrink",
    "Abs",
    "Clamp",
    "Maximum",
    "Minimum",
    "MaxPool",
    "AdaptiveMaxPool",
)


def kink_notes(outputs: Tensor) -> tuple[str, ...]:
    """One note if the graph has such an operation."""
    seen: set[Any] = set()
    waiting = [outputs.grad_fn]
    found: dict[str, None] = {}
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        name = type(node).__name__.split("Backward")[0]
        if name.startswith(_KINKED):
            found[name] = None
        waiting += [parent for parent, _ in node.next_functions]
    if not found:
        return ()
    return (
        f"note: {', '.join(found)} has kinks, and automatic differentiation takes second derivatives there for zero; "
        "they have the weight of a delta function in the theory's limit of smooth activations.",
    )
