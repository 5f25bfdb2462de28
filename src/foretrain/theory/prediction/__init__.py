"""What a trained model predicts.

``nearly_kernel``   quadratic models: features and meta-features, trained by several algorithms, in closed form
"""

from importlib import import_module
from typing import Any

_ROOMS = ("nearly_kernel",)

__all__ = list(_ROOMS)


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return __all__
