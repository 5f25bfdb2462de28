"""States taken from a running model by hooks, which hand on copies in their place."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge

from foretrain.empirical.global_ntk.graph.cuts import edge_of
from foretrain.empirical.global_ntk.graph.states import StateName
from foretrain.empirical.kernel_operator.passes import differentiable_kernels
from foretrain.empirical.models.arguments import Batch
from foretrain.empirical.models.model import Model, refused_checkpoints, unchanged
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, kept_random_states


@dataclass(frozen=True)
class Kept:
    """A state as a node of the graph, where the model computed it, and the number of the module's call."""

    tensor: Tensor
    origin: GradientEdge | None
    call: int


class HookedModel:
    """Runs a model with hooks at its states; the model is afterwards as it was."""

    def __init__(
        self,
        module: nn.Module,
        parameters: Mapping[str, Tensor],
        states: Sequence[StateName],
        noise: Seed | None = None,
    ) -> None:
        """With ``noise``, a seed, every run draws the same random numbers."""
        self.states = states
        self._module, self._noise = module, noise
        # What the model returns does not matter: its states do.
        self._model = Model(module, parameters, output=lambda _: torch.zeros(1, 1, requires_grad=True))

    def use_plain_layers(self) -> None:
        """No fused recurrent kernels from now on: they hide products and have first derivatives alone."""
        self._model.unfused = True

    def run(self, batch: Batch, differentiable: bool = True) -> list[list[Kept]]:
        """What is kept of every state, one tensor for each call of its module."""
        found: list[list[Kept]] = [[] for _ in self.states]
        modules = dict(self._module.named_modules(remove_duplicate=False))
        with ExitStack() as stack:
            for path in dict.fromkeys(state.path for state in self.states):
                mine = [(s, kept) for s, kept in zip(self.states, found) if s.path == path]
                hook = _hook(mine, differentiable)
                stack.callback(modules[path].register_forward_hook(hook).remove)
            stack.enter_context(unchanged(self._module))
            stack.enter_context(differentiable_kernels())
            stack.enter_context(refused_checkpoints())
            if self._noise is not None:
                stack.enter_context(kept_random_states(self._noise))
            self._model(replace(batch, count=1, axis=0), differentiable)
        for state, kept in zip(self.states, found):
            if not kept:
                raise InputError(
                    f"the module {state.path!r} is never called as a module in the forward pass, so that it has no "
                    "state: name the module around it."
                )
        return found


def _hook(mine: Sequence[tuple[StateName, list[Kept]]], differentiable: bool) -> Callable[..., Any]:
    """Keep the states among a module's results as nodes of the graph; the model goes on with copies of them.

    Nothing but the added zero may require a gradient yet: changes of a state reach the later ones all the same.
    """
    numbers = count()

    def hook(module: nn.Module, arguments: Any, result: Any) -> Any:
        call = next(numbers)
        for state, kept in mine:
            value = _state_in(result, state)
            if differentiable and not torch.is_grad_enabled():
                raise NotSupportedError(
                    f"the state {state.name!r} is computed without gradients (torch.no_grad or a reentrant "
                    "checkpoint around it), so that nothing is known of its changes: compute it with them."
                )
            several = value if isinstance(value, list) else [value]
            if not differentiable:
                kept += [Kept(part.detach().clone(), None, call) for part in several]
                continue
            nodes = [part + part.new_zeros(()).requires_grad_() for part in several]
            kept += [Kept(node, edge_of(part), call) for node, part in zip(nodes, several)]
            copies = [node.clone() for node in nodes]  # which may be changed in place
            result = _with_entry(result, state.entry, copies if isinstance(value, list) else copies[0])
        return result

    return hook


def _state_in(result: Any, state: StateName) -> Tensor | list[Tensor]:
    """The tensor of a module's result that is the state, or a list with one for every step."""
    value, entry = result, 0 if state.entry is None else state.entry
    if not isinstance(result, Tensor) and not (state.entry is None and _are_steps(result)):
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
    if _are_steps(value):
        return list(value)
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


def _are_steps(value: Any) -> bool:
    """Whether this is a list of real tensors of one shape."""
    return (
        isinstance(value, list)
        and len(value) > 1
        and all(isinstance(part, Tensor) and part.is_floating_point() for part in value)
        and len({part.shape for part in value}) == 1
    )


def _with_entry(result: Any, entry: int | str | None, value: Tensor | list[Tensor]) -> Any:
    """The same result with another tensor, or other steps, in it."""
    if isinstance(result, Tensor) or (entry is None and isinstance(value, list) and _are_steps(result)):
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
