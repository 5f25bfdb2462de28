"""What a trained model predicts.

``predict``         :func:`foretrain.predict`, one door to all of them
``algorithms``      how they are trained, as values: steps, flow, two-step, Newton's method
``infinite_width``  networks of infinite width trained by gradient descent: outputs, losses, generalization
``finite_width``    the same to order 1/n: mean by origin, change of the tangent kernel, one given network
``bayes``           posterior, evidence and scans of hyperparameters, at infinite width and to order 1/n
``linear_models``   least squares by features or kernels; features of networks
``nearly_kernel``   quadratic models: features and meta-features, trained by several algorithms, in closed form
"""

from importlib import import_module
from typing import Any

_ROOMS = (
    "algorithms",
    "bayes",
    "finite_width",
    "infinite_width",
    "linear_models",
    "nearly_kernel",
    "predict",
)

__all__ = list(_ROOMS)


def __getattr__(name: str) -> Any:
    if name not in _ROOMS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return __all__
