"""What a recorder is given, checked before the training starts: model, schedule, batch, and whose steps count."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from operator import index
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.training.observables import Observable
from foretrain.training.recorder.records import check_name

ScheduleLike: TypeAlias = str | Iterable[int] | Callable[[int], bool] | None

Counting = Literal["optimizer", "calls"]

_PER_DECADE = 10


@dataclass(frozen=True)
class Schedule:
    """Whether a step is due, and the schedule in words."""

    due: Callable[[int], bool]
    text: str


def make_schedule(every: int | None, schedule: ScheduleLike, per_decade: int | None) -> Schedule:
    """From what the user says: every k steps, "log" (also if nothing is said), steps, or a function."""
    if every is not None and schedule is not None:
        raise InputError("`every=` and `schedule=` both say when to record: give one of them.")
    if per_decade is not None and not (schedule == "log" or (every is None and schedule is None)):
        raise InputError("`per_decade=` belongs to `schedule='log'`: leave it out.")
    if every is not None:
        every = whole_number("every", every)
        return Schedule(
            lambda step: step % every == 0, "every step" if every == 1 else f"every {every} steps"
        )
    if schedule is None or isinstance(schedule, str):
        if schedule not in (None, "log"):
            raise unknown_name("`schedule`", str(schedule), ["log"])
        return _logarithmic(_PER_DECADE if per_decade is None else whole_number("per_decade", per_decade))
    if callable(schedule):
        schedule(0)  # an error shows now rather than in the middle of a training
        return Schedule(schedule, "a function of the step")
    try:
        wanted = frozenset(index(step) for step in schedule)
    except TypeError:
        wanted = frozenset({-1})
    if not wanted or min(wanted) < 0:
        raise InputError("`schedule=` holds something that is no step: give whole numbers from 0 on.")
    return Schedule(lambda step: step in wanted, f"{len(wanted)} chosen steps up to {max(wanted)}")


def _logarithmic(per_decade: int) -> Schedule:
    """Steps 0 and round(10^(i / per_decade)), i = 0, 1, ..."""

    def due(step: int) -> bool:
        if step < 1:
            return step == 0
        nearest = round(per_decade * math.log10(step))
        return any(round(10 ** (i / per_decade)) == step for i in (nearest - 1, nearest, nearest + 1))

    return Schedule(due, f"log, {per_decade} steps per decade")


def check_model(model: Any) -> nn.Module:
    """A module whose parameters all have their shapes."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give an nn.Module.")
    for name, value in (*model.named_parameters(), *model.named_buffers()):
        if torch.nn.parameter.is_lazy(value):
            raise InputError(
                f"{name!r} has no shape yet: run the model once on a batch before it is recorded."
            )
    return model


def check_loss(loss: Any) -> Any:
    """None, or something to call with outputs and targets."""
    if isinstance(loss, type):
        raise InputError(f"loss is the class {loss.__name__}: give an instance of it, {loss.__name__}().")
    if loss is not None and not callable(loss):
        raise InputError(f"`loss` is {loss!r}: give a function of outputs and targets.")
    return loss


def check_observables(observables: list[Observable], given: Mapping[str, Any]) -> dict[str, Observable]:
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


def on_every_step(
    optimizer: torch.optim.Optimizer, method: Callable[[], Callable[[], None] | None]
) -> torch.utils.hooks.RemovableHandle:
    """Call what a weak reference holds after every step, from the outside; the optimizer keeps no recorder alive.

    torch wraps the method ``step`` of every class of which there was an optimizer. One that calls the method of its
    base class may therefore run the hook for that as well, before its own step is over.
    """

    def advance(*_: object) -> None:
        if (own := method()) is not None:
            own()

    if sum("step" in vars(kind) for kind in type(optimizer).__mro__ if kind is not torch.optim.Optimizer) < 2:
        return optimizer.register_step_post_hook(advance)

    def outermost(*_: object) -> None:
        wrapper = sys._getframe(1)
        outer = wrapper.f_back
        # Was what called the hook itself called during a step of the same optimizer?
        while outer is not None:
            if outer.f_code is wrapper.f_code and outer.f_locals.get("self") is optimizer:
                return
            outer = outer.f_back
        advance()

    return optimizer.register_step_post_hook(outermost)


def batch_source(batch: Any) -> Callable[[], Any]:
    """What gives the batch: always the same, copied now, the first one of a loader; or a function's newest."""
    if isinstance(batch, torch.utils.data.DataLoader):
        batch = next(iter(batch))
    elif callable(batch) and not isinstance(batch, Tensor | nn.Module):
        source: Callable[[], Any] = batch
        return source
    kept = _copied(batch)
    return lambda: kept


def _copied(value: Any) -> Any:
    """Training loops may fill the same tensors again and again."""
    if isinstance(value, Tensor):
        return value.detach().clone()
    if type(value) in (tuple, list):
        return type(value)(_copied(item) for item in value)
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value
