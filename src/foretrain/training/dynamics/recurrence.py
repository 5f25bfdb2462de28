"""Recurrent models as maps h_{t+1} = f(h_t, x_t) with their Jacobians, whoever wrote the loop.

``StateMap``   one step of a layer or cell of torch, or of a function f(h, x): for any states and inputs
``Run``        the states that a model goes through for a batch, and the Jacobian of each of its steps

States are flat, (samples, units); an LSTM's hold the hidden part and then the cell, those of several layers one layer
after the other.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.recurrent.cells import Cell, cell_of, layer_of
from foretrain.empirical.models.arguments import as_batch, leaves, mapped
from foretrain.empirical.models.model import call_with, close, explained, refuse_ill_defined, unchanged
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, torch_generator

StepFunction: TypeAlias = Callable[..., Any]
States: TypeAlias = str | Sequence[str] | None

_TRIALS = 8  # random starts where no input says how many samples there are


class StateMap(ABC):
    """One step: the next states (samples, units), and the product of its Jacobian with vectors."""

    units: int
    inputs: int | None = None  # how many numbers a step is given; None: whatever the function takes
    hidden: slice  # of the units: without the cells of an LSTM
    dtype: torch.dtype

    @abstractmethod
    def __call__(self, state: Tensor, x: Tensor | None) -> Tensor:
        """The next states."""

    @abstractmethod
    def push(self, state: Tensor, x: Tensor | None, vectors: Tensor) -> Tensor:
        """J V for vectors (samples, units, count)."""

    def jacobian(self, state: Tensor, x: Tensor | None) -> Tensor:
        """df / dh: (samples, units, units)."""
        return self.push(state, x, torch.eye(self.units, dtype=state.dtype).expand(len(state), -1, -1))


class LayerMap(StateMap):
    """A layer or cell of torch in float64, by its own slopes: sums over gates of slope times W_hh."""

    dtype = torch.float64

    def __init__(self, module: nn.RNNBase | nn.RNNCellBase) -> None:
        layer = layer_of(module) if isinstance(module, nn.RNNCellBase) else module
        self.cell: Cell = cell_of(layer)

        def value(kind: str) -> Tensor:
            own: Tensor | None = getattr(layer, f"{kind}_l0", None)  # without biases there are none
            return self.weight.new_zeros(()) if own is None else own.detach().double().cpu()

        self.weight = value("weight_hh")  # (gates * units of the hidden part, units of the hidden part)
        self.weight_of_inputs = value("weight_ih")
        self.bias, self.bias_of_inputs = (
            value(f"bias_{side}").expand(len(self.weight)) for side in ("hh", "ih")
        )
        self.size, self.inputs = module.hidden_size, module.input_size
        self.units = self.size * len(self.cell.states)
        self.hidden = slice(0, self.size)

    def __call__(self, state: Tensor, x: Tensor | None) -> Tensor:
        """The cell's own step."""
        return torch.cat(
            self.cell.step(torch.split(state, self.size, 1), self.products(state), self.given(x)), 1
        )

    def products(self, state: Tensor) -> Tensor:
        """W_hh h + b_hh."""
        return state[:, self.hidden] @ self.weight.t() + self.bias

    def given(self, x: Tensor | None) -> Tensor:
        """W_ih x + b_ih."""
        return self.bias_of_inputs if x is None else x @ self.weight_of_inputs.t() + self.bias_of_inputs

    def push(self, state: Tensor, x: Tensor | None, vectors: Tensor) -> Tensor:
        """Every unit takes its gates' products with their slopes, and what it keeps of the states before."""
        given = self.given(x).expand(len(state), -1)
        slopes = self.cell.slopes(torch.split(state, self.size, 1), self.products(state), given)
        changes = (self.weight @ vectors[:, self.hidden]).view(len(vectors), self.cell.gates, self.size, -1)
        parts = [(own[:, : self.cell.gates, :, None] * changes).sum(1) for own in slopes.by_slot]
        for (after, before), factor in slopes.carry.items():
            parts[after] = parts[after] + factor[..., None] * torch.split(vectors, self.size, 1)[before]
        return torch.cat(parts, 1)


