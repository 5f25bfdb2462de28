"""``dntk`` and ``ddntk``: how the tangent kernel of any torch model begins to change, exactly."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.chain import find_chain
from foretrain.empirical.autograd_graph.tape import read
from foretrain.empirical.differentials.derivatives import (
    BACKWARD,
    Directions,
    derivative,
    gradients_of_changes,
)
from foretrain.empirical.differentials.layered import LayeredDifferentials, Stack, stack_of_chain
from foretrain.empirical.kernel_operator.passes import Linearised
from foretrain.empirical.models.arguments import Rates, as_batch, numbers_below
from foretrain.empirical.models.model import Output, unchanged
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, prepare
from foretrain.support.answers import Answer, Result
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import available_bytes, require_memory
from foretrain.support.threads import on_free_cores

if TYPE_CHECKING:
    import xarray as xr

_WAY_OUT = "name fewer `samples=` or `outputs=`"
_LAYERED = "layer by layer"  # the route of chains
_COPIES = 8  # of the changes of fields of all layers
_SHARE = 0.4  # of the available memory
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


@dataclass(frozen=True, repr=False, eq=False)
class Differential(Result):
    """``values``: one axis of samples for every index, then one axis of outputs for every index.

    ``np.asarray(found)`` gives an array; ``found.route`` says how it was computed, ``found.notes`` what to know.
    """

    name: str
    values: Tensor
    samples: tuple[int, ...]
    outputs: tuple[int, ...]
    first_index: int
    route: str
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.values.shape)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes, numbered as the source numbers the indices."""
        numbers = range(self.first_index, self.first_index + self.values.ndim // 2)
        return (*(f"input_{i}" for i in numbers), *(f"output_{i}" for i in numbers))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.values.detach().cpu().numpy(), dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Tensor:
        return self.values[key]

    def joint(self) -> Tensor:
        """One axis of (sample, output) for every index, as the update equations contract them."""
        order = self.values.ndim // 2
        pairs = [axis for i in range(order) for axis in (i, order + i)]
        legs = len(self.samples) * len(self.outputs)
        return self.values.permute(pairs).reshape((legs,) * order)

    def to_xarray(self) -> xr.DataArray:
        """A labelled array that can be saved."""
        import xarray as xr

        coordinates = {
            dim: list(self.samples if dim.startswith("input") else self.outputs) for dim in self.dims
        }
        attributes = {"route": self.route, "notes": " ".join(self.notes)}
        return xr.DataArray(
            np.asarray(self), dims=self.dims, coords=coordinates, name=self.name, attrs=attributes
        )

    def answer(self) -> Answer:
        """Its sizes, how large its entries are, and how it was found."""
        sizes = ", ".join(f"{name} {size}" for name, size in zip(self.dims, self.shape))
        kind = str(self.values.dtype).removeprefix("torch.")
        rms, largest = float(self.values.square().mean().sqrt()), float(self.values.abs().max())
        entries = f"Entries have the root mean square {rms:.4g} and are up to {largest:.4g} in size."
        statement = f"Differential({self.name}: {sizes}; {kind}; {self.route})"
        record = {"name": self.name, "sizes": sizes, "root_mean_square": rms, "largest": largest}
        return Answer(statement, [entries, *self.notes], self.to_xarray, record)


@dataclass(frozen=True, repr=False, eq=False)
class SecondDifferentials(Result):
    """Both second differentials: ``dd_I`` = D³z_0[g_1, g_2, g_3] (∞.5) and ``dd_II`` = u_13 · λ u_24 (∞.7).

    In dd_I index 0 is the output that is differentiated three times. In dd_II outputs 1 and 2 are differentiated
    twice and share a parameter; the gradient of 3 is contracted with 1, that of 4 with 2.
    """

    dd_I: Differential
    dd_II: Differential

    def answer(self) -> Answer:
        """Both, one after the other."""
        import xarray as xr

        both = {"dd_I": self.dd_I, "dd_II": self.dd_II}
        parts = {name: found.answer() for name, found in both.items()}
        return Answer(
            "Both second differentials of the tangent kernel.",
            list(parts.values()),
            lambda: xr.Dataset({name: one.to_xarray() for name, one in both.items()}),
            {
                f"{name}_{key}": value
                for name, part in parts.items()
                for key, value in part.document().items()
            },
        )


class Options(TypedDict, total=False):
    """What ``dntk``, ``ddntk`` and ``step_prediction`` take besides a model and its samples."""

    outputs: Sequence[int] | None
    samples: Sequence[int] | None
    output: Output
    parameters: Any
    rates: Rates
    batch_axis: int
    shared: Collection[str | int]


@on_free_cores()
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


@on_free_cores()
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
        outputs, order = tuple(self.directions.linear.outputs), joint.ndim
        layered = route == _LAYERED
        sizes = (len(outputs), len(self.samples)) if layered else (len(self.samples), len(outputs))
        axes = [*range(layered, 2 * order, 2), *range(1 - layered, 2 * order, 2)]  # all samples come first
        values = joint.reshape(sizes * order).permute(axes).contiguous()
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
    chosen = list(range(whole.count)) if samples is None else numbers_below(whole.count, samples)
    if not chosen:
        raise InputError(
            f"`samples=` must be a list of numbers from 0 to {whole.count - 1}, not {samples!r}."
        )
    others: dict[str, Any] = {key: options.get(key) for key in ("output", "parameters", "rates")}
    engine, batch, _ = prepare(
        model,
        whole if samples is None else whole.pick(chosen),
        options=KernelOptions("full" if outputs is None else outputs, **others),
    )
    linear = Linearised(replace(engine.model, channels_last=False), engine.parameters, engine.outputs)
    directions = Directions(linear, batch, engine.rates, engine.memory.passes)
    kinds = (name.partition("Backward")[0] for name in read(linear.rows(batch.pick([0])), {}).names)
    kinked = ", ".join(dict.fromkeys(kind for kind in kinds if kind.startswith(_KINKED)))
    note = (
        f"note: {kinked} has kinks, and automatic differentiation takes second derivatives there for zero; "
        "they have the weight of a delta function in the theory's limit of smooth activations."
    )
    return Preparation(
        directions, _as_stack(model, directions), tuple(chosen), notes=(note,) if kinked else ()
    )


def _as_stack(model: Any, directions: Directions) -> Stack | None:
    """The model as a stack of one network, if it is a chain of linear layers and elementwise activations.

    None if it is no chain that ends in a linear layer, or its fields do not fit, or an output is named twice: to a
    stack all outputs have weights of their own.
    """
    model, x = getattr(model, "_orig_mod", model), directions.batch.arguments
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
        known = {id(value): directions.rates[name] for name, value in directions.linear.parameters.items()}
        return stack_of_chain(chain, list(outputs), known)
    except (InputError, NotSupportedError, RuntimeError):
        return None


def stack_of_models(models: Sequence[Any], x: Any, **options: Unpack[Options]) -> Stack:
    """Torch models that are chains of the same shape; ``options`` are those of ``dntk``."""
    stacks: list[Stack] = []
    for model in models:
        with unchanged(model):
            stack = prepared(model, x, **options).stack
        if stack is None:
            raise NotSupportedError(
                f"model {len(stacks)} is no chain of linear layers and elementwise activations that ends in a "
                "linear layer and names no output twice: use dntk and ddntk for each model."
            )
        stacks.append(stack)
    shapes = {(*(tuple(weight.shape) for weight in stack.weights), *stack.rates) for stack in stacks}
    if len(shapes) != 1:
        raise InputError("models must be a list of networks with equal layers and equal learning rates.")
    return Stack(
        signals=[torch.cat(values) for values in zip(*(stack.signals for stack in stacks))],
        derivatives=[
            (torch.cat(one), torch.cat(two), torch.cat(three))
            for one, two, three in (zip(*of_layer) for of_layer in zip(*(s.derivatives for s in stacks)))
        ],
        weights=[torch.cat(values) for values in zip(*(stack.weights for stack in stacks))],
        rates=stacks[0].rates,
    )
