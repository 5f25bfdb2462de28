"""Observables look at a training without changing it: everything they might touch is put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

Container: TypeAlias = dict[str, Any] | list[Any]


class Snapshot:
    """Random states, modes, weights, buffers, other attributes, gradients and defaults, as they were then."""

    def __init__(self, model: nn.Module) -> None:
        self._modes = [(module, module.training) for module in model.modules()]
        # Attributes of a module, and the lists and dicts among them: parameters, buffers, hooks, kept states.
        own = [vars(module) for module in model.modules()]
        inside = [value for held in own for value in held.values() if isinstance(value, dict | list)]
        self._held = [(held, held.copy()) for held in (*own, *inside)]
        self._parameters = list(model.parameters())
        self._wanted = [parameter.requires_grad for parameter in self._parameters]
        self._gradients = [parameter.grad for parameter in self._parameters]
        values = [*self._parameters, *model.buffers(), *_kept_tensors(model)]
        self._values = [
            (value, value.data, value.detach().clone()) for value in values if value.layout == torch.strided
        ]
        self._random = _RandomStates()
        self._dtype = torch.get_default_dtype()

    def lend(self) -> None:
        """Evaluation mode, and copies of the gradients: an observable may read them, or call backward."""
        for module, _ in self._modes:
            module.training = False
        for parameter, gradient in zip(self._parameters, self._gradients):
            parameter.grad = None if gradient is None else gradient.detach().clone()

    def restore(self) -> None:
        """Put everything back."""
        torch.set_default_dtype(self._dtype)
        self._random.restore()
        for module, mode in self._modes:
            module.training = mode
        for container, content in self._held:
            _refill(container, content)
        for value, held, before in self._values:
            if value.dtype != held.dtype or value.data_ptr() != held.data_ptr():  # as model.double() does
                value.data = held
            if not torch.equal(held, before):
                held.copy_(before)
        for parameter, wanted, gradient in zip(self._parameters, self._wanted, self._gradients):
            parameter.requires_grad_(wanted)
            parameter.grad = gradient


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[Snapshot]:
    """Inside, gradients are on, inference mode and autocast off; ``lend`` and ``restore`` go around an observable."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    with torch.inference_mode(False), torch.enable_grad(), torch.autocast(device.type, enabled=False):
        snapshot = Snapshot(model)
        try:
            yield snapshot
        finally:
            snapshot.restore()


def plain(model: nn.Module) -> nn.Module:
    """What torch.compile was given: in another mode the compiled one would be compiled again."""
    found: nn.Module = getattr(model, "_orig_mod", model)
    return found


def _kept_tensors(model: nn.Module) -> Iterator[Tensor]:
    """Plain attributes, such as the hidden state that a recurrent model keeps between batches."""
    for module in model.modules():
        for value in vars(module).values():
            yield from (
                item for item in (value if type(value) is tuple else (value,)) if isinstance(item, Tensor)
            )


def _refill(held: Container, content: Container) -> None:
    if not (held or content):  # most of them
        return
    if isinstance(held, dict) and isinstance(content, dict):
        if held.keys() != content.keys() or any(held[key] is not item for key, item in content.items()):
            held.clear()
            held.update(content)
    elif isinstance(held, list) and (
        len(held) != len(content) or any(now is not before for now, before in zip(held, content))
    ):
        held[:] = content


class _RandomStates:
    """Of Python, numpy and torch."""

    def __init__(self) -> None:
        self._python = random.getstate()
        self._numpy = np.random.get_state(legacy=False)  # noqa: NPY002  # the state that a training may use
        self._cpu = torch.get_rng_state()
        in_use: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        self._devices = torch.cuda.get_rng_state_all() if in_use else []

    def restore(self) -> None:
        random.setstate(self._python)
        np.random.set_state(self._numpy)  # noqa: NPY002
        torch.set_rng_state(self._cpu)
        if self._devices:
            torch.cuda.set_rng_state_all(self._devices)
