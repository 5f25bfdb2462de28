"""Packages that can be called like the function named after them, with its types and its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class CallableRoom(ModuleType, Generic[Function]):
    """A package that is also the function of its name, which the package imports when it is asked for.

    A package becomes one by ``sys.modules[__name__].__class__ = ...``; type checkers are told by an instance made
    from the function, so that the function is the only place where its signature stands.
    """

    if TYPE_CHECKING:

        def __init__(self, function: Function) -> None: ...

    @property
    def __call__(self) -> Function:
        """The function."""
        function: Function = getattr(self, self.__name__.rpartition(".")[2])
        return function

    @property
    def __signature__(self) -> inspect.Signature:
        return inspect.signature(self.__call__)