class FunctionMap(StateMap):
    """f(h, x), or f(h) where nothing is given, differentiated by torch; ``like`` has the form of its states."""

    def __init__(self, function: StepFunction, like: Any) -> None:
        self._function, self._several = function, not isinstance(like, Tensor)
        parts = parts_of(like)
        self.dtype = flat(parts).dtype
        self._shapes = [part.shape[1:] for part in parts]
        self.units = sum(shape.numel() for shape in self._shapes)
        self.hidden = slice(0, self.units)

    def __call__(self, state: Tensor, x: Tensor | None) -> Tensor:
        """What the function gives, flat."""
        sizes = [shape.numel() for shape in self._shapes]
        parts = [
            part.view(len(part), *shape) for part, shape in zip(torch.split(state, sizes, 1), self._shapes)
        ]
        given = tuple(parts) if self._several else parts[0]
        result = self._function(given) if x is None else self._function(given, x)
        found = list(result) if isinstance(result, tuple | list) else [result]
        if [getattr(part, "shape", None) for part in found] != [part.shape for part in parts]:
            shapes = ", ".join(str(tuple(getattr(part, "shape", ()))) for part in found)
            raise InputError(
                f"a step gives {shapes}, but its state is {', '.join(str(tuple(p.shape)) for p in parts)}: "
                "let f(h, x) return the next state in the form of h."
            )
        return flat(found)

    def push(self, state: Tensor, x: Tensor | None, vectors: Tensor) -> Tensor:
        """By the whole Jacobian, row by row."""
        with torch.enable_grad():
            before = state.detach().requires_grad_()
            after = self(before, x)
        return jacobian_of(after, [before]) @ vectors


def flat(parts: Sequence[Tensor]) -> Tensor:
    """Tensors (samples, ...) side by side as (samples, units)."""
    return torch.cat([part.flatten(1) for part in parts], 1)


def parts_of(states: Any) -> list[Tensor]:
    """The tensors of states that a user gives, one or several, checked."""
    parts = list(states) if isinstance(states, tuple | list) else [states]
    if not parts or not all(is_plain(part) and part.ndim > 1 and part.numel() for part in parts):
        raise InputError("states must be a real tensor (samples, units), or a tuple of them.")
    return parts


def is_plain(value: Any) -> bool:
    """Whether it is a tensor of real numbers that are there, one by one."""
    return (
        isinstance(value, Tensor)
        and value.is_floating_point()
        and value.layout == torch.strided
        and value.device.type != "meta"
    )


def jacobian_of(after: Tensor, before: Sequence[Tensor]) -> Tensor:
    """d after / d before of every sample, (samples, units, units), where samples do not mix."""
    if not after.requires_grad:
        raise NotSupportedError(
            "a step does not depend differentiably on the state before: leave out detach, no_grad and numpy."
        )
    samples, units = after.shape
    rows = torch.eye(units, dtype=after.dtype, device=after.device)[:, None].expand(-1, samples, -1)
    options: dict[str, Any] = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
    try:
        found = torch.autograd.grad(after, before, rows, is_grads_batched=True, **options)
    except RuntimeError:  # what cannot go through it in a batch goes one by one
        each = [torch.autograd.grad(after, before, row, **options) for row in rows]
        found = tuple(torch.stack(parts) for parts in zip(*each))
    return torch.cat([part.flatten(2) for part in found], 2).transpose(0, 1)


def read_map(model: Any, start: Any = None, states: States = None) -> StateMap:
    """One step of a function f(h, x) with states like ``start``, of a layer or cell, or of the one in a module."""
    _check_names(states)
    if isinstance(model, nn.Module):
        module = model if isinstance(model, nn.RNNCellBase) else _recurrent_part(model, states)
        if module is None:
            raise InputError(
                f"{type(model).__name__} holds no recurrent layer of torch that says how a step goes on: give the "
                "step as a function f(h, x), or the cell."
            )
        return _module_map(module)
    if not callable(model):
        raise InputError(
            f"`model` is a {type(model).__name__}: give an nn.Module, or one step as a function f(h, x)."
        )
    if start is None:
        raise InputError("a function f(h, x) does not say how large its states are: give some to start from.")
    return FunctionMap(model, start)


def _module_map(module: nn.RNNBase | nn.RNNCellBase) -> StateMap:
    """By slopes where the module is one plain layer, else by a copy in float64 that is differentiated."""
    if isinstance(module, nn.RNNCellBase):
        return _checked(LayerMap(module), module, partial(_step_of_cell, module))
    if module.bidirectional:
        raise NotSupportedError(
            "a bidirectional layer runs through time both ways, so that no step leads to the next: give a layer in "
            "one direction."
        )
    step = partial(_step_of_layer, module)
    if module.num_layers == 1 and not module.proj_size:
        return _checked(LayerMap(module), module, step)
    refuse_ill_defined(module)
    twin = copy.deepcopy(module).double().cpu().eval()
    sizes = [
        module.proj_size or module.hidden_size,
        *([module.hidden_size] if isinstance(module, nn.LSTM) else []),
    ]
    like = tuple(torch.zeros(1, module.num_layers, size, dtype=torch.float64) for size in sizes)
    stacked = FunctionMap(partial(_step_of_layer, twin), like)
    stacked.inputs, stacked.hidden = module.input_size, slice(0, module.num_layers * sizes[0])
    return stacked


