"""A captured graph read into the description of foretrain.theory.layers: every axis of every tensor has a meaning.

A tensor that depends on nothing but inputs is computed. From the first layer with weights on, a tensor is a
signal, and each of its axes is made of atoms: the batch, channels (which become many), positions. Views split
and join atoms; an operation without a rule is refused by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.infinite_width.graph import Captured, module_of
from foretrain.compare.infinite_width.laws import Hyperparameters
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.layers import Signal, data
from foretrain.theory.layers.fields import Field

Kind = Literal["batch", "channel", "position"]


@dataclass(frozen=True)
class Atom:
    """What an axis, or a factor of an axis, counts."""

    kind: Kind
    size: int


Dims = tuple[tuple[Atom, ...], ...]


@dataclass(frozen=True)
class Value:
    """A tensor in the limit: its signal, whose positions are in the order of the axes, and what the axes are."""

    signal: Signal
    dims: Dims

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(math.prod(atom.size for atom in dim) for dim in self.dims)

    @property
    def atoms(self) -> tuple[Atom, ...]:
        """All atoms in order."""
        return tuple(atom for dim in self.dims for atom in dim)

    def positions_in(self, axis: int) -> list[int]:
        """Numbers of the signal's axes of positions that an axis holds."""
        before = sum(atom.kind == "position" for dim in self.dims[:axis] for atom in dim)
        return list(range(before, before + sum(atom.kind == "position" for atom in self.dims[axis])))


@dataclass(frozen=True)
class Parameter:
    """A parameter as it stands, or some view of it: which one, and its numbers."""

    name: str
    tensor: Tensor


@dataclass(frozen=True)
class Known:
    """A tensor that depends on the inputs only; the first axis is the batch."""

    tensor: Tensor


