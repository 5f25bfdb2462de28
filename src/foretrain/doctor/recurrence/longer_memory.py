"""Longer memory for recurrent layers: gates that stay open as long as the task lasts, or weights that lose nothing.

The update gate of a GRU and the forget gate of an LSTM are sigmoids: with bias log T they forget in about T steps
(Tallec & Ollivier 2018, chrono initialisation; input gates stay, since real runs were faster so). Units get all times
from 1 to the length of the sequences. A plain recurrent layer keeps what its matrix keeps: the orthogonal matrix
nearest to the given one, or the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from foretrain.doctor.setup import Setup
from foretrain.doctor.setup.recipe import Group, Recipe


@dataclass(frozen=True)
class Change:
    """A change of a recurrent layer: what it does in words, and the same in Python for one layer."""

    name: str
    advice: str
    apply: Callable[[nn.RNNBase, int], None]
    code: str  # acts on ``layer``, inside of torch.no_grad(), with the number of ``steps``


def _open_gates(layer: nn.RNNBase, steps: int) -> None:
    units = layer.hidden_size
    for name, bias in layer.named_parameters():
        if name.startswith("bias_hh"):
            bias[units : 2 * units] += torch.linspace(1, steps, units).log().to(bias)


def _nearest_orthogonal(layer: nn.RNNBase, steps: int) -> None:
    for name, weight in layer.named_parameters():
        if name.startswith("weight_hh"):
            left, _, right = torch.linalg.svd(weight)
            weight.copy_(left @ right)


def _identity(layer: nn.RNNBase, steps: int) -> None:
    for name, weight in layer.named_parameters():
        if name.startswith("weight_hh"):
            weight.copy_(torch.eye(layer.hidden_size))


_GATE_CODE = """    units = layer.hidden_size
    for name, bias in layer.named_parameters():
        if name.startswith("bias_hh"):
            bias[units : 2 * units] += torch.linspace(1, steps, units).log().to(bias)"""
_GATES = {
    kind: Change(
        f"open the {gates} gates",
        f"Raise the biases of the {gates} gates by log T, with T from 1 to the length of the sequences, so that some "
        "units hold what they were told until it is asked for.",
        _open_gates,
        _GATE_CODE,
    )
    for kind, gates in ((nn.GRU, "update"), (nn.LSTM, "forget"))
}
_ORTHOGONAL = Change(
    "make the recurrent weights orthogonal",
    "Replace the recurrent matrix by the orthogonal one that is nearest to it, so that states keep their size.",
    _nearest_orthogonal,
    """    for name, weight in layer.named_parameters():
        if name.startswith("weight_hh"):
            left, _, right = torch.linalg.svd(weight)
            weight.copy_(left @ right)""",
)
_IDENTITY = Change(
    "start the recurrent weights from the identity",
    "Start the recurrent matrix from the identity, so that states stay where they are until inputs move them.",
    _identity,
    """    for name, weight in layer.named_parameters():
        if name.startswith("weight_hh"):
            weight.copy_(torch.eye(layer.hidden_size))""",
)


def changes_for(layer: nn.RNNBase, fresh: bool) -> Sequence[Change]:
    """What may lengthen the memory of a layer; the identity only where nothing is learned yet."""
    if isinstance(layer, nn.GRU | nn.LSTM):
        return (_GATES[nn.GRU if isinstance(layer, nn.GRU) else nn.LSTM],) if layer.bias else ()
    return (_ORTHOGONAL, _IDENTITY) if fresh else (_ORTHOGONAL,)


def changed(setup: Setup, change: Change, names: Sequence[str], steps: int) -> Setup:
    """With a change carried out on the layers of these names."""

    def carry_out(model: nn.Module) -> None:
        for name in names:
            layer = model.get_submodule(name)
            assert isinstance(layer, nn.RNNBase)
            change.apply(layer, steps)

    return setup.with_weights(carry_out)


def change_code(change: Change, names: Sequence[str], steps: int) -> str:
    """The same for the user's own model."""
    indented = "\n".join(f"    {line}" for line in change.code.splitlines())
    loop = f"    for layer in [model.get_submodule(name) for name in {list(names)!r}]:"
    return "\n".join([f"steps = {steps}  # length of the sequences", "with torch.no_grad():", loop, indented])


def adaptive_rate(layer: nn.RNNBase) -> float:
    """For Adam, whose steps change the sum over all units of a layer at once: a third of a unit, within custom.

    Without gates a change of the recurrent matrix acts anew at every step: there only the smallest trains well.
    """
    gated = isinstance(layer, nn.GRU | nn.LSTM)
    return float(f"{min(1e-2, max(1e-3, 0.3 / layer.hidden_size)):.2g}") if gated else 1e-3


def adaptive(setup: Setup, rate: float) -> Setup:
    """Trained by Adam instead."""
    names = tuple(name for group in setup.recipe.groups for name in group.names)
    return setup.with_recipe(Recipe(torch.optim.Adam, (Group(names, {"lr": rate}),)))


def adaptive_code(rate: float) -> str:
    """The same in Python."""
    return (
        'trained = [p for group in optimizer.param_groups for p in group["params"]]\n'
        f"optimizer = torch.optim.Adam(trained, lr={rate:g})"
    )