def _step_of_cell(cell: nn.RNNCellBase, state: Sequence[Tensor], x: Tensor) -> tuple[Tensor, ...]:
    result = cell(x, tuple(state) if len(state) > 1 else state[0])
    return tuple(result) if isinstance(result, tuple) else (result,)


def _step_of_layer(layer: nn.RNNBase, state: Sequence[Tensor], x: Tensor | None = None) -> tuple[Tensor, ...]:
    """States (samples, layers, units), inputs (samples, features)."""
    given = state[0].new_zeros(len(state[0]), layer.input_size) if x is None else x
    first = [part.transpose(0, 1).contiguous() for part in state]
    _, last = layer(
        given[:, None] if layer.batch_first else given[None], tuple(first) if len(first) > 1 else first[0]
    )
    return tuple(part.transpose(0, 1) for part in (last if isinstance(last, tuple) else (last,)))


def _checked(
    known: LayerMap, module: nn.RNNBase | nn.RNNCellBase, step: Callable[..., tuple[Tensor, ...]]
) -> LayerMap:
    """The step that is written out must be what the module computes: a subclass may do something else."""
    source, like = torch_generator(0), next(module.parameters())
    state = torch.randn(2, known.units, generator=source, dtype=torch.float64)
    x = torch.randn(2, module.input_size, generator=source, dtype=torch.float64)
    parts = [part.to(like) for part in torch.split(state, known.size, 1)]
    if isinstance(module, nn.RNNBase):
        parts = [part[:, None] for part in parts]
    with torch.no_grad(), unchanged(module):
        mine, its = known(state, x), flat(step(parts, x.to(like)))
    if not close(its, mine.to(its)):
        raise NotSupportedError(
            f"{type(module).__name__} does not compute what its weights say: give its step as a function f(h, x)."
        )
    return known


def _check_names(states: Any) -> None:
    several = (
        isinstance(states, list | tuple) and len(states) and all(isinstance(name, str) for name in states)
    )
    if not (states is None or isinstance(states, str) or several):
        raise InputError("`states=` names no modules: give the path of one, or a list of them.")


def _recurrent_part(model: nn.Module, states: States) -> nn.RNNBase | None:
    """The recurrent layer that is meant; None if the model has none, or other states are named."""
    modules = dict(model.named_modules())
    if isinstance(states, str) and isinstance(module := modules.get(states), nn.RNNBase):
        return module
    layers = {name: part for name, part in modules.items() if isinstance(part, nn.RNNBase)}
    if states is not None or not layers:
        return None
    if len(layers) > 1:
        raise InputError(
            f"the model has several recurrent layers ({', '.join(map(repr, layers))}): choose one with `states=`."
        )
    return next(iter(layers.values()))


class Run(ABC):
    """A batch on its way: ``states`` (samples, times, units), and the Jacobians of the ``steps`` between them."""

    def __init__(self, states: Tensor, hidden: slice | Tensor) -> None:
        self.states, self.dtype = states, states.dtype
        self.samples, times, self.units = states.shape
        self.steps, self.hidden = (
            times - 1,
            hidden,
        )  # the second: places of units that are no cells of an LSTM
        if not bool(torch.isfinite(states).all()):
            raise InputError(
                "the states grow beyond all bounds on the way: give fewer steps or other first states."
            )

    @abstractmethod
    def push(self, time: int, vectors: Tensor, rows: slice | Tensor = slice(None)) -> Tensor:
        """J V of one step, for all samples or some: (samples, units, vectors)."""

    def jacobian(self, time: int, rows: slice | Tensor = slice(None)) -> Tensor:
        """The Jacobian of one step: (samples, units, units)."""
        eye = torch.eye(self.units, dtype=self.dtype, device=self.states.device)
        return self.push(time, eye.expand(len(self.states[rows]), -1, -1), rows)


class MapRun(Run):
    """A map that is iterated from first states, with inputs (samples, steps, ...) or none."""

    def __init__(self, step: StateMap, first: Tensor, inputs: Tensor | None, steps: int) -> None:
        self._step, self._inputs = step, inputs
        found = [first]
        with torch.no_grad():
            for time in range(steps):
                found.append(step(found[-1], None if inputs is None else inputs[:, time]))
        super().__init__(torch.stack(found, 1), step.hidden)

    def push(self, time: int, vectors: Tensor, rows: slice | Tensor = slice(None)) -> Tensor:
        """By the map's own products."""
        given = None if self._inputs is None else self._inputs[rows, time]
        return self._step.push(self.states[rows, time], given, vectors)


