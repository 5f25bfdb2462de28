"""``global_ntk``: the kernel of everything that a model computes on its way."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.graph.dynamics import GraphDynamics
from foretrain.empirical.global_ntk.implicit.dynamics import ImplicitDynamics
from foretrain.empirical.global_ntk.kernel import GlobalNTK
from foretrain.empirical.global_ntk.recurrent.cell_loops import cell_loop
from foretrain.empirical.global_ntk.recurrent.dynamics import RecurrentDynamics, as_samples_first
from foretrain.empirical.models.arguments import Batch, as_batch, chosen, trainable
from foretrain.empirical.models.model import call_with, explained, refuse_ill_defined, unchanged
from foretrain.operators import SumSpace
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.threads import on_free_cores


@on_free_cores()
def global_ntk(
    model: Any,
    x: Any,
    states: Any = None,
    *,
    parameters: Any = None,
    equilibrium: Any = None,
    tolerance: float | None = None,
    batch_axis: int = 0,
    shared: Collection[str | int] = (),
) -> GlobalNTK:
    """NTK_S = J J* of a model's internal states for a batch, as an operator that is never written out.

    Parameters
    ----------
    model
        An ``nn.Module``. A recurrent module (nn.RNN, nn.GRU, nn.LSTM) or a model with one inside has the states that
        it returns at every step, with axes (batch, time, unit), those of both directions side by side. Any other
        model has the states named in ``states``. With ``equilibrium=``: a constraint F(h, x) = 0, as a module called
        with (h, x), or a function f(parameters, h, x) with ``parameters=`` leaf tensors.
    x
        What the model takes: a tensor, a tuple, a dict.
    states
        Of a recurrent module: names such as ``"hidden"`` and ``"cell"`` (with the number of the layer and "reverse"
        where there are several). Of other models: paths of submodules whose results are the states, (path, entry)
        where they return several, or {name: path}; a module that is called T times has T times. By default what the
        model returns, the first tensor of several.
    parameters
        Those that count: names, patterns, tensors or a function ``(name, tensor) -> bool``. By default all with
        ``requires_grad``.
    equilibrium
        The state h (samples, ...) that solves F(h, x, theta) = 0; ``foretrain.empirical.global_ntk.solve`` finds it.
        ``tolerance`` says how far from the solution it may be, relative to its length.

    Examples
    --------
    >>> import torch, foretrain as ft
    >>> kernel = ft.global_ntk(torch.nn.GRU(2, 5, batch_first=True), torch.randn(3, 4, 2))
    >>> kernel.domain.describe()
    '(batch 3, time 4, unit 5)'
    >>> kernel.temporal().domain.describe()
    '(batch 3, time 4)'
    """
    if states is not None and not isinstance(states, str | Mapping | Sequence):
        raise InputError(
            f"`states=`{states!r} names no state: give names such as 'hidden', paths of modules, or {{name: path}}."
        )
    if isinstance(x, nn.utils.rnn.PackedSequence):
        raise InputError(
            "x is a packed sequence, whose samples have different steps: pad it, and pass the tensor."
        )
    with unchanged(model):
        if equilibrium is not None:
            state = torch.as_tensor(equilibrium)
            return GlobalNTK(ImplicitDynamics(model, state, x, parameters, tolerance))
        if not isinstance(model, nn.Module):
            raise InputError(
                f"`model` must be an nn.Module, not {type(model).__name__}: give a constraint F(h, x) = 0 together "
                "with `equilibrium=`."
            )
        module = getattr(model, "_orig_mod", model)
        recurrent = {name: part for name, part in module.named_modules() if isinstance(part, nn.RNNBase)}
        if recurrent and _are_recurrent_states(states, module):
            given = as_batch(x, batch_axis, shared).arguments
            return _of_recurrent(module, recurrent, given, states, parameters)
        if batch_axis == 0:
            _refuse_time_first(module, recurrent, x)
        if (loop := _of_cell_loop(module, states, parameters, as_batch(x, batch_axis, shared))) is not None:
            return GlobalNTK(loop)
        graph = GraphDynamics(
            module, x, "" if states is None else states, parameters, batch_axis=batch_axis, shared=shared
        )
        return GlobalNTK(graph)


def _are_recurrent_states(states: Any, model: nn.Module) -> bool:
    """Whether states are meant by what they are in a recurrent layer, not by where modules are."""
    if states is None:
        return True
    names = [states] if isinstance(states, str) else states
    if isinstance(names, Mapping) or not all(isinstance(name, str) for name in names):
        return False
    paths = {name for name, _ in model.named_modules()}
    if set(names) <= paths:
        return False
    return paths == {""} or any(name.startswith(("hidden", "cell")) for name in names)


def _of_recurrent(
    model: nn.Module, recurrent: Mapping[str, nn.RNNBase], x: Any, states: Any, parameters: Any
) -> GlobalNTK:
    if len(recurrent) > 1:
        names = ", ".join(repr(name) for name in recurrent)
        raise NotSupportedError(
            f"the model has several recurrent layers ({names}): name those whose results are the states with "
            "`states=`, or pass one of them alone."
        )
    ((path, module),) = recurrent.items()
    refuse_ill_defined(model)
    counted = chosen(trainable(model, None), parameters)
    prefix = f"{path}." if path else ""
    given, start = _given(model, module, x, counted, prefix)
    own = {name: value for name, value in counted.items() if name.startswith(prefix)}
    if not own:
        raise InputError(
            "no counted parameter belongs to the recurrent layer, so that its states do not change: count some of "
            "its own with `parameters=`."
        )
    dynamics = RecurrentDynamics(module, given, start, own, prefix)
    if isinstance(dynamics.space, SumSpace):
        members = [states] if isinstance(states, str) else states
        return GlobalNTK(
            dynamics, dynamics.returned if states is None else members, side_by_side=states is None
        )
    if states is not None and [states] != ["hidden"] and list(states) != ["hidden"]:
        raise InputError(
            f"this recurrent layer has one state, 'hidden', not {states!r}: leave `states=` out."
        )
    return GlobalNTK(dynamics)


def _of_cell_loop(model: nn.Module, states: Any, parameters: Any, batch: Batch) -> RecurrentDynamics | None:
    """The dynamics of a loop over a cell that is named as the state; None if there is none that is a layer."""
    named = {"": states} if isinstance(states, str) else states
    places = [*named.values()] if isinstance(named, Mapping) else []
    modules = dict(model.named_modules())
    if len(places) != 1 or places[0] not in modules:
        return None
    refuse_ill_defined(model)
    counted = chosen(trainable(model, None), parameters)
    return cell_loop(modules[places[0]], lambda: _run(model, batch.arguments), batch.count, counted)


def _given(
    model: nn.Module, module: nn.RNNBase, x: Any, counted: Mapping[str, Tensor], prefix: str
) -> tuple[Tensor, list[Tensor] | None]:
    """What the recurrent layer is given when the model runs: its inputs, samples first, and its first state."""
    calls: list[tuple[Any, ...]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((*args, *kwargs.values()))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        _run(model, x)
    finally:
        handle.remove()
    if len(calls) != 1:
        raise NotSupportedError(
            f"the recurrent layer is called {len(calls)} times in one pass: name it as a state with `states=`, which "
            "takes every call as one time."
        )
    given = as_samples_first(module, calls[0][0])
    first = calls[0][1] if len(calls[0]) > 1 else None
    start = None if first is None else list(first) if isinstance(first, tuple) else [first]
    _refuse_earlier(given, start, counted, prefix)
    return given.detach(), start


def _refuse_time_first(model: nn.Module, recurrent: Mapping[str, nn.RNNBase], x: Any) -> None:
    """A recurrent layer with batch_first=False that is given x itself says that its samples are along axis 1."""
    time_first = [part for part in recurrent.values() if not part.batch_first]
    if not time_first or not isinstance(x, Tensor) or x.ndim != 3:
        return
    given: list[Any] = []
    handles = [part.register_forward_pre_hook(lambda _, args: given.extend(args[:1])) for part in time_first]
    try:
        _run(model, x)
    finally:
        for handle in handles:
            handle.remove()
    if any(isinstance(part, Tensor) and part.data_ptr() == x.data_ptr() for part in given):
        raise InputError(
            "x goes into a recurrent layer with batch_first=False, so that its samples are along axis 1: pass "
            "`batch_axis=1`."
        )


def _run(model: nn.Module, x: Any) -> None:
    """One pass, with gradients, whatever the model returns."""
    with torch.enable_grad(), explained(x, model.parameters()):
        call_with(model, x)


def _refuse_earlier(
    given: Tensor, start: Sequence[Tensor] | None, counted: Mapping[str, Tensor], prefix: str
) -> None:
    """Parameters before the recurrent layer change its inputs, which the sweeps hold fixed."""
    outside = {name: value for name, value in counted.items() if not name.startswith(prefix)}
    reached = [part for part in [given, *(start or [])] if part.requires_grad]
    if not outside or not reached:
        return
    found = torch.autograd.grad([part.sum() for part in reached], list(outside.values()), allow_unused=True)
    before = [name for name, gradient in zip(outside, found) if gradient is not None]
    if before:
        raise NotSupportedError(
            f"the parameter {before[0]!r} acts before the recurrent layer: leave such parameters out with "
            "`parameters=`, or name the modules whose results are the states with `states=`."
        )
