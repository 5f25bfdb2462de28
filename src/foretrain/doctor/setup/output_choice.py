"""Which tensor of a model's result counts, as a hook on a private copy, so that calling the copy returns a tensor."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from foretrain.empirical.models.model import entry_of
from foretrain.support.errors import InputError

Output = str | int | None
_USUAL_NAME = "logits"


@dataclass(frozen=True)
class OutputChoice:
    """A forward hook: the entry that was asked for, or the first tensor; with the classes on axis 1 if told so."""

    output: Output = None
    classes_last: bool = False

    def __call__(self, module: nn.Module, arguments: Any, result: Any) -> Tensor:
        """What the hooked model returns instead."""
        found = _first(result) if self.output is None else entry_of(result, self.output)
        if not isinstance(found, Tensor):
            raise InputError(
                f"the model returns a {type(result).__name__} in which no tensor was found: "
                "say with `output=` which entry is meant, or wrap the model so that it returns a tensor."
            )
        return found.movedim(-1, 1) if self.classes_last else found


def choose_output(model: nn.Module, choice: OutputChoice) -> None:
    """Let this model return the chosen tensor from now on; an earlier choice is replaced."""
    _remove(model)
    model.register_forward_hook(choice)


def without_choice(model: nn.Module) -> nn.Module:
    """A copy that returns what the user's model returns."""
    bare = copy.deepcopy(model)
    _remove(bare)
    return bare


def _remove(model: nn.Module) -> None:
    for key, hook in list(model._forward_hooks.items()):
        if isinstance(hook, OutputChoice):
            del model._forward_hooks[key]


def _first(result: Any) -> Any:
    """The first tensor, looking into tuples, lists and mappings; what is called "logits" comes before others."""
    if isinstance(result, Mapping):
        if isinstance(result.get(_USUAL_NAME), Tensor):
            return result[_USUAL_NAME]
        entries = list(result.values())
    elif isinstance(result, list | tuple):
        entries = list(result)
    else:
        return result
    found = (_first(entry) for entry in entries)
    return next((tensor for tensor in found if isinstance(tensor, Tensor)), None)