class NamedRun(Run):
    """A loop of a model that modules named as states are called in: their results, joined, at every call."""

    def __init__(self, model: nn.Module, x: Any, paths: Sequence[str]) -> None:
        modules = dict(model.named_modules())
        for path in paths:
            if path not in modules:
                raise InputError(
                    f"the model has no module {path!r}: name one whose result is the state in `states=`."
                )
        refuse_ill_defined(model)
        calls: dict[str, list[list[Tensor]]] = {path: [] for path in paths}

        def note(path: str, module: nn.Module, _: Any, result: Any) -> Any:
            # A recurrent layer gives its outputs and then its states, (layers, samples, units).
            is_layer, kept = isinstance(module, nn.RNNBase), []

            def connected(value: Any) -> Any:
                """A node of the graph; the model goes on with a copy, which it may change in place."""
                if not isinstance(value, Tensor) or not value.is_floating_point():
                    return value
                node = (value.transpose(0, 1) if is_layer else value) + value.new_zeros(()).requires_grad_()
                kept.append(node)
                return (node.transpose(0, 1) if is_layer else node).clone()

            handed = mapped(connected, result)
            calls[path].append(kept[1:] if is_layer else kept)
            return handed

        with ExitStack() as stack:
            stack.enter_context(unchanged(model))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(explained(x, model.parameters()))
            for path in paths:
                stack.callback(modules[path].register_forward_hook(partial(note, path)).remove)
            call_with(model, x)
        counts = {path: len(found) for path, found in calls.items()}
        if len(set(counts.values())) > 1 or min(counts.values()) < 3:
            raise InputError(
                f"`states=` names modules with {', '.join(f'{n} calls ({p})' for p, n in counts.items())}: "
                "name what is called once in each of three steps or more, or give the step as a function."
            )
        self._parts: list[list[Tensor]] = [[*chain(*parts)] for parts in zip(*calls.values())]
        # An LSTM gives its hidden part first, and then its cell.
        with_cell = [path for path in paths if isinstance(modules[path], nn.LSTM | nn.LSTMCell)]
        is_hidden = [
            torch.full((flat([part]).shape[1],), path not in with_cell or number == 0)
            for path, found in calls.items()
            for number, part in enumerate(found[0])
        ]
        super().__init__(
            torch.stack([flat(parts).detach() for parts in self._parts], 1),
            torch.cat(is_hidden).nonzero()[:, 0],
        )
        self._refuse_other_ways()

    def _refuse_other_ways(self) -> None:
        """All that reaches a state from the one before the last must come through the last."""
        first, second, third = self._parts[:3]
        last = flat(third)
        vector = torch.randn(last.shape, generator=torch_generator(0)).to(last)
        options: dict[str, Any] = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}
        if last.requires_grad:
            through = torch.autograd.grad(
                second, first, torch.autograd.grad(last, second, vector, **options), **options
            )
            if close(flat(torch.autograd.grad(last, first, vector, **options)), flat(through)):
                return
        raise NotSupportedError(
            "the states named in `states=` do not lead from one step to the next alone: name all that the loop "
            "keeps, or give the step as a function f(h, x)."
        )

    def push(self, time: int, vectors: Tensor, rows: slice | Tensor = slice(None)) -> Tensor:
        """From the graph of the loop."""
        return jacobian_of(flat(self._parts[time + 1]), self._parts[time])[rows] @ vectors


