"""The one door: a name, a callable or a torch module becomes an Activation."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from foretrain.activations._activation import Activation
from foretrain.activations._catalogue import member
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.activations._callables.custom import Function, Kinks

_KNOWN_UFUNCS: dict[np.ufunc, str] = {
    np.tanh: "tanh",
    np.sin: "sin",
    np.cos: "cos",
    np.abs: "abs",
    np.square: "quadratic",
    np.positive: "linear",
    special.erf: "erf",
    special.expit: "sigmoid",
}


def activation(
    spec: str | Activation | Callable[..., Any],
    *,
    derivatives: Sequence[Function] | None = None,
    kinks: Kinks = "detect",
    name: str | None = None,
    **parameters: float,
) -> Activation:
    """An activation from a name, a torch module or function, or any callable of a numpy array.

    Such as ``activation("leaky_relu", slope=0.2)``, ``activation(nn.GELU())`` or ``activation(np.arctan)``.
    For a callable, ``derivatives=[f1, f2, ...]`` gives what is otherwise computed from its values, and
    ``kinks=(0.0, 1.5)`` says where derivatives jump, otherwise found on [-20, 20].
    """
    described = derivatives is not None or name is not None or not isinstance(kinks, str)
    if isinstance(kinks, str) and kinks != "detect":
        raise InputError(
            f"`kinks` must be 'detect' or the places of the kinks, such as (0.0,), not {kinks!r}."
        )
    if isinstance(spec, (str, Activation)):
        if described:
            raise InputError("derivatives, kinks and name describe a callable: leave them out here.")
        return _existing(spec, parameters)
    if isinstance(spec, type) or not callable(spec):
        hint = (
            "pass an instance, such as nn.ReLU()" if isinstance(spec, type) else "pass a name or a callable"
        )
        raise InputError(f"cannot make an activation of {spec!r}: {hint}.")
    if parameters:
        raise InputError(
            f"{next(iter(parameters))!r} cannot be passed on to a callable: "
            "bind it first, as in functools.partial(function, `slope=0.2`)."
        )
    if isinstance(spec, np.ufunc) and spec in _KNOWN_UFUNCS and not described:
        return member(_KNOWN_UFUNCS[spec], {})
    return _from_function(spec, derivatives, kinks, name)


def _existing(spec: str | Activation, parameters: dict[str, float]) -> Activation:
    if isinstance(spec, str):
        return member(spec, parameters)
    if parameters:
        raise InputError(f"{spec.label} is an activation already: parameters can only go with a name.")
    return spec


def _from_function(
    spec: Function, derivatives: Sequence[Function] | None, kinks: Kinks, name: str | None
) -> Activation:
    # Imported here because names, by far the commonest case, need none of it.
    from foretrain.activations._callables.custom import from_callable

    if derivatives is None and _belongs_to_torch(spec):
        from foretrain.activations._torch import from_torch

        return from_torch(spec, kinks, name)
    inner = spec.func if isinstance(spec, partial) else spec
    label = name or str(getattr(inner, "__name__", type(inner).__name__))
    return from_callable(spec, derivatives, kinks, label, f"the Python callable {label}")


def _belongs_to_torch(spec: Function) -> bool:
    """Whether to go by torch; without torch already loaded nothing can."""
    if "torch" not in sys.modules:
        return False
    inner = spec.func if isinstance(spec, partial) else spec
    homes = [getattr(inner, "__module__", None), *(kind.__module__ for kind in type(inner).__mro__)]
    if any(str(home).split(".")[0] == "torch" for home in homes):
        return True
    return _fails_without_tensors(spec)


def _fails_without_tensors(spec: Function) -> bool:
    """Whether a plain function fails on numpy arrays and on numbers, but takes a tensor."""
    for trial in (np.zeros(3), 0.5):
        try:
            spec(trial)
        except Exception:  # anything may come out of a user's function
            continue
        return False
    from foretrain.activations._torch import takes_tensors

    return takes_tensors(spec)
