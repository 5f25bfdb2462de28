"""Theory beside measurement: real random torch networks against the flow, entry by entry, with standard errors.

``foretrain.compare(mlp, X)`` compares networks at initialisation, ``foretrain.compare(mlp, X_train, Y_train, X_test,
trained=True)`` trained ones, because this package can be called like the function
:func:`foretrain.compare.entry.compare`. Its rooms are

``build``       the torch network and the optimizer groups that the theory speaks of
``ensembles``   many random networks at once
``estimators``  kernel, vertex, next-to-leading metric, NTK and its differentials from an ensemble, with error bars
``comparison``  several widths, the limit of infinite width, z-scores and a verdict
``trained``     ensembles that are really trained, beside the prediction for their outputs
``effective_kernel``  the tangent kernel after real training beside its prediction at initialisation
``plateau``     how long a real network is stuck at small weights, why, and the rescaling that removes it

Importing this package does not import torch.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foretrain.compare import (
        agreement,
        build,
        comparison,
        effective_kernel,
        ensembles,
        estimators,
        plateau,
        trained,
    )
    from foretrain.compare.comparison import Comparison
    from foretrain.compare.entry import compare

_ROOMS = (
    "agreement",
    "build",
    "comparison",
    "effective_kernel",
    "ensembles",
    "estimators",
    "plateau",
    "trained",
)
_NAMES = {"Comparison": "comparison", "compare": "entry"}

__all__ = [
    "Comparison",
    "agreement",
    "build",
    "compare",
    "comparison",
    "effective_kernel",
    "ensembles",
    "estimators",
    "plateau",
    "trained",
]


class _CallableModule(ModuleType):
    """A package that is also the function named like it."""

    def __call__(self, *arguments: Any, **options: Any) -> Comparison:
        """The same as :func:`foretrain.compare.entry.compare`."""
        from foretrain.compare.entry import compare

        found: Comparison = compare(*arguments, **options)
        return found


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"{__name__}.{name}")
    if name in _NAMES:
        return getattr(import_module(f"{__name__}.{_NAMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


sys.modules[__name__].__class__ = _CallableModule
