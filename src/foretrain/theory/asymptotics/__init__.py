"""Asymptotic laws in depth of every universality class, beside the exact recursion (sections 5.3-5.5).

``asymptotics``        the laws of a network and an input, found by its class
``exact_fluctuation``  variance of the metric of a scale-invariant network, exact in width
``linear_vertex``      four-point vertex of a critical linear network, any number of inputs
``ntk_laws``           the laws of Theta, D, F, A and B
``dntk_laws``          the laws of P, Q of the dNTK and R, S, T, U of the ddNTKs
``dimensionless_ratios``  all of these tensors over powers of K, Theta and n, for any network: size of 1/n effects
``linear_dntk``        the same tensors of a critical linear network, any number of inputs
``exact_linear_ntk``   the tangent kernel of a linear network, exact in width
"""

from foretrain.theory.asymptotics.kernel_laws import (
    asymptotics,
    exact_fluctuation,
    linear_vertex,
    vertex_constant,
)
from foretrain.theory.asymptotics.ntk_laws import (
    dimensionless_ratios,
    dntk_laws,
    exact_linear_ntk,
    linear_dntk,
    ntk_laws,
)

__all__ = [
    "asymptotics",
    "dimensionless_ratios",
    "dntk_laws",
    "exact_fluctuation",
    "exact_linear_ntk",
    "linear_dntk",
    "linear_vertex",
    "ntk_laws",
    "vertex_constant",
]
