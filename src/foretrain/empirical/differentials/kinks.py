"""Operations whose slope jumps, seen in the graph of a model's outputs."""

from __future__ import annotations

from typing import Any

from torch import Tensor

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
