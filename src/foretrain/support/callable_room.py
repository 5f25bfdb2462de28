"""Packages that can be called like the function named after them, with its types and its signature."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING, Any, Generic, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


class CallableRoom(ModuleType, Generic[Function]):
    """A package that is also the function of its name, which the package imports when it is asked for.

    It has to be the package itself: importing one of its modules sets ``foretrain.<package>`` to the package,
    whatever function stood there before. A package becomes one by ``sys.modules[__name__].__class__ = ...``; type
    checkers are told by an instance made from the function, so that its signature stands in one place only.
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
