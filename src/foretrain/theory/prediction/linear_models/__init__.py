"""Linear models and kernel methods (section 10.4), and the features by which wide networks are such models.

``fit_features``       least squares in features, ridge or least norm; ``PrimalFit.predict``
``fit_kernel``         the same through a kernel; ``fit_singular_kernel`` for the limit without ridge
``push_through``       why both agree
``linear_kernel``      and ``gaussian_kernel``, ``weighted_kernel``, ``network_kernel`` (K or Theta of an MLP)
``network_features``   random and tangent features of a network of finite width
``eigen_features``     the features that a kernel has on its training samples
"""

from foretrain.theory.prediction.linear_models.fits import (
    DualFit,
    PrimalFit,
    fit_features,
    fit_kernel,
    fit_singular_kernel,
    gaussian_kernel,
    linear_kernel,
    linear_kernel_as_printed,
    network_kernel,
    push_through,
    weighted_kernel,
)
from foretrain.theory.prediction.linear_models.network_features import (
    EigenFeatures,
    NetworkFeatures,
    eigen_features,
    network_features,
)

__all__ = [
    "DualFit",
    "EigenFeatures",
    "NetworkFeatures",
    "PrimalFit",
    "eigen_features",
    "fit_features",
    "fit_kernel",
    "fit_singular_kernel",
    "gaussian_kernel",
    "linear_kernel",
    "linear_kernel_as_printed",
    "network_features",
    "network_kernel",
    "push_through",
    "weighted_kernel",
]
