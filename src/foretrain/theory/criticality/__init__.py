"""Criticality of the kernel: susceptibilities, critical points of any activation, universality classes.

A critical initialisation has a fixed point K* = C_b + C_W g(K*) at which both susceptibilities are one,
chi_parallel = C_W g'(K*) = chi_perp = C_W <s'^2> = 1 (5.55), (5.56): signals neither explode nor vanish, and
nearby inputs neither merge nor part, exponentially in depth. A skip connection gamma adds gamma^2 to both
susceptibilities and gamma^2 K to the kernel (B.11), (B.15), (B.16): all conditions hold again if C_b and C_W are
multiplied by 1 - gamma^2.

``criticality``              the critical points of an activation; ``susceptibility`` at any kernel
``critical_initialisation``  the hyperparameters of a critical network, and on which side of K* its inputs lie
``fixed_points``             all fixed points for given C_b and C_W, their stability, depth scales, correlations
``phase_diagram``            the plane of C_b and C_W, with its critical lines
"""

from foretrain.theory.criticality.critical_points import (
    Criticality,
    CriticalPoint,
    Susceptibility,
    UniversalityClass,
    criticality,
    susceptibility,
    taylor_coefficients,
)

__all__ = [
    "CriticalPoint",
    "Criticality",
    "Susceptibility",
    "UniversalityClass",
    "criticality",
    "susceptibility",
    "taylor_coefficients",
]
