"""``global_ntk``: the kernel of everything that a model computes on its way."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.graph.continuous import ContinuousDynamics, Flow, Method
from foretrain.empirical.global_ntk.graph.dynamics import FREEZE, GraphDynamics
from foretrain.empirical.global_ntk.implicit.dynamics import ImplicitDynamics
from foretrain.empirical.global_ntk.kernel import GlobalNTK
from foretrain.empirical.global_ntk.recurrent.cell_loops import cell_loop
from foretrain.empirical.global_ntk.recurrent.dynamics import RecurrentDynamics, as_samples_first
from foretrain.empirical.global_ntk.trials import TrialDynamics
from foretrain.empirical.models.arguments import Batch, as_batch, chosen, leaves, trainable
from foretrain.empirical.models.model import (
    call_with,
    explained,
    refuse_ill_defined,
    refuse_random,
    unchanged,
)
from foretrain.operators import SumSpace
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.seeds import Seed, integer, kept_random_states
from foretrain.support.threads import on_free_cores

Noise = Literal["refused", "frozen"]


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
    noise: Noise = "refused",
    seed: Seed = 0,
    lengths: Sequence[int] | None = None,
    step: float | None = None,
    method: Method = "rk4",
    start: Tensor | None = None,
) -> GlobalNTK:
    """NTK_S = J J* of a model's internal states for a batch, as an operator that is never written out.

    A loop needs no preparation. Where the states that a model returns follow from each other, they are read where the
    model computes them, in the graph that it records, and ``.structure`` says what was taken:

    >>> import torch, foretrain as ft
    >>> class Loop(torch.nn.Module):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.W, self.U = (torch.nn.Parameter(0.3 * torch.randn(5, n)) for n in (5, 2))
    ...     def forward(self, x):
    ...         h, states = torch.zeros(len(x), 5), []
    ...         for t in range(x.shape[1]):
    ...             h = torch.tanh(h @ self.W.T + x[:, t] @ self.U.T)
    ...             states.append(h)
    ...         return torch.stack(states, 1)
    >>> kernel = ft.global_ntk(Loop(), torch.randn(3, 4, 2))
    >>> kernel.domain.describe()
    '(batch 3, time 4, unit 5)'
    >>> list(kernel.sites)
    ['W']

    Parameters
    ----------
    model
        An ``nn.Module``. One with a recurrent layer (nn.RNN, nn.GRU, nn.LSTM) has the states that this returns at
        every step, with axes (batch, time, unit), those of both directions side by side; one with several such layers
        has those of all, by name. Any other model has the states named in ``states``. With ``equilibrium=``: a
        constraint F(h, x) = 0, as a module called with (h, x), or a function f(parameters, h, x) with
        ``parameters=`` leaf tensors.
    x
        What the model takes: a tensor, a tuple, a dict, or a packed sequence that goes into a recurrent layer.
    states
        Of a recurrent module: names such as ``"hidden"`` and ``"cell"`` (with the number of the layer and "reverse"
        where there are several). Of other models: paths of submodules whose results are the states, (path, entry)
        where they return several, or {name: path}; "" is the model itself. A module that is called T times, or
        returns a list of T tensors, has T times. By default what the model returns, the first tensor of several.
    parameters
        Those that count: names, patterns, tensors or a function ``(name, tensor) -> bool``. By default all with
        ``requires_grad``.
    equilibrium
        The state h (samples, ...) that solves F(h, x, theta) = 0; ``foretrain.empirical.global_ntk.solve`` finds it.
        ``tolerance`` says how far from the solution it may be, relative to its length.
    noise
        "frozen" draws what the model draws at random (noise in a loop, dropout) from ``seed``, the same in every
        pass, so that the kernel is that of these draws. Otherwise such models are refused.
    lengths
        Of trials that are padded to one length: the states of a sample after so many steps are left out. Packed
        sequences say it themselves. The axes stay (batch, time, unit), with zeros at what is left out.
    step
        The time between states makes the model the right-hand side f(h, x) of dh/dt = f, called with the states
        (samples, units) and the inputs of one step, x[:, t]. ``method`` is "euler" or "rk4"; ``start`` the state
        before the first step, (samples, units) or (units,), learned if it is a Parameter. The constraint is then
        D_t h = f, so that P holds a factor of time.

    Examples
    --------
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
    if noise not in ("refused", "frozen"):
        raise unknown_name("`noise`", str(noise), ["refused", "frozen"])
    draws = None if noise == "refused" else integer(seed)
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
        if step is not None:
            flow = ContinuousDynamics(
                Flow(module, start, step, method), as_batch(x, batch_axis), parameters, draws
            )
            return GlobalNTK(flow if lengths is None else TrialDynamics(flow, lengths))
        is_packed = isinstance(x, nn.utils.rnn.PackedSequence)
        batch = Batch((x,), int(x.batch_sizes[0]), ()) if is_packed else as_batch(x, batch_axis, shared)
        if recurrent and _are_recurrent_states(states, module):
            if len(recurrent) == 1:
                found = _of_recurrent(module, recurrent, batch.arguments, states, parameters, draws, lengths)
                if found is not None:
                    return found
            elif states is not None:
                names = ", ".join(repr(name) for name in recurrent)
                raise InputError(
                    f"the model has several recurrent layers ({names}), so that {states!r} may mean any: name those "
                    "whose results are the states with `states=`, or leave it out for all."
                )
            states = tuple(recurrent)
        if is_packed:
            raise NotSupportedError(
                "a packed sequence is read where it goes into a recurrent layer of torch whose own parameters count: "
                "pad it for other models, and say where its trials end with `lengths=`."
            )
        if batch_axis == 0:
            _refuse_time_first(module, recurrent, x)
        if (loop := _of_cell_loop(module, states, parameters, batch, draws)) is not None:
            return GlobalNTK(loop if lengths is None else TrialDynamics(loop, lengths))
        graph = GraphDynamics(module, batch, "" if states is None else states, parameters, noise=draws)
        return GlobalNTK(graph if lengths is None else TrialDynamics(graph, lengths))


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
    model: nn.Module,
    recurrent: Mapping[str, nn.RNNBase],
    x: Any,
    states: Any,
    parameters: Any,
    noise: Seed | None,
    lengths: Sequence[int] | None,
) -> GlobalNTK | None:
    """The kernel of the one recurrent layer by sweeps; None if parameters act before it, or it is called again.

    Its own states by name, such as "cell", are known to the sweeps alone.
    """
    ((path, module),) = recurrent.items()
    refuse_ill_defined(model, is_frozen=noise is not None)
    counted = chosen(trainable(model, None), parameters)
    prefix = f"{path}." if path else ""
    own = {name: value for name, value in counted.items() if name.startswith(prefix)}
    calls = _calls(model, module, x, noise)
    reason = ""
    if len(calls) != 1:
        reason = f"the recurrent layer is called {len(calls)} times in one pass"
    elif earlier := _earlier(calls[0], counted, own):
        reason = f"the parameter {earlier[0]!r} acts before the recurrent layer"
    elif not own:
        raise InputError(
            "no counted parameter belongs to the recurrent layer, so that its states do not change: count some of "
            "its own with `parameters=`."
        )
    elif module.proj_size or any("." in name.removeprefix(prefix) for name in own):
        reason = (
            "the recurrent layer has another matrix inside its step, or weights that are computed from others"
        )
    if reason and states is None:
        return None
    if reason:
        raise NotSupportedError(
            f"{reason}: leave out `states=`, or give the path of the module whose results are the states, which are "
            "then read from the graph."
        )
    given, ends = _padded(module, calls[0][0])
    if path:
        refuse_random(given, _padded(module, _calls(model, module, x, noise)[0][0])[0], FREEZE)
    first = calls[0][1] if len(calls[0]) > 1 else None
    start = None if first is None else list(first) if isinstance(first, tuple) else [first]
    layers = RecurrentDynamics(module, given.detach(), start, own, prefix)
    known = ends if lengths is None else lengths
    dynamics = layers if known is None else TrialDynamics(layers, known)
    if isinstance(dynamics.space, SumSpace):
        members = [states] if isinstance(states, str) else states
        return GlobalNTK(
            dynamics, layers.returned if states is None else members, side_by_side=states is None
        )
    if states is not None and [states] != ["hidden"] and list(states) != ["hidden"]:
        raise InputError(
            f"this recurrent layer has one state, 'hidden', not {states!r}: leave `states=` out."
        )
    return GlobalNTK(dynamics)


