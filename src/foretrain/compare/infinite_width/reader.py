"""A captured graph read into the description of foretrain.theory.layers: every axis of every tensor has a meaning.

A tensor that depends on nothing but inputs is computed. From the first layer with weights on, a tensor is a
signal, and each of its axes is made of atoms: the batch, channels (which become many), positions. Views split
and join atoms; an operation without a rule is refused by name.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.infinite_width.graph import ADVICE, Captured, NoKernelError, operation_name, refusal
from foretrain.compare.infinite_width.laws import Drawn, Fans, Hyperparameters
from foretrain.compare.infinite_width.parallel import applications, is_layer
from foretrain.compare.infinite_width.written import Written, is_elementwise, operation
from foretrain.empirical.models.arguments import Batch, leaves, mapped
from foretrain.empirical.models.model import close
from foretrain.support.errors import ForetrainError, InputError, NotSupportedError
from foretrain.theory.layers import Signal, data, joined
from foretrain.theory.layers.fields import Field
from foretrain.theory.layers.linear_maps import LinearMap
from foretrain.theory.layers.normalisation import Normalised

Node = torch.fx.Node
_FAR = 1e9  # times the width that was looked at: as good as infinite
THEORYS_ADVICE = ". Measure it with ft.ensemble."
Kind = Literal["batch", "channel", "unit", "position"]


@dataclass(frozen=True)
class Atom:
    """What an axis, or a factor of an axis, counts; units are channels whose number does not grow."""

    kind: Kind
    size: int


Dims = tuple[tuple[Atom, ...], ...]


@dataclass(frozen=True)
class Value:
    """A tensor in the limit: its signal, whose positions are in the order of the axes, and what the axes are."""

    signal: Signal
    dims: Dims
    # The other value that it is a function of, and that function, if it is written out in the model.
    function: tuple[Value, Written] | None = field(default=None, compare=False)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(math.prod(atom.size for atom in dim) for dim in self.dims)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """All atoms in order."""
        return tuple(atom for dim in self.dims for atom in dim)

    def kinds(self, axis: int) -> list[Kind]:
        """What an axis counts."""
        return [atom.kind for atom in self.dims[axis]]

    def positions_in(self, axis: int) -> list[int]:
        """Numbers of the signal's axes of positions that an axis holds."""
        before = sum(atom.kind == "position" for dim in self.dims[:axis] for atom in dim)
        return list(range(before, before + self.kinds(axis).count("position")))


@dataclass(frozen=True)
class Parameter:
    """A parameter as it stands, or some view of it: which one, and its numbers."""

    name: str
    tensor: Tensor


class Others:
    """Other inputs in the place of those that were given, and what was computed of them."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        self.change = change
        self.results: dict[Any, Any] = {}


@dataclass(frozen=True)
class Known:
    """A tensor that depends on the inputs only: an input itself, or a function that computes it of other inputs."""

    tensor: Tensor
    function: Callable[[Others], Tensor] | None = None

    def of(self, others: Others) -> Tensor:
        """What it is of other inputs."""
        return others.change(self.tensor) if self.function is None else self.function(others)

    def then(self, function: Callable[[Tensor], Tensor]) -> Known:
        """A function of it."""
        return Known(function(self.tensor), lambda others: function(self.of(others)))


@dataclass(frozen=True)
class Composed:
    """What is a function of a value that is written out, and no rule reads so far."""

    function: tuple[Value, Written]
    node: Node


@dataclass(frozen=True)
class Refused:
    """What has no rule: it is refused once something that matters depends on it."""

    error: NotSupportedError


Rule = Callable[["Reader", Node, list[Any]], Any]
RULES: dict[str, Rule] = {}
OF_REFUSED: set[str] = set()  # rules that can do something with what was refused


def rule(*names: str, of_refused: bool = False) -> Callable[[Rule], Rule]:
    """The function reads operations of these names; it is given all arguments in the order of torch's schema."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(names, function))
        OF_REFUSED.update(names if of_refused else ())
        return function

    return register


