"""What a recorder is given, checked before the training starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Literal

import torch
from torch import nn

from foretrain._version import __version__
from foretrain.support.errors import InputError
from foretrain.support.store import json_safe
from foretrain.training.observables.registry import Observable
from foretrain.training.recorder.isolation import plain
from foretrain.training.recorder.reading import FORMAT
from foretrain.training.recorder.schedule import whole
from foretrain.training.recorder.values import check_name

Counting = Literal["optimizer", "calls"]


def checked_model(model: Any) -> nn.Module:
    """A module whose parameters all have their shapes."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give an nn.Module.")
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(value):
            raise InputError(
                f"{name!r} has no shape yet: run the model once on a batch before it is recorded."
            )
    return model


def checked_observables(observables: list[Observable], given: Mapping[str, Any]) -> dict[str, Observable]:
    """By name, with all that they need."""
    if not observables:
        raise InputError("no observable is asked for: name at least one.")
    for observable in observables:
        check_name(observable.name, "an observable")
        for need in observable.needs:
            if given[need] is None:
                raise InputError(
                    f"the observable {observable.name!r} needs {need}=: give it to the Recorder."
                )
    return {observable.name: observable for observable in observables}


def counted_optimizer(
    count: Counting | None, optimizer: torch.optim.Optimizer | None
) -> torch.optim.Optimizer | None:
    """The optimizer whose steps are counted; None if calls are."""
    if count not in (None, "optimizer", "calls"):
        raise InputError(f"count is {count!r}: give 'optimizer' or 'calls'.")
    if optimizer is not None and not hasattr(optimizer, "register_step_post_hook"):
        raise InputError(
            f"optimizer is a {type(optimizer).__name__}: give one torch optimizer, the one whose steps count."
        )
    if count == "optimizer" and optimizer is None:
        raise InputError("`count='optimizer'` needs `optimizer=`: give the one whose steps count.")
    return None if count == "calls" else optimizer


def checked_loss(loss: Any) -> Any:
    """None, or something to call with outputs and targets."""
    if isinstance(loss, type):
        raise InputError(f"loss is the class {loss.__name__}: give an instance of it, {loss.__name__}().")
    if loss is not None and not callable(loss):
        raise InputError(f"`loss` is {loss!r}: give a function of outputs and targets.")
    return loss


def checked_resume_from(step: Any) -> int | None:
    """None, or a step."""
    if step is None:
        return None
    found = whole(step)
    if found is None or found < 0:
        raise InputError(
            f"`resume_from` is {step!r}: give the number of the step that training goes on from."
        )
    return found


def first_frame(
    model: nn.Module,
    observables: Iterable[str],
    schedule: str,
    budget: float | None,
    metadata: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What a log says of itself before its records."""
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {
        "kind": "header",
        "step": 0,
        "format": FORMAT,
        "version": __version__,
        "observables": list(observables),
        "schedule": schedule,
        "budget": budget,
        "started": now(),
        "model": f"{type(plain(model)).__name__}, {parameters} parameters",
        "metadata": json_safe(dict(metadata or {}), "metadata"),
    }


def now() -> str:
    """The date and time, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")
