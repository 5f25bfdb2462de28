"""Calls of torch functions in a forward pass: seen one by one, with the user's line, and changed where asked.

Modules and functional calls look the same from here, so that a softmax, a detach or a dropout is found wherever the
user wrote it. ``intercept`` lets a copy of a model run with some of its calls replaced, also in training.
"""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Replace = Callable[[Callable[..., Any], tuple[Any, ...], Mapping[str, Any]], Any]


@dataclass(frozen=True, eq=False)
class Call:
    """One call: the function's name, what it was given and returned, and the line of the user's code."""

    name: str
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]
    result: Any
    line: str


@dataclass(frozen=True)
class Rule:
    """Which call to replace, and by what. ``number``: only this one among the calls of these names; None: all."""

    names: frozenset[str]
    replace: Replace = field(compare=False)
    number: int | None = None


class _Watch(TorchFunctionMode):
    def __init__(self, names: frozenset[str] | None = None, rule: Rule | None = None) -> None:
        super().__init__()
        self.names, self.rule, self.calls, self.count = names, rule, list[Call](), 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name, options = _name(func), kwargs or {}
        if self.rule is not None and name in self.rule.names:
            self.count += 1
            if self.rule.number is None or self.count - 1 == self.rule.number:
                return self.rule.replace(func, args, options)
        result = func(*args, **options)
        if self.names is not None and name in self.names:
            self.calls.append(Call(name, args, options, result, _user_line()))
        return result


def _name(func: Any) -> str:
    name = str(getattr(func, "__name__", ""))
    if name == "__get__":  # an attribute of tensors, such as .data
        return str(getattr(getattr(func, "__self__", None), "__name__", name))
    return name


def _user_line() -> str:
    """The nearest line in a module that is not torch's, as "file.py:12: h = h.detach()"."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in ("torch", "foretrain") and isinstance(frame.f_locals.get("self"), nn.Module):
            path, number = frame.f_code.co_filename, frame.f_lineno
            text = linecache.getline(path, number).strip()
            return f"{path.rpartition('/')[2]}:{number}" + (f": {text}" if text else "")
        frame = frame.f_back
    return ""


def watch(model: nn.Module, x: Any, names: set[str]) -> tuple[Any, list[Call]]:
    """What the model returns, and its calls of functions with these names in their order."""
    with _Watch(frozenset(names)) as seen:
        result = model(x)
    return result, seen.calls


@dataclass(eq=False)
class _Intercept:
    """Two hooks of a model: the first begins to replace calls, the second ends it."""

    rule: Rule
    modes: list[_Watch] = field(default_factory=list)

    def begin(self, module: nn.Module, given: Any) -> None:
        mode = _Watch(rule=self.rule)
        mode.__enter__()  # type: ignore[no-untyped-call]
        self.modes.append(mode)

    def end(self, module: nn.Module, given: Any, result: Any) -> None:
        if self.modes:
            self.modes.pop().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def __deepcopy__(self, memo: dict[int, Any]) -> _Intercept:
        twin: _Intercept = memo.setdefault(id(self), _Intercept(self.rule))
        return twin


def intercept(model: nn.Module, rule: Rule) -> None:
    """Let this model (a copy of the user's) run with these calls replaced from now on."""
    hooks = _Intercept(rule)
    model.register_forward_pre_hook(hooks.begin)
    model.register_forward_hook(hooks.end, always_call=True, prepend=True)


def pass_on(func: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """A replacement: what the function is given, unchanged."""
    return arguments[0] if arguments else options["input"]


_PASSING = {"View", "UnsafeView", "ReshapeAlias", "Squeeze", "Unsqueeze", "Transpose", "Permute", "Slice"}
_PASSING |= {"Select", "Clone", "T", "ToCopy", "Alias", "Expand"}


def last_operation(outputs: Tensor) -> str:
    """The name of the operation that made these numbers, in small letters; views of them are passed over."""
    node = outputs.grad_fn
    while node is not None:
        name = type(node).__name__.partition("Backward")[0]
        if name not in _PASSING:
            return name.lower()
        node = next((before for before, _ in node.next_functions if before is not None), None)
    return ""
