"""Loops over a GRU or RNN cell, read as the recurrent layer that they are.

The graph of such a loop gives the same numbers; the layer's sweeps take less than half the time. What is not plainly
a layer (states that are changed, cut or mixed on their way to the next step, inputs that depend on parameters) is
left to the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.global_ntk.recurrent.cells import layer_of
from foretrain.empirical.global_ntk.recurrent.dynamics import RecurrentDynamics
from foretrain.empirical.models.model import close


def cell_loop(
    cell: nn.Module, run: Callable[[], object], samples: int, counted: Mapping[str, Tensor]
) -> RecurrentDynamics | None:
    """The dynamics of a cell that ``run`` calls step by step; None if it is not that of a layer.

    ``counted``: the parameters that count, of which the cell's own are taken.
    """
    if not isinstance(cell, nn.RNNCellBase) or type(cell) not in (nn.GRUCell, nn.RNNCell):
        return None
    own = {id(value) for value in cell.parameters()}
    parameters = {name: value for name, value in counted.items() if id(value) in own}
    first, again = _inputs_of_loop(cell, run, samples), _inputs_of_loop(cell, run, samples)
    if not parameters or first is None or again is None or not torch.equal(first[0], again[0]):
        return None
    inputs, start, states = first
    dynamics = RecurrentDynamics(layer_of(cell), inputs, start, parameters)
    return dynamics if close(states.flatten(), dynamics.values) else None


def _inputs_of_loop(
    cell: nn.Module, run: Callable[[], object], samples: int
) -> tuple[Tensor, list[Tensor] | None, Tensor] | None:
    """Inputs (samples, steps, features), the first state where one is given, and all states.

    None unless every step takes the state of the step before as it is, and an input that no parameter reaches.
    """
    calls: list[Any] = []
    results: list[tuple[Tensor, int]] = []
    is_layer = True

    def note(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], result: Tensor) -> None:
        nonlocal is_layer
        x = kwargs.get("input", args[0] if args else None)
        h = kwargs.get("hx", args[1] if len(args) > 1 else None)
        if results:
            before, version = results[-1]
            is_layer &= h is before and before._version == version
        elif h is not None:
            is_layer &= isinstance(h, Tensor) and not h.requires_grad and h.shape == result.shape
        is_layer &= isinstance(x, Tensor) and x.ndim == 2 and len(x) == samples and not x.requires_grad
        is_layer &= result.grad_fn is not None
        calls.append((x, h))
        results.append((result, result._version))

    handle = cell.register_forward_hook(note, with_kwargs=True)
    try:
        run()
    finally:
        handle.remove()
    if not is_layer or len(calls) < 2:
        return None
    start = None if calls[0][1] is None else [calls[0][1].detach()[None]]
    inputs = torch.stack([x.detach() for x, _ in calls], 1)
    return inputs, start, torch.stack([state.detach() for state, _ in results], 1)
