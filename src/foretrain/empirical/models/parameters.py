"""Which parameters count, with which learning rate, and to which layer each belongs."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from foretrain.support.errors import InputError, NotSupportedError

Chosen = str | Iterable[str | Tensor] | Callable[[str, Tensor], bool] | None
Rates = float | Mapping[str, float] | Sequence[Mapping[str, Any]] | Callable[[str, Tensor], float] | None


def trainable(model: Any, parameters: Any) -> dict[str, Tensor]:
    """All parameters with requires_grad by name; a tied one has the first of its names."""
    if isinstance(model, nn.Module):
        named: Iterable[tuple[str, Tensor]] = model.named_parameters()
    else:
        named = _flat(parameters)
    found = {name: value for name, value in named if value.requires_grad}
    computed = [name for name, value in found.items() if not value.is_leaf]
    for name, value in found.items():
        if value.is_complex():
            raise NotSupportedError(
                f"the parameter {name!r} is complex: keep its real and imaginary parts as two real parameters."
            )
    if computed:
        raise InputError(
            f"the parameter {computed[0]!r} is computed from other tensors: pass leaf tensors, for example "
            "value.detach().requires_grad_()."
        )
    if not found:
        raise InputError(
            "the model has no parameter with requires_grad: unfreeze some`, or pass a functional model's "
            "parameters= as leaf tensors that require grad|`."
        )
    return found


def _flat(parameters: Any, prefix: str = "") -> list[tuple[str, Tensor]]:
    """Parameters of a functional model: a tensor, or nested dicts and lists of tensors."""
    if isinstance(parameters, Tensor):
        return [(prefix or "parameters", parameters)]
    if isinstance(parameters, Mapping):
        items: Iterable[tuple[Any, Any]] = parameters.items()
    elif isinstance(parameters, Sequence) and not isinstance(parameters, str):
        items = enumerate(parameters)
    else:
        return []
    return [pair for key, part in items for pair in _flat(part, f"{prefix}.{key}" if prefix else str(key))]


def chosen(all_parameters: Mapping[str, Tensor], choice: Chosen) -> dict[str, Tensor]:
    """The subset that ``choice`` names: patterns such as "encoder.*", tensors, or a function (name, tensor)."""
    if choice is None:
        return dict(all_parameters)
    if isinstance(choice, nn.Module | Tensor):
        choice = list(choice.parameters()) if isinstance(choice, nn.Module) else [choice]
    if callable(choice):
        kept = {name: value for name, value in all_parameters.items() if choice(name, value)}
    else:
        wanted: list[Any] = [choice] if isinstance(choice, str) else list(choice)
        kept = {}
        for item in wanted:
            named = isinstance(item, tuple) and len(item) == 2 and isinstance(item[1], Tensor)
            kept |= _matching(all_parameters, item[1] if named else item)  # what named_parameters() gives
    if not kept:
        raise InputError("`parameters=` leaves no parameter: name at least one that requires grad.")
    return {name: value for name, value in all_parameters.items() if name in kept}


def _matching(
    all_parameters: Mapping[str, Tensor], item: str | Tensor, argument: str = "parameters"
) -> dict[str, Tensor]:
    if isinstance(item, Tensor):
        found = {name: value for name, value in all_parameters.items() if value is item}
        if not found:
            raise InputError(
                f"`{argument}=` holds a tensor that is no parameter of the model, or one without requires_grad."
            )
        return found
    if not isinstance(item, str):
        raise InputError(
            f"`{argument}=` holds a {type(item).__name__}: give names, patterns such as 'encoder.*', or parameters."
        )
    found = {
        name: value
        for name, value in all_parameters.items()
        if fnmatch.fnmatchcase(name, item) or name.startswith(f"{item}.")
    }
    if not found:
        known = ", ".join(list(all_parameters)[:8]) + (", ..." if len(all_parameters) > 8 else "")
        raise InputError(f"no parameter matches {item!r} in `{argument}`: the model has {known}.")
    return found


def rate_of_each(parameters: Mapping[str, Tensor], rates: Rates) -> dict[str, float]:
    """The weight of every parameter in the kernel; 1 where nothing is said.

    ``rates``: one number, a mapping of patterns, an optimizer or its ``param_groups`` (their ``lr``), or a function.
    """
    if rates is None:
        return dict.fromkeys(parameters, 1.0)
    rates = getattr(rates, "param_groups", rates)
    if callable(rates):
        found = {name: float(rates(name, value)) for name, value in parameters.items()}
    elif isinstance(rates, Mapping):
        found = dict.fromkeys(parameters, 1.0)
        for pattern, rate in rates.items():
            found |= dict.fromkeys(_matching(parameters, pattern, "rates"), float(rate))
    elif isinstance(rates, Sequence):
        found = _rates_of_groups(parameters, rates)
    elif isinstance(rates, int | float):
        found = dict.fromkeys(parameters, float(rates))
    else:
        raise InputError(
            f"`rates=` is a {type(rates).__name__}: give a number, {{pattern: rate}}, an optimizer, or a function."
        )
    bad = [name for name, rate in found.items() if not (rate >= 0 and math.isfinite(rate))]
    if bad:
        raise InputError(
            f"the rate of {bad[0]!r} is {found[bad[0]]}: rates must be finite and not negative, "
            "because the kernel needs their square roots."
        )
    return found


def _rates_of_groups(
    parameters: Mapping[str, Tensor], groups: Sequence[Mapping[str, Any]]
) -> dict[str, float]:
    rate_by_id: dict[int, float] = {}
    for group in groups:
        if not isinstance(group, Mapping) or "params" not in group or "lr" not in group:
            raise InputError(
                "`rates=` as a list must be an optimizer's param_groups, dicts with 'params' and 'lr'."
            )
        members = [group["params"]] if isinstance(group["params"], Tensor) else group["params"]
        rate_by_id |= {id(member): float(group["lr"]) for member in members}
    missing = [name for name, value in parameters.items() if id(value) not in rate_by_id]
    if missing:
        raise InputError(
            f"no group of `rates=` holds {missing[0]!r}: add it, or leave it out with `parameters=`."
        )
    return {name: rate_by_id[id(value)] for name, value in parameters.items()}


def layer_of(name: str) -> str:
    """The module that owns a parameter: its name without the last part."""
    return name.rpartition(".")[0] or name
