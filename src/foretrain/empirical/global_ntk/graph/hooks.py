"""States taken from a running model by hooks, and what is handed on in their place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.graph.states import StateName
from foretrain.empirical.kernel_operator.passes import differentiable_kernels
from foretrain.empirical.models.arguments import Batch
from foretrain.empirical.models.model import Model, refused_checkpoints, unchanged
from foretrain.support.errors import InputError, NotSupportedError

Handed = tuple[Tensor, Tensor]  # what is kept of a state, and what the model goes on with


def connected(state: Tensor) -> Handed:
    """The state as a node of the graph; the model goes on with a copy, which it may change in place.

    Nothing but the added zero may require a gradient yet: changes of this state reach the later ones all the same.
    """
    kept = state + state.new_zeros(()).requires_grad_()
    return kept, kept.clone()


def cut(state: Tensor) -> Handed:
    """The model goes on with the state's value alone, so that the graph of every state ends at those before it."""
    return state.clone(), state.detach().clone()


def untouched(state: Tensor) -> Handed:
    """Only the value is kept."""
    return state.detach().clone(), state


class HookedModel:
    """Runs a model with hooks at its states; the model is afterwards as it was."""

    def __init__(
        self, module: nn.Module, parameters: Mapping[str, Tensor], states: Sequence[StateName]
    ) -> None:
        self.states = states
        self._module = module
        # What the model returns does not matter: its states do.
        self._model = Model(module, parameters, output=lambda _: torch.zeros(1, 1, requires_grad=True))

    def use_plain_layers(self) -> None:
        """No fused recurrent kernels from now on: they hide products and have first derivatives alone."""
        self._model.unfused = True

    def run(
        self, batch: Batch, hand_on: Callable[[Tensor], Handed], differentiable: bool = True
    ) -> list[list[Tensor]]:
        """What is kept of every state, one tensor for each call of its module."""
        found: list[list[Tensor]] = [[] for _ in self.states]
        modules = dict(self._module.named_modules(remove_duplicate=False))
        with ExitStack() as stack:
            for path in dict.fromkeys(state.path for state in self.states):
                mine = [(s, kept) for s, kept in zip(self.states, found) if s.path == path]
                hook = _hook(mine, hand_on, differentiable)
                stack.callback(modules[path].register_forward_hook(hook).remove)
            stack.enter_context(unchanged(self._module))
            stack.enter_context(differentiable_kernels())
            stack.enter_context(refused_checkpoints())
            self._model(replace(batch, count=1, axis=0), differentiable)
        for state, kept in zip(self.states, found):
            if not kept:
                raise InputError(
                    f"the module {state.path!r} is never called as a module in the forward pass, so that it has no "
                    "state: name the module around it."
                )
        return found


def _hook(
    mine: Sequence[tuple[StateName, list[Tensor]]],
    hand_on: Callable[[Tensor], Handed],
    differentiable: bool,
) -> Callable[..., Any]:
    def hook(module: nn.Module, arguments: Any, result: Any) -> Any:
        for state, kept in mine:
            value = _state_in(result, state)
            if differentiable and not torch.is_grad_enabled():
                raise NotSupportedError(
                    f"the state {state.name!r} is computed without gradients (torch.no_grad or a reentrant "
                    "checkpoint around it), so that nothing is known of its changes: compute it with them."
                )
            taken, handed = hand_on(value)
            kept.append(taken)
            result = _with_entry(result, state.entry, handed)
        return result

    return hook


def _state_in(result: Any, state: StateName) -> Tensor:
    """The tensor of a module's result that is the state."""
    value, entry = result, 0 if state.entry is None else state.entry
    if not isinstance(result, Tensor):
        try:
            if isinstance(entry, str) and not isinstance(result, Mapping):
                value = getattr(result, entry)
            else:
                takes_first = isinstance(result, Mapping) and state.entry is None
                value = next(iter(result.values())) if takes_first else result[entry]
        except (AttributeError, KeyError, IndexError, TypeError, StopIteration):
            raise InputError(
                f"{state.path!r} returns a {type(result).__name__} that has no entry {entry!r}: choose another one "
                "with (path, entry)."
            ) from None
    if not isinstance(value, Tensor):
        raise InputError(
            f"the state {state.name!r} is a {type(value).__name__} in what {state.path!r} returns, not a tensor: "
            "pick an entry with (path, entry)."
        )
    if isinstance(result, Tensor) and state.entry is not None:
        raise InputError(
            f"{state.path!r} returns one tensor, which has no entry {state.entry!r}: leave it out."
        )
    if not value.is_floating_point():
        raise NotSupportedError(
            f"the state {state.name!r} has dtype {value.dtype}, which has no derivative: name a real one."
        )
    return value


def _with_entry(result: Any, entry: int | str | None, value: Tensor) -> Any:
    """The same result with another tensor in it."""
    if isinstance(result, Tensor):
        return value
    if isinstance(result, tuple):
        place = result._fields.index(entry) if isinstance(entry, str) else entry or 0  # type: ignore[attr-defined]
        parts = list(result)
        parts[place] = value
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    changed = copy.copy(result)
    if isinstance(changed, Mapping):
        changed[next(iter(changed)) if entry is None else entry] = value  # type: ignore[index]
    elif isinstance(entry, str):
        setattr(changed, entry, value)
    else:
        changed[entry or 0] = value
    return changed
