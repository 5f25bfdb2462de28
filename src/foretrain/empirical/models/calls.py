"""How a model is called with what a user gives, and one sentence where it cannot be."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from foretrain.empirical.models.batches import leaves
from foretrain.support.errors import ForetrainError, InputError

_FAILURES = (RuntimeError, TypeError, ValueError, IndexError)  # of torch, where inputs do not fit
_OTHERS = (ForetrainError, NotImplementedError, torch.OutOfMemoryError)  # that have nothing to do with them


def call_with(function: Callable[..., Any], x: Any, first: tuple[Any, ...] = ()) -> Any:
    """function(*x) of a tuple or list, function(**x) of a dict whose keys are its arguments, else function(x).

    ``first`` are arguments before these.
    """
    if isinstance(x, tuple | list):
        return function(*first, *x)
    if isinstance(x, Mapping):
        declared = function.forward if isinstance(function, nn.Module) else function
        try:
            inspect.signature(declared).bind(*first, **x)
        except TypeError:
            pass  # its entries are no names of arguments: the dict itself is the argument
        else:
            return function(*first, **x)
    return function(*first, x)


def with_values(module: nn.Module, values: Mapping[str, Tensor]) -> Callable[..., Any]:
    """The module with other tensors in the place of some of its own, tied ones included."""

    @wraps(module.forward)  # with its signature, by which dicts of arguments are understood
    def called(*args: Any, **kwargs: Any) -> Any:
        return functional_call(module, dict(values), args, kwargs, tie_weights=True)

    return called


@contextmanager
def explained(x: Any, parameters: Iterable[Tensor], name: str = "x") -> Iterator[None]:
    """Around the first pass with inputs: where torch stumbles over them, say over what."""
    try:
        yield
    except _OTHERS:
        raise
    except _FAILURES as error:
        raise InputError(_explanation(x, list(parameters), name, error)) from error


def _explanation(x: Any, parameters: list[Tensor], name: str, error: Exception) -> str:
    given = [leaf for leaf in leaves(x) if isinstance(leaf, Tensor)]
    own = [value for value in parameters if value.is_floating_point()]
    dtypes, devices = {value.dtype for value in own}, {value.device for value in own}
    for leaf in given if own else []:
        if leaf.device not in devices:
            return f"`{name}` is on {leaf.device}, but the model on {own[0].device}: move one of them with .to(...)."
        if leaf.is_floating_point() and leaf.dtype not in dtypes:
            return (
                f"`{name}` is {_told(leaf.dtype)}, but the model is {_told(own[0].dtype)}: convert one of them with "
                f".to({own[0].dtype}) or .to({leaf.dtype})."
            )
    said = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
    shapes = ", ".join(f"{tuple(leaf.shape)} {_told(leaf.dtype)}" for leaf in given)
    return f"the model cannot be called on `{name}` of shape {shapes} ({said}): give what its forward takes."


def _told(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