Rule = Callable[["Reader", torch.fx.Node, list[Any], dict[str, Any]], Any]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """The function reads operations of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def operation_name(target: Any) -> str:
    """The name of an operation without its overload, such as "conv2d"."""
    packet = getattr(target, "overloadpacket", target)
    name = getattr(packet, "__name__", str(packet))
    return name.rstrip("_") if not name.startswith("__") else name


class Reader:
    """Reads a captured graph, one operation after another."""

    def __init__(
        self, captured: Captured, inputs: Sequence[Tensor], hyperparameters: Hyperparameters, wide: WideAxes
    ) -> None:
        self.captured, self.hyperparameters, self.wide = captured, hyperparameters, wide
        self.values: dict[str, Any] = {}
        self.data: dict[Field, np.ndarray[Any, Any]] = {}
        self.used: dict[str, str] = {}
        self.trained = {
            parameter
            for name, parameter in captured.parameters.items()
            if captured.tensors[name].requires_grad
        }
        self.batch = len(inputs[0])
        for name, tensor in zip(captured.inputs, inputs, strict=True):
            self.values[name] = Known(tensor)
        for name, tensor in captured.tensors.items():
            parameter = captured.parameters.get(name)
            self.values[name] = tensor if parameter is None else Parameter(parameter, tensor.detach())

    def read(self) -> Value:
        """The output of the graph as a signal."""
        for node in self.captured.nodes:
            if node.op == "get_attr":
                raise self.refusal(node, "a part of the network runs without gradients, or under conditions")
            if node.op == "call_function":
                self.values[node.name] = self._called(node)
        found = self.values[self.captured.output.name]
        if not isinstance(found, Value):
            raise InputError("the output of the model does not depend on any layer with weights.")
        return found

    def _called(self, node: torch.fx.Node) -> Any:
        args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda one: self.values[one.name])
        name, flat = operation_name(node.target), _flat((args, kwargs))
        if not any(isinstance(one, Value | Parameter) for one in flat):
            return self._computed(node, args, kwargs)
        if name in RULES:
            return RULES[name](self, node, list(args), dict(kwargs))
        if not any(isinstance(one, Value | Known) for one in flat):
            return self.of_parameters(node, args, kwargs)
        raise self.refusal(node, f"the operation {name} has no rule")

    def _computed(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        """What depends on inputs and constants only is computed as it is."""
        known = any(isinstance(one, Known) for one in _flat((args, kwargs)))

        def plain(one: Any) -> Any:
            return one.tensor if isinstance(one, Known) else one

        with torch.no_grad():
            result = node.target(*_mapped(plain, args), **_mapped(plain, kwargs))  # type: ignore[operator]
        if not known:
            return result
        return _mapped(lambda one: Known(one) if isinstance(one, Tensor) else one, result)

    def of_parameters(self, node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
        """Views of one parameter are that parameter; other functions of parameters have no law."""
        parameters = [one for one in _flat((args, kwargs)) if isinstance(one, Parameter)]
        name = operation_name(node.target)
        if len(parameters) > 1 or name not in _VIEWS:
            raise self.refusal(node, f"weights are computed from parameters by {name}")
        plain = _mapped(lambda one: one.tensor if isinstance(one, Parameter) else one, (args, kwargs))
        result = node.target(*plain[0], **plain[1])  # type: ignore[operator]
        return _mapped(
            lambda one: Parameter(parameters[0].name, one) if isinstance(one, Tensor) else one, result
        )

    def trains(self, parameter: Any) -> bool:
        """Whether a parameter is one and is trained."""
        return isinstance(parameter, Parameter) and parameter.name in self.trained

    def refusal(self, node: torch.fx.Node, why: str) -> NotSupportedError:
        """An error that names the place, the reason and the way out."""
        where = module_of(node)
        place = f"{where}: " if where else ""
        return NotSupportedError(f"{place}{why}: measure it with ft.ensemble, which takes any module.")

    def use(self, node: torch.fx.Node, parameter: Parameter | None) -> None:
        """A parameter may be used once: shared weights correlate the places where they are used."""
        if parameter is None:
            return
        if parameter.name in self.used:
            raise self.refusal(
                node,
                f"{parameter.name} is used twice, which correlates the places where it is used and has no rule here",
            )
        self.used[parameter.name] = node.name

    def as_value(self, node: torch.fx.Node, given: Any, channel_axis: int | None) -> Value:
        """A signal; inputs that meet their first layer become one, with channels along the axis that the layer reads.

        ``channel_axis`` None: there are no channels, every axis after the batch is positions (tokens).
        """
        if isinstance(given, Value):
            return given
        if not isinstance(given, Known):
            raise self.refusal(node, "a layer is applied to constants")
        tensor = given.tensor
        if tensor.ndim < 2 - (channel_axis is None) or len(tensor) != self.batch:
            raise self.refusal(
                node, f"inputs of shape {tuple(tensor.shape)} do not begin with the batch of {self.batch}"
            )
        channel = None if channel_axis is None else channel_axis % tensor.ndim
        if channel == 0:
            raise self.refusal(node, "a layer reads the batch axis of the inputs as its channels")
        values = tensor.detach().cpu()
        array = values.numpy() if channel is None else values.movedim(channel, -1).double().numpy()
        positions = [size for k, size in enumerate(tensor.shape) if k not in (0, channel)]
        signal = data(positions, name="input")
        self.data[signal.field] = array
        dims: list[tuple[Atom, ...]] = [(Atom("batch", self.batch),)]
        for k in range(1, tensor.ndim):
            dims.append((Atom("channel" if k == channel else "position", tensor.shape[k]),))
        return Value(signal, tuple(dims))


@dataclass(frozen=True)
class WideAxes:
    """What a factory tells: which axes of parameters grow with the width, and the parameters of several draws."""

    grows: dict[str, tuple[bool, ...]] | None = None
    drawn: dict[str, list[Tensor]] = field(default_factory=dict)

    def draws(self, parameter: Parameter) -> Tensor:
        """The numbers of a parameter, of all draws one after another."""
        return torch.cat([one.flatten() for one in self.drawn.get(parameter.name, [parameter.tensor])])

    def __call__(self, parameter: str, axis: int) -> bool | None:
        """Whether an axis of a parameter grows; None if nobody said."""
        return None if self.grows is None or parameter not in self.grows else self.grows[parameter][axis]


_VIEWS = frozenset(
    (
        "t",
        "transpose",
        "permute",
        "view",
        "reshape",
        "unsqueeze",
        "squeeze",
        "expand",
        "contiguous",
        "clone",
        "alias",
    )
) | {"to", "_to_copy", "flatten", "slice", "select", "getitem", "numpy_T"}


def _flat(tree: Any) -> list[Any]:
    """Leaves of nested tuples, lists and dicts."""
    if isinstance(tree, dict):
        return [leaf for one in tree.values() for leaf in _flat(one)]
    if isinstance(tree, tuple | list):
        return [leaf for one in tree for leaf in _flat(one)]
    return [tree]


def _mapped(change: Callable[[Any], Any], tree: Any) -> Any:
    """Nested tuples, lists and dicts with every leaf changed."""
    if isinstance(tree, dict):
        return {key: _mapped(change, one) for key, one in tree.items()}
    if isinstance(tree, tuple | list):
        return type(tree)(_mapped(change, one) for one in tree)
    return change(tree)


def regrouped(value: Value, shape: Sequence[int]) -> Value | None:
    """The value seen with another shape; None if that would cut an atom in a way that has no meaning."""
    atoms, signal = list(value.atoms), value.signal
    dims: list[tuple[Atom, ...]] = []
    for size in shape:
        dim: list[Atom] = []
        while math.prod(atom.size for atom in dim) < size:
            if not atoms:
                return None
            need = size // math.prod(atom.size for atom in dim)
            atom = atoms.pop(0)
            if atom.size > need:
                if need == 0 or atom.size % need or atom.kind == "batch":
                    return None
                parts = (Atom(atom.kind, need), Atom(atom.kind, atom.size // need))
                if atom.kind == "position":
                    place = sum(one.kind == "position" for done in (*dims, tuple(dim)) for one in done)
                    signal = _split_axis(signal, place, need)
                atoms.insert(0, parts[1])
                atom = parts[0]
            dim.append(atom)
        if math.prod(atom.size for atom in dim) != size:
            return None
        dims.append(tuple(atom for atom in dim))
    if any(atom.size != 1 for atom in atoms):
        return None
    # Atoms of size 1 that are left over belong to the last axis; channels stay channels.
    if atoms and dims:
        dims[-1] = (*dims[-1], *atoms)
    return Value(signal, tuple(_joined_channels(dim) for dim in dims))


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
    return Value(value.signal.arranged(axes, [1] * len(axes)), dims)