def read_run(
    model: Any,
    x: Any = None,
    *,
    states: States = None,
    start: Any = None,
    steps: int | None = None,
    seed: Seed = 0,
) -> Run:
    """The states of a model for a batch, however its loop is written.

    A function f(h, x) goes from ``start``; a recurrent layer, or a model with one, has its own first states; of
    other models ``states`` names the modules whose results are the states. Without ``x`` a function or layer goes
    ``steps`` steps by itself, a layer from random states where there is no ``start``.
    """
    _check_names(states)
    if x is not None:
        if not all(
            is_plain(leaf) for leaf in leaves(x) if isinstance(leaf, Tensor) and leaf.is_floating_point()
        ):
            raise InputError("`x` holds a sparse tensor, or one without numbers: give plain ones.")
        x = as_batch(x).arguments
    if x is None:
        if steps is None:
            raise InputError("without inputs `x` nothing says how long to go on: give `steps=`.")
        whole_number("steps", steps)
    elif steps is not None:
        raise InputError(
            "`steps=` is for models that run without inputs: leave it out, the inputs say how many."
        )
    if not isinstance(model, nn.Module):
        step = read_map(model, start)
        first = flat(parts_of(start)).detach()
        inputs = None if x is None else _sequence(x, len(first))
        run = MapRun(step, first, inputs, steps or 0 if inputs is None else inputs.shape[1])
        _refuse_mixing(step, first, None if inputs is None else inputs[:, 0])
        return run
    module: nn.RNNBase | nn.RNNCellBase | None
    call: tuple[Tensor, Tensor | None] | None = None  # inputs and first states of the layer
    if isinstance(model, nn.RNNCellBase):
        module, call = model, None if x is None else (_sequence(x), None)
    else:
        module = _recurrent_part(model, states)
        if module is not None and x is not None:
            call = _call_of(model, module, x)
    if x is not None and call is None:
        return NamedRun(model, x, _paths(model, module, states))
    if module is None:
        raise InputError(
            "this model does not run by itself: give inputs `x`, or its step as a function f(h)."
        )
    step = _module_map(module)
    given, initial = (None, None) if call is None else call
    if start is not None:
        initial = flat(parts_of(start))
        if initial.shape[1] != step.units:
            raise InputError(
                f"`start` has shape {tuple(initial.shape)}, but must be (samples, {step.units} units)."
            )
    if initial is None:
        initial = random_states(step, _TRIALS, seed) if given is None else torch.zeros(len(given), step.units)
    initial = initial.detach().cpu().to(step.dtype)
    if given is None:
        return MapRun(step, initial, None, steps or 0)
    if len(given) != len(initial):
        raise InputError(f"`start` has {len(initial)} samples, `x` has {len(given)}: give as many.")
    return MapRun(step, initial, given.detach().cpu().to(step.dtype), given.shape[1])


def random_states(step: StateMap, count: int, seed: Seed) -> Tensor:
    """Uniform in the cube of side 2, shrunk by a random factor."""
    source = torch_generator(seed)
    cube = 2 * torch.rand(count, step.units, dtype=torch.float64, generator=source) - 1
    return (cube * torch.rand(count, 1, dtype=torch.float64, generator=source)).to(step.dtype)


def _sequence(x: Any, samples: int | None = None) -> Tensor:
    if not isinstance(x, Tensor) or x.ndim < 3 or (samples is not None and len(x) != samples):
        shape = tuple(x.shape) if isinstance(x, Tensor) else type(x).__name__
        rows = "samples" if samples is None else f"{samples} samples"
        raise InputError(f"`x` is {shape}: give a tensor ({rows}, steps, features).")
    return x


def _call_of(model: nn.Module, module: nn.RNNBase, x: Any) -> tuple[Tensor, Tensor | None] | None:
    """Inputs and first states of the layer when the model runs; None if it is called again and again."""
    calls: list[tuple[Any, ...]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((*args, *kwargs.values()))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        with unchanged(model), torch.no_grad(), explained(x, model.parameters()):
            call_with(model, x)
    finally:
        handle.remove()
    if len(calls) != 1:
        return None
    given, first = (*calls[0], None)[:2]
    if not isinstance(given, Tensor) or given.ndim != 3:
        raise InputError(
            f"{type(module).__name__} must be given a batch (samples, steps, features): pad packed sequences, and "
            "add a batch axis to a single one."
        )
    parts = [] if first is None else [*first] if isinstance(first, tuple) else [first]
    joined = flat([part.transpose(0, 1) for part in parts]) if parts else None
    return given if module.batch_first else given.transpose(0, 1), joined


def _paths(model: nn.Module, module: nn.Module | None, states: States) -> list[str]:
    """The modules whose results are states: those that are named, or the only layer or cell."""
    if states is not None:
        return [states] if isinstance(states, str) else list(states)
    named = model.named_modules()
    found = [name for name, part in named if part is module or isinstance(part, nn.RNNCellBase)]
    if len(found) != 1:
        raise InputError(
            f"the model holds {'several' if found else 'no'} recurrent layers or cells of torch: name the modules "
            "whose results are the states in `states=`, or give its step as a function f(h, x)."
        )
    return found


def _refuse_mixing(step: StateMap, first: Tensor, x: Tensor | None) -> None:
    """Samples must not depend on each other: the Jacobian of each is taken by itself."""
    if len(first) > 1:
        with torch.no_grad(), suppress(RuntimeError):  # what takes one size of batch only
            if not close(step(first, x)[:1], step(first[:1], None if x is None else x[:1])):
                raise InputError(
                    "f(h, x) mixes the samples of a batch: let every one follow from its own state."
                )