def _of_cell_loop(
    model: nn.Module, states: Any, parameters: Any, batch: Batch, noise: Seed | None
) -> RecurrentDynamics | None:
    """The dynamics of a loop over a cell that is named as the state; None if there is none that is a layer."""
    named = {"": states} if isinstance(states, str) else states
    places = [*named.values()] if isinstance(named, Mapping) else []
    modules = dict(model.named_modules())
    if len(places) != 1 or places[0] not in modules:
        return None
    refuse_ill_defined(model, is_frozen=noise is not None)
    counted = chosen(trainable(model, None), parameters)
    return cell_loop(modules[places[0]], lambda: _run(model, batch.arguments, noise), batch.count, counted)


def _padded(module: nn.RNNBase, x: Any) -> tuple[Tensor, list[int] | None]:
    """What a layer is given as (samples, steps, features), and where trials end in a packed sequence."""
    if not isinstance(x, nn.utils.rnn.PackedSequence):
        return as_samples_first(module, x), None
    given, ends = nn.utils.rnn.pad_packed_sequence(x, batch_first=True)
    return given, ends.tolist()


def _calls(model: nn.Module, module: nn.Module, x: Any, noise: Seed | None) -> list[tuple[Any, ...]]:
    """What a module is given in every call when the model runs."""
    calls: list[tuple[Any, ...]] = []

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        calls.append((*args, *kwargs.values()))

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        _run(model, x, noise)
    finally:
        handle.remove()
    return calls


def _refuse_time_first(model: nn.Module, recurrent: Mapping[str, nn.RNNBase], x: Any) -> None:
    """A recurrent layer with batch_first=False that is given x itself says that its samples are along axis 1."""
    time_first = [part for part in recurrent.values() if not part.batch_first]
    if not time_first or not isinstance(x, Tensor) or x.ndim != 3:
        return
    given = [call[0] for part in time_first for call in _calls(model, part, x, None) if call]
    if any(isinstance(part, Tensor) and part.data_ptr() == x.data_ptr() for part in given):
        raise InputError(
            "x goes into a recurrent layer with batch_first=False, so that its samples are along axis 1: pass "
            "`batch_axis=1`."
        )


def _run(model: nn.Module, x: Any, noise: Seed | None) -> None:
    """One pass, with gradients, whatever the model returns."""
    same_draws = nullcontext() if noise is None else kept_random_states(noise)
    with torch.enable_grad(), same_draws, explained(x, model.parameters()):
        call_with(model, x)


def _earlier(call: Sequence[Any], counted: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> list[str]:
    """Parameters that change what the recurrent layer is given, which the sweeps hold fixed."""
    outside = {name: value for name, value in counted.items() if name not in own}
    reached = [part for part in leaves(tuple(call)) if isinstance(part, Tensor) and part.requires_grad]
    if not outside or not reached:
        return []
    found = torch.autograd.grad([part.sum() for part in reached], list(outside.values()), allow_unused=True)
    return [name for name, gradient in zip(outside, found) if gradient is not None]