class Reader:
    """Reads a captured graph, one operation after another."""

    def __init__(
        self, captured: Captured, batch: Batch, hyperparameters: Hyperparameters, wide: WideAxes
    ) -> None:
        self.captured, self.hyperparameters, self.wide = captured, hyperparameters, wide
        self.values: dict[str, Any] = {}
        self.together: dict[tuple[Node, ...], Any] = {}  # what several streams hold, as one
        self.streams = 1  # of the operation that is being read
        self.data: dict[Field, np.ndarray[Any, Any]] = {}
        self.used: dict[str, Node] = {}
        self.learning: dict[str, tuple[float, float]] = {}  # lambda and fan-in of parameters
        self.trained = {
            parameter
            for name, parameter in captured.parameters.items()
            if captured.tensors[name].requires_grad
        }
        self.batch = batch.count
        given = zip(leaves(batch.arguments), batch.holders, strict=True)
        inputs = [one for one in given if isinstance(one[0], Tensor)]
        for name, (tensor, of_samples) in zip(captured.inputs, inputs, strict=True):
            self.values[name] = Known(tensor) if of_samples else tensor
        for name, tensor in captured.tensors.items():
            parameter = captured.parameters.get(name)
            self.values[name] = tensor if parameter is None else Parameter(parameter, tensor.detach())

    def read(self) -> Value:
        """The output of the graph as a signal."""
        for nodes in applications(self.captured):
            self.streams = len(nodes)
            self.together[nodes] = whole = self._called(nodes)
            for number, node in enumerate(nodes):
                self.values[node.name] = mapped(partial(self._stream, node, number), whole)
        found = self.resolved(self.values[self.captured.output.name])
        if isinstance(found, Refused):
            refused = (one for one in self.captured.nodes if isinstance(self.values[one.name], Refused))
            known = (
                refusal(one, why) for one in refused if (why := _WITHOUT_RULE.get(operation_name(one.target)))
            )
            raise next(known, found.error)  # the reason that says most
        if not isinstance(found, Value):
            raise InputError("the output of the model does not depend on any layer with weights.")
        return _checked_end(found, self.wide)

    def _called(self, nodes: tuple[Node, ...]) -> Any:
        """What an operation makes of its arguments, of all streams together; None for what it returns besides."""
        node, name = nodes[0], operation_name(nodes[0].target)
        try:
            inputs = zip(*(one.all_input_nodes for one in nodes), strict=True)
            found = {some[0]: self._of_streams(some) for some in inputs}
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda one: found[one])
            composed = self._composed(node, args, kwargs)
            if composed is None:
                args, kwargs = mapped(self.resolved, (args, kwargs))
            given = leaves((args, kwargs))
            refused = [one for one in given if isinstance(one, Refused)]
            if node.op == "get_attr":
                raise NotSupportedError("a part of the network runs under conditions or in a loop")
            if name in _WITHOUT_RULE and any(isinstance(one, Value | Parameter) for one in given):
                raise NotSupportedError(_WITHOUT_RULE[name])
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and name not in RULES:
                raise NoKernelError(
                    f"{name} draws random numbers (call model.eval(), if it does so in training only)"
                )
            if refused and name not in OF_REFUSED:
                return Refused(refused[0].error)
            if not any(isinstance(one, Value | Composed | Parameter | Refused) for one in given):
                return self._computed(node, args, kwargs)
            if composed is not None:
                return self._elementwise(node, args, kwargs, composed)
            if name != "embedding" and not any(isinstance(one, Value | Known | Refused) for one in given):
                return self.of_parameters(node, args, kwargs)
            if name in RULES:
                return RULES[name](self, node, _in_order(node, args, kwargs))
            raise NotSupportedError(f"the operation {name} has no rule")
        except NotSupportedError as error:
            if str(error).endswith(ADVICE):
                return Refused(error)
            return Refused(refusal(node, type(error)(str(error).removesuffix(THEORYS_ADVICE))))

    def _composed(self, node: Node, args: Any, kwargs: Any) -> tuple[Value, Written] | None:
        """An operation on functions of one value and numbers, as a function of that value; None for anything else."""
        given = leaves((args, kwargs))
        functions = [one.function or (one, Written()) for one in given if isinstance(one, Value | Composed)]
        if (
            not functions
            or not is_elementwise(node)
            or any(base is not functions[0][0] for base, _ in functions)
        ):
            return None
        if self.shape(node) != functions[0][0].shape or operation_name(node.target) in _WITHOUT_RULE:
            return None
        if any(isinstance(one, Known | Refused) for one in given):
            return None

        def number(one: Any) -> Any:
            if isinstance(one, Value | Composed):
                return functions.pop(0)[1]
            if isinstance(one, Parameter) and one.tensor.numel() == 1:
                moves = self.trains(one) and self.hyperparameters.rates != "ntk"
                return None if moves else one.tensor.flatten()[0].double()
            if not isinstance(one, Tensor):
                return one
            first = one.flatten()[:1]
            if not first.numel() or not bool((one == first).all()):
                return None
            return first[0].double() if first.is_floating_point() else first[0]

        base = functions[0][0]
        found = mapped(number, (tuple(args), dict(kwargs)))
        before, after = (sum(one is not None for one in leaves(some)) for some in ((args, kwargs), found))
        return (base, operation(node, *found)) if before == after else None

    def _elementwise(self, node: Node, args: Any, kwargs: Any, function: tuple[Value, Written]) -> Any:
        """What the rule of an operation makes of it, else what it is as a function of one value."""
        name = operation_name(node.target)
        if name in RULES and not any(isinstance(one, Composed) for one in leaves((args, kwargs))):
            try:
                found = RULES[name](self, node, _in_order(node, args, kwargs))
                return replace(found, function=function) if found is not function[0] else found
            except ForetrainError:
                pass  # as a part of a function it may be what it cannot be by itself
        return Composed(function, node)

    def resolved(self, given: Any) -> Any:
        """What is written out as the value of an activation, once something else reads it."""
        if not isinstance(given, Composed):
            return given
        base, written = given.function
        try:
            return replace(
                Value(base.signal.activation(written.activation()), base.dims), function=given.function
            )
        except ForetrainError as error:
            return Refused(refusal(given.node, str(error).removesuffix(THEORYS_ADVICE)))

    def _computed(self, node: Node, args: Any, kwargs: Any) -> Any:
        """What depends on inputs and constants only is computed as it is."""
        target: Any = node.target

        def computed(change: Callable[[Known], Tensor]) -> Any:
            given = mapped(lambda one: change(one) if isinstance(one, Known) else one, (args, kwargs))
            with torch.no_grad():
                return target(*given[0], **given[1])

        def part(number: int, others: Others) -> Any:
            if node not in others.results:
                others.results[node] = leaves(computed(lambda one: one.of(others)))
            return others.results[node][number]

        def known(one: Any, numbers: Iterator[int] = itertools.count()) -> Any:  # noqa: B008 - one for each call
            number = next(numbers)
            return Known(one, partial(part, number)) if isinstance(one, Tensor) else one

        result = computed(lambda one: one.tensor)
        of_inputs = any(isinstance(one, Known) for one in leaves((args, kwargs)))
        return mapped(known, result) if of_inputs else result

    def of_parameters(self, node: Node, args: Any, kwargs: Any) -> Any:
        """Views of one parameter are that parameter; other functions of parameters have no law."""
        parameters = [one for one in leaves((args, kwargs)) if isinstance(one, Parameter)]
        name, target = operation_name(node.target), node.target
        constants = any(isinstance(one, Tensor) for one in leaves((args, kwargs)))
        if constants and is_layer(name):
            raise NotSupportedError(
                "a layer with weights reads what is the same for all samples (an argument of x holds samples if it "
                "has as many entries as x has samples), which has no rule here"
            )
        if len(parameters) > 1 or name not in _VIEWS:
            raise NotSupportedError(
                f"weights are computed from parameters ({name}), as by weight_norm or spectral_norm, and have no law "
                "of their own (torch.nn.utils.parametrize.remove_parametrizations makes them plain)"
            )
        plain = mapped(lambda one: one.tensor if isinstance(one, Parameter) else one, (args, kwargs))
        result = target(*plain[0], **plain[1])  # type: ignore[operator]
        return mapped(
            lambda one: Parameter(parameters[0].name, one) if isinstance(one, Tensor) else one, result
        )

    def shape(self, node: Node) -> tuple[int, ...]:
        """The shape that an operation gives, with all streams along the first axis."""
        first, *others = node.meta["val"].shape
        return (first * self.streams, *others)

    def trains(self, parameter: Any) -> bool:
        """Whether a parameter is one and is trained."""
        return isinstance(parameter, Parameter) and parameter.name in self.trained

    def use(self, node: Node, parameter: Parameter | None) -> None:
        """A parameter may be used by one operation only."""
        if parameter is not None and self.used.setdefault(parameter.name, node) is not node:
            raise NotSupportedError(
                f"{parameter.name} is used in two different ways (tied weights), which has no rule here"
            )

    def learns(self, parameter: Any, rate: float, fan_in: float = 1.0) -> None:
        """A parameter, if it is one, moves at this rate divided by the fan-in."""
        if isinstance(parameter, Parameter):
            self.learning[parameter.name] = rate, fan_in

    def as_value(self, node: Node, given: Any, channel_axis: int | None) -> Value:
        """A signal; inputs that meet their first layer become one, with channels along the axis that the layer reads.

        ``channel_axis`` None: there are no channels, every axis after the batch is positions (tokens). Other samples
        of the same network, such as the frames of a film, may follow each sample along the first axis.
        """
        if isinstance(given, Value):
            return given
        if not isinstance(given, Known):
            raise NotSupportedError("a layer is applied to constants")
        if channel_axis is not None and not given.tensor.is_floating_point():
            raise InputError(
                f"the first layer reads inputs of {given.tensor.dtype}: give real floating-point numbers."
            )
        tensor, channel = given.tensor, None if channel_axis is None else channel_axis % given.tensor.ndim
        each, rest = divmod(len(tensor) if tensor.ndim else 0, self.batch)
        if tensor.ndim < 2 - (channel is None) or rest or not each or channel == 0:
            raise NotSupportedError(
                f"inputs of shape {tuple(tensor.shape)} do not begin with the batch of {self.batch}"
            )
        self._refuse_coupled(given)
        if not bool(torch.isfinite(tensor).all()):
            raise InputError(
                "the model computes numbers that are not finite from its inputs, before its first layer."
            )
        first = [size for size in (self.streams, each // self.streams) if size > 1]
        sizes = [*first, *(size for k, size in enumerate(tensor.shape) if k not in (0, channel))]
        values = tensor.detach().cpu()
        array = values.numpy() if channel is None else values.movedim(channel, -1).double().numpy()
        signal = data(sizes, name="input")
        self.data[signal.field] = array.reshape(
            self.batch, *sizes, *array.shape[array.ndim - (channel is not None) :]
        )
        dims: list[tuple[Atom, ...]] = [(Atom("batch", self.batch), *(Atom("position", n) for n in first))]
        for k in range(1, tensor.ndim):
            dims.append((Atom("channel" if k == channel else "position", tensor.shape[k]),))
        return Value(signal, tuple(dims))

    def _refuse_coupled(self, given: Known) -> None:
        """What a layer reads of a sample must come from this sample alone, and in the same way for each.

        Samples that change places must do so in what is read, and one that stays must keep its values whatever
        becomes of all others: together this leaves no way from one sample to another.
        """
        if given.function is None:
            return

        def rows(one: Tensor) -> Tensor:
            return (one.nan_to_num() if one.is_floating_point() else one.double()).reshape(self.batch, -1)

        before = rows(given.tensor)

        def computed(change: Callable[[Tensor], Tensor]) -> Tensor:
            return rows(given.of(Others(change)))

        same = close(before.roll(1, 0), computed(lambda one: one.roll(1, 0)))
        for kept in (0, self.batch - 1):
            try:
                after = computed(partial(_far_apart, kept))
            except Exception:  # what is computed may not be defined far away: copies of one sample then
                after = computed(partial(_copies, kept))
            same = same and close(before[kept], after[kept])
        if not same:
            raise NoKernelError(
                "samples are mixed, or not along the first axis, before the first layer: let forward compute each "
                "sample by itself"
            )

    def _of_streams(self, some: tuple[Node, ...]) -> Any:
        """What several streams give to the same weights, with one more axis of positions for the streams."""
        values = [self.values[one.name] for one in some]
        like = values[0]
        if len(set(some)) == 1 or some in self.together:
            return self.together.get(some, like)
        values = [self.resolved(one) for one in values]
        like = values[0]
        if any(isinstance(one, Refused) for one in values):
            return next(one for one in values if isinstance(one, Refused))
        if len({one.meta["val"].shape for one in some}) == 1:
            if all(isinstance(one, Known) for one in values):

                def stacked(tensors: list[Tensor]) -> Tensor:
                    each = [one.reshape(self.batch, -1, *one.shape[1:]) for one in tensors]
                    return torch.stack(each, 1).flatten(0, 2)

                return Known(
                    stacked([one.tensor for one in values]),
                    lambda others: stacked([one.of(others) for one in values]),
                )
            if all(isinstance(one, Value) and one.dims == like.dims for one in values):
                axes, (batch, *others) = len(like.signal.positions), like.dims[0]
                signal = joined([one.signal.arranged(range(axes), (0, *(1,) * axes)) for one in values])
                return Value(signal, ((batch, Atom("position", len(values)), *others), *like.dims[1:]))
        raise NotSupportedError("the same weights are applied to inputs of different shapes or kinds")

    def _stream(self, node: Node, number: int, whole: Any) -> Any:
        """One of several streams."""
        whole = whole if self.streams == 1 else self.resolved(whole)
        if not isinstance(whole, Value) or self.streams == 1:
            return whole
        if whole.dims[0][:2] != (Atom("batch", self.batch), Atom("position", self.streams)):
            return Refused(refusal(node, "several inputs of the same weights are mixed with the batch"))
        return Value(whole.signal.take(0, number), ((whole.dims[0][0], *whole.dims[0][2:]), *whole.dims[1:]))


def _far_apart(kept: int, samples: Tensor) -> Tensor:
    """All samples but one with other numbers: far above and below all that there are, or other whole ones of them."""
    if samples.dtype == torch.bool:
        changed = ~samples
    elif samples.is_floating_point() or samples.is_complex():
        signs = 1 - 2 * (torch.arange(samples.numel()) % 2).reshape(samples.shape).to(samples)
        changed = samples + (2 * samples.abs().max() + 1) * signs
    else:
        low, high = samples.min(), samples.max()
        changed = low + high - samples if low < high else torch.zeros_like(samples)
    changed[kept] = samples[kept]
    return changed


def _copies(kept: int, samples: Tensor) -> Tensor:
    """One sample in the place of all."""
    return samples[kept].expand_as(samples)


def _in_order(node: Node, args: Any, kwargs: Any) -> list[Any]:
    """All arguments of an operation in the order of its schema, with defaults where none are given."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return list(args)
    expected = node.target._schema.arguments
    given = {**dict(zip((one.name for one in expected), args)), **kwargs}
    return [given.get(one.name, one.default_value) for one in expected]


def _checked_end(value: Value, wide: WideAxes) -> Value:
    """The output, whose channels are few unless a factory says otherwise; no norm or trained gain may be its end."""
    few = wide.drawn_at is None or any(atom.kind == "unit" for atom in value.atoms)
    signal = value.signal.as_outputs
    last = [signal.field]
    if few and last[0].gains:
        raise InputError(
            "the model ends with gains that train, one for each output, which leaves its NTK random: freeze them."
        )
    for one in last if few else ():
        if isinstance(one, Normalised):
            raise InputError(
                "the model ends with a norm, whose statistics over few outputs stay random: let it return what its "
                "last linear layer gives."
            )
        last += () if isinstance(one, LinearMap) else one.inputs
    kinds: dict[Kind, Kind] = {"unit": "channel"}
    dims = (tuple(Atom(kinds.get(atom.kind, atom.kind), atom.size) for atom in dim) for dim in value.dims)
    return Value(signal, tuple(dims))


@dataclass(frozen=True)
class WideAxes:
    """What a factory tells: the sizes of parameters at several widths, and their numbers in several draws."""

    widths: tuple[int, int] = (1, 1)  # the wider first
    drawn_at: Mapping[str, tuple[Sequence[Tensor], Sequence[Tensor]]] | None = None  # by width
    grown: frozenset[str] = frozenset()  # other numbers that grow, such as the groups of norms

    def draws(self, parameter: Parameter, narrow: bool = False) -> Tensor:
        """The numbers of a parameter, of all draws at a width one after another."""
        every = (self.drawn_at or {}).get(parameter.name)
        return parameter.tensor if every is None else torch.cat([one.flatten() for one in every[narrow]])

    def drawn(self, parameter: Parameter, fans: tuple[float, float], axes: tuple[int, int]) -> Drawn:
        """The numbers of a weight with these fans, along these axes, and how fans grow with the width."""
        sizes = [self._sizes(parameter, axis) for axis in axes]
        if sizes[0] is None or sizes[1] is None:
            return Drawn((parameter.tensor,), (Fans(*fans),), Fans(*fans))

        def at(place: int) -> Fans:
            fan_in, fan_out = (fan * size[place] / size[0] for fan, size in zip(fans, sizes) if size)
            return Fans(fan_in, fan_out)

        numbers = self.draws(parameter), self.draws(parameter, narrow=True)
        return Drawn(numbers, (at(0), at(1)), at(2))

    def _sizes(self, parameter: Parameter, axis: int) -> tuple[float, float, float] | None:
        """Of an axis of a parameter, which may be transposed: at both widths, and far beyond; None if nobody said."""
        every, strides = (self.drawn_at or {}).get(parameter.name), parameter.tensor.stride()
        if every is None or every[0][0].ndim != len(strides):
            return None
        axis = 1 - axis if len(strides) == 2 and strides[0] < strides[1] else axis
        wide, narrow = (some[0].shape[axis] for some in every)
        more = (wide - narrow) / (self.widths[0] - self.widths[1])
        return wide, narrow, wide + more * _FAR * self.widths[0]

    def __call__(self, parameter: Parameter, axis: int) -> bool | None:
        """Whether an axis of a parameter grows; None if nobody said."""
        sizes = self._sizes(parameter, axis)
        return None if sizes is None else sizes[0] != sizes[1]

    def channels(self, parameter: Parameter, axis: int, size: int) -> Atom:
        """The channels that an axis of a parameter makes."""
        return Atom("unit" if self(parameter, axis) is False else "channel", size)


_VIEWS = {"t", "transpose", "permute", "view", "reshape", "unsqueeze", "squeeze", "expand", "slice", "select"}
_VIEWS |= {"flatten", "contiguous", "to", "clone", "alias", "_to_copy", "chunk", "split", "unbind", "getitem"}
_REASONS = {
    "a softmax, as of attention or at the end, has no rule here": "softmax _softmax log_softmax _log_softmax",
    "attention has no rule here": "scaled_dot_product_attention baddbmm",
    "a recurrent cell has no rule here": "rnn_tanh rnn_relu gru lstm rnn_tanh_cell rnn_relu_cell gru_cell lstm_cell",
    "statistics of the batch stay random": "_native_batch_norm_legit _native_batch_norm_legit_functional",
    "lengths of vectors have no rule but in an RMSNorm": "linalg_vector_norm",
    "a part of the network is detached, so that it does not train as it computes": "detach",
}
_WITHOUT_RULE = {name: why for why, names in _REASONS.items() for name in names.split()}


def regrouped(value: Value, shape: Sequence[int]) -> Value | None:
    """The value seen with another shape; None if that would cut an atom in a way that has no meaning."""
    atoms, signal = list(value.atoms), value.signal
    dims: list[tuple[Atom, ...]] = []
    for size in shape:
        dim: list[Atom] = []
        while math.prod(atom.size for atom in dim) < size or (
            not dim and atoms and size == atoms[0].size == 1
        ):
            if not atoms:
                return None
            need = size // math.prod(atom.size for atom in dim)
            atom = atoms.pop(0)
            place = sum(one.kind == "position" for done in (*dims, tuple(dim)) for one in done)
            if atom.size == 1 and atom.kind == "position":
                signal = signal.take(place, 0)
                continue
            if atom.size > need:
                if need == 0 or atom.size % need or atom.kind == "batch":
                    return None
                parts = (Atom(atom.kind, need), Atom(atom.kind, atom.size // need))
                if atom.kind == "position":
                    signal = _split_axis(signal, place, need)
                atoms.insert(0, parts[1])
                atom = parts[0]
            dim.append(atom)
        if math.prod(atom.size for atom in dim) != size:
            return None
        dims.append(tuple(dim))
    if any(atom.size != 1 for atom in atoms):
        return None
    # What is left counts one thing, as a single output beside the samples does, and needs no axis.
    for atom in atoms:
        if atom.kind == "position":
            signal = signal.take(len(signal.positions) - 1, 0)
    return Value(signal, tuple(_joined_channels(dim) for dim in dims))


def seen_as(value: Value, shape: tuple[int, ...]) -> Value:
    """The value seen with another shape."""
    found = regrouped(value, shape)
    if found is None:
        raise NotSupportedError(
            f"a view from {value.shape} to {shape} cuts across channels, positions and batch"
        )
    return found


def _joined_channels(dim: tuple[Atom, ...]) -> tuple[Atom, ...]:
    """Neighbouring channel atoms as one."""
    found: list[Atom] = []
    for atom in dim:
        if found and found[-1].kind == atom.kind == "channel":
            found[-1] = replace(atom, size=found[-1].size * atom.size)
        else:
            found.append(atom)
    return tuple(found)


def _split_axis(signal: Signal, axis: int, outer: int) -> Signal:
    """One axis of positions as two."""
    sizes, groups = list(signal.positions), [1] * len(signal.positions)
    groups[axis] = 2
    split = [*sizes[:axis], outer, sizes[axis] // outer, *sizes[axis + 1 :]]
    return signal.arranged(range(len(sizes)), groups, split)


def permuted(value: Value, order: Sequence[int]) -> Value:
    """The value with its axes in another order."""
    dims = tuple(value.dims[k] for k in order)
    axes = [axis for k in order for axis in value.positions_in(k)]
    signal, wide = value.signal, [k for k in order if "channel" in value.kinds(k)]
    if wide != sorted(wide):
        signal = signal.shuffled(value.shape[min(wide)] if len(wide) == 2 else 0)
    return Value(signal.arranged(axes, [1] * len(axes)), dims)
