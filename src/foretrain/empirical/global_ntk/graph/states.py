"""Which tensors of a model are its states: names of submodules, and how their results are laid out as vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.operators import Space
from foretrain.support.errors import InputError, unknown_name

Place = str | tuple[str, int | str]  # the path of a module, and which entry of what it returns
States = Place | Sequence[Place] | Mapping[str, Place]

_ENTRIES_OF_LSTM = {"hidden": 0, "cell": 1}
_AXES = {0: (), 1: ("unit",), 2: ("time", "unit"), 3: ("channel", "row", "column")}


@dataclass(frozen=True)
class StateName:
    """A state: what it is called, the module that returns it, and the entry of its result (None: the first)."""

    name: str
    path: str
    entry: int | str | None = None


def named_states(model: nn.Module, states: States) -> list[StateName]:
    """What the user named: paths such as "encoder.0", ("lstm_cell", 1), "lstm_cell.1", or {name: one of these}."""
    if isinstance(states, Mapping):
        given: list[tuple[str, Any]] = list(states.items())
    else:
        places: list[Any] = [states] if isinstance(states, str) or _is_pair(states) else list(states)
        given = [(_called(place), place) for place in places]
    if not given:
        raise InputError("`states=` names no module: give the paths of those whose results are the states.")
    modules = dict(model.named_modules(remove_duplicate=False))
    found = [_resolved(name, place, modules) for name, place in given]
    for i, state in enumerate(found):
        if any(state.name == other.name for other in found[:i]):
            raise InputError(f"the state {state.name!r} is named twice in `states=`: name each of them once.")
    return found


def _is_pair(place: Any) -> bool:
    """Whether a tuple is (path, number of an entry), and not two paths."""
    return isinstance(place, tuple) and len(place) == 2 and isinstance(place[1], int)


def _called(place: Any) -> str:
    if isinstance(place, str):
        return place or "output"
    if isinstance(place, tuple) and len(place) == 2 and isinstance(place[0], str):
        return f"{place[0] or 'output'}.{place[1]}"
    raise InputError(
        f"`states=` holds {place!r}: give paths of modules, (path, entry) for one of several results, "
        "or {name: path}."
    )


def _resolved(name: str, place: Place, modules: Mapping[str, nn.Module]) -> StateName:
    _called(place)
    if isinstance(place, str):
        if place in modules:
            return StateName(name, place)
        path, dot, last = place.rpartition(".")
        if not dot or path not in modules:
            raise unknown_name("module of the model", place, [known for known in modules if known], "states")
        entry: int | str = int(last) if last.isdigit() else last
    else:
        path, entry = place
        if path not in modules:
            raise unknown_name("module of the model", path, [known for known in modules if known], "states")
    if isinstance(modules[path], nn.LSTMCell) and isinstance(entry, str):
        entry = _ENTRIES_OF_LSTM.get(entry, entry)
    return StateName(name, path, entry)


@dataclass(frozen=True)
class Layout:
    """One state: its calls, and the shape of one call's result with samples along ``axis`` (None: no such axis).

    As a vector its axes are samples, calls, and the others in their order.
    """

    shape: tuple[int, ...]
    calls: int
    axis: int | None
    space: Space

    def split(self, block: Tensor) -> list[Tensor]:
        """A block (k, size) as one tensor (k, *shape) for every call."""
        if self.axis is None:
            return list(block.reshape(len(block), self.calls, *self.shape).unbind(1))
        rest = self.shape[: self.axis] + self.shape[self.axis + 1 :]
        parts = block.reshape(len(block), self.shape[self.axis], self.calls, *rest).unbind(2)
        return [part.movedim(1, 1 + self.axis) for part in parts]


def layout(state: StateName, model: nn.Module, shapes: Sequence[torch.Size], axis: int | None) -> Layout:
    """How the results of all calls of a module are one vector."""
    shape, calls = tuple(shapes[0]), len(shapes)
    other = next((tuple(size) for size in shapes if tuple(size) != shape), None)
    if other is not None:
        raise InputError(
            f"{state.path!r} returns {shape} in one call and {other} in another: name modules whose results keep "
            "their shape."
        )
    if axis is None:
        named = [(f"axis_{i}", size) for i, size in enumerate(shape)]
        front = [("call", calls)] if calls > 1 else []
        return Layout(shape, calls, None, Space(*front, *named))
    rest = shape[:axis] + shape[axis + 1 :]
    names = axes_of_sample(len(rest))
    # As many rows as a convolution along one axis has channels are such channels.
    lines = [part for part in model.modules() if isinstance(part, nn.Conv1d | nn.ConvTranspose1d)]
    if len(rest) == 2 and any(rest[0] == part.out_channels for part in lines):
        names = "channel", "position"
    front = [("batch", shape[axis])]
    if calls > 1:
        front.append(("call" if "time" in names else "time", calls))
    return Layout(shape, calls, axis, Space(*front, *zip(names, rest)))


def axes_of_sample(count: int) -> tuple[str, ...]:
    """Names of the axes of one sample's state."""
    return _AXES.get(count) or tuple(f"axis_{i + 1}" for i in range(count))


def axis_of_samples(
    shape: Sequence[int], changed: Sequence[int] | None, samples: int, usual: int
) -> int | None:
    """The axis of a state that holds the samples; ``changed``: its shape with one sample more, where known."""
    fitting = [axis for axis, size in enumerate(shape) if size == samples]
    if changed is not None and len(changed) == len(shape):
        grown = [axis for axis in fitting if changed[axis] == samples + 1]
        fitting = grown if len(grown) == 1 else fitting
    if usual in fitting:
        return usual
    return fitting[0] if fitting else None


def is_ambiguous(shape: Sequence[int], samples: int) -> bool:
    """Whether more than one axis could be that of the samples."""
    return sum(size == samples for size in shape) > 1
