"""The linear readout of the states, if a model has one: found by what it computes, not by its name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.empirical.models.model import call_with, close
from foretrain.empirical.target_modes import mask_weights
from foretrain.operators import Space
from foretrain.support.answers import Answer, Result, labelled
from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.kernel import GlobalNTK


@dataclass(frozen=True, repr=False, eq=False)
class Readout(Result):
    """outputs = weight h + bias at every place of the states, or only at the ``last`` step.

    ``name`` is the path of the layer; empty if the states are the outputs.
    """

    name: str
    weight: Tensor  # (outputs, units)
    bias: Tensor | None
    last: bool

    def outputs(self, states: Tensor) -> Tensor:
        """At every place."""
        return nn.functional.linear(states, self.weight, self.bias)

    def error(self, states: Tensor, target: Tensor, mask: Tensor | None = None) -> Tensor:
        """The gradient of half the sum of squares, weighed by a mask, by the states; targets (places, outputs).

        Where only the last step is read, other steps have none.
        """
        misfit = self.outputs(states) - target.to(states)
        misfit = misfit if mask is None else torch.where(mask > 0, misfit * mask, 0.0)
        if self.last:
            kept = torch.zeros_like(misfit)
            kept[:, -1] = misfit[:, -1]
            misfit = kept
        return misfit @ self.weight

    def answer(self) -> Answer:
        """Which layer it is, and its sizes."""
        where = "the states themselves" if not self.name else f"{self.name!r}"
        when = ", last step" if self.last else ""
        outputs, units = self.weight.shape
        return Answer(
            f"Readout({where}{when}: {units} units to {outputs} outputs)",
            data=lambda: labelled({"weight": ("output unit", self.weight), "bias": ("output", self.bias)}),
        )


def find_readout(model: nn.Module, x: Any, kernel: GlobalNTK) -> Readout | None:
    """The one linear layer that gives the model's outputs from the kernel's states; None if there is none or several.

    The states themselves are a readout too, by the identity, where the model returns them.
    """
    states = kernel.states
    if not isinstance(states, Tensor) or not isinstance(kernel.domain, Space):
        return None
    with torch.no_grad():
        outputs = call_with(model, x)
    outputs = outputs[0] if isinstance(outputs, tuple | list) and outputs else outputs
    if not isinstance(outputs, Tensor):
        return None
    if outputs.shape == states.shape and close(outputs, states):
        return Readout("", torch.eye(states.shape[-1]).to(states), None, last=False)
    has_time = "time" in kernel.domain.names[:-1]
    found = []
    for name, layer in model.named_modules():
        if not isinstance(layer, nn.Linear) or layer.in_features != states.shape[-1]:
            continue
        bias: Tensor | None = layer.bias
        for last in (False, True) if has_time else (False,):
            readout = Readout(name, layer.weight.detach(), None if bias is None else bias.detach(), last)
            mine = readout.outputs(states)[:, -1] if last else readout.outputs(states)
            if mine.shape == outputs.shape and close(outputs, mine):
                found.append(readout)
    return found[0] if len(found) == 1 else None


def named_layer(readout: Any, model: nn.Module | None) -> Any:
    """The module of that name; anything else as it is."""
    if not isinstance(readout, str):
        return readout
    if model is None:
        raise InputError(
            f"`readout=`{readout!r} is a name: give the model as `model=` too, or the layer itself."
        )
    modules = dict(model.named_modules())
    if readout not in modules:
        raise unknown_name(
            "layer", readout, [name for name, one in modules.items() if isinstance(one, nn.Linear)]
        )
    return modules[readout]


def readout_weight(readout: Any, model: nn.Module | None = None) -> Tensor:
    """The matrix (outputs, units) of a ``Readout``, of a linear layer or of its name in a model, or of an array."""
    given = named_layer(readout, model)
    given = given.weight if isinstance(given, Readout | nn.Linear) else given
    if isinstance(given, nn.Module):
        raise InputError(
            f"`readout=` is a {type(given).__name__}, which is not a linear layer: give its matrix (outputs, units)."
        )
    return given.detach() if isinstance(given, Tensor) else torch.as_tensor(np.asarray(given))


def as_readout(readout: Any, model: nn.Module | None = None, last: bool = False) -> Readout:
    """The same as a ``Readout``, with the layer's bias, read at all steps or at the last one alone."""
    given = named_layer(readout, model)
    if isinstance(given, Readout):
        return given
    name = readout if isinstance(readout, str) else type(given).__name__
    bias = given.bias.detach() if isinstance(given, nn.Linear) and given.bias is not None else None
    return Readout(name, readout_weight(given), bias, last)


def placed_target(y: Any, places: Space, readout: Readout | None) -> Tensor:
    """A target as (places, outputs): one for every sample stands at the last step, zero before."""
    values = torch.as_tensor(y)
    values = values if values.is_floating_point() else values.double()
    shape = places.shape
    scalar = tuple(values.shape) == shape and (readout is None or len(readout.weight) == 1)
    if scalar and not (readout is not None and readout.last):
        values = values[..., None]
    elif values.ndim == 2 and "time" in places.names and len(values) == shape[0]:
        whole = values.new_zeros(*shape, values.shape[-1])
        whole[:, -1] = values
        values = whole
    if tuple(values.shape[:-1]) != shape:
        raise InputError(
            f"y has shape {tuple(torch.as_tensor(y).shape)}, but the states have places {places.describe()}: give "
            "(samples, steps, outputs) or (samples, outputs)."
        )
    if readout is not None and values.shape[-1] != len(readout.weight):
        raise InputError(
            f"y has {values.shape[-1]} outputs, but the model's readout has {len(readout.weight)}: give one column "
            "for each."
        )
    return values


def placed_mask(mask: Any, shape: tuple[int, ...], target: Tensor) -> Tensor:
    """The mask of a target of this shape where ``placed_target`` has put it, with the shape of that."""
    weights = torch.from_numpy(np.ascontiguousarray(mask_weights(mask, shape)))
    if weights.numel() == target.numel():
        return weights.reshape(target.shape)
    placed = torch.zeros(target.shape, dtype=torch.float64)
    placed[:, -1] = weights
    return placed
