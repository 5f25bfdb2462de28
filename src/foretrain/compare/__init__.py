"""Theory beside measurement: real torch networks against predictions, entry by entry, with standard errors.

``foretrain.compare(mlp, X)`` compares networks at initialisation, ``foretrain.compare(mlp, X_train, Y_train, X_test,
trained=True)`` trained ones, because this package can be called like the function
:func:`foretrain.compare.entry.compare`. Its rooms are

``build``       the torch network and the optimizer groups that the theory speaks of
``ensembles``   many random networks at once
``initial``     networks at initialisation: kernel, vertex, NTK and its differentials, beside the flow
``trained``     ensembles that are really trained, beside the prediction for their outputs
``comparison``  what every comparison holds; it rests on ``judging``: several widths, their limit, scores, a verdict
``effective_kernel``  the tangent kernel after real training beside its prediction at initialisation
``plateau``     how long a real network is stuck at small weights, why, and the rescaling that removes it
``task``        data and loss as a torch model takes them

Importing this package does not import torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

from foretrain.support.callable_room import CallableRoom, Function

if TYPE_CHECKING:
    from foretrain.compare import (
        build,
        comparison,
        effective_kernel,
        ensembles,
        initial,
        judging,
        plateau,
        task,
        trained,
    )
    from foretrain.compare.comparison import Comparison
    from foretrain.compare.entry import compare

_NAMES = {"Comparison": "comparison", "compare": "entry"}

__all__ = [
    "Comparison",
    "build",
    "compare",
    "comparison",
    "effective_kernel",
    "ensembles",
    "initial",
    "judging",
    "plateau",
    "task",
    "trained",
]


class CompareRoom(CallableRoom[Function]):
    """This package: called, it is :func:`foretrain.compare.entry.compare`."""

    if TYPE_CHECKING:
        from foretrain.compare.comparison import Comparison


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


sys.modules[__name__].__class__ = CompareRoom
