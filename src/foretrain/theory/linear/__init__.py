"""Deep linear networks, solved exactly at any width and depth (chapter 3).

``DeepLinear`` holds the architecture; the functions take it and G^(0), the mean square of the input. Layers run
from 1 to L. The law of layer 1 is Gaussian, so widths n_1 .. n_(l-1) enter at layer l, never n_0; only the
fluctuation of a whole layer feels its own width n_l.
"""

from foretrain.theory.linear.law import (
    PerturbationCheck,
    absolute_moment,
    density,
    draws_needed,
    draws_needed_at,
    log_variance_statistics,
    perturbation_valid,
    sample_preactivations,
    sample_variances,
    scaling_limit_connected,
    scaling_limit_leading,
    scaling_limit_log_variance,
    scaling_limit_moments,
    scaling_limit_relative_error,
)
from foretrain.theory.linear.moments import (
    DeepLinear,
    connected,
    connected_expansion,
    fluctuation,
    fluctuation_expansion,
    log_moments,
    moments,
    nongaussian_weights,
    two_point,
    width_factor,
)
from foretrain.theory.linear.several_inputs import connected_four_point, correlator, pairing_amplitudes

__all__ = [
    "DeepLinear",
    "PerturbationCheck",
    "absolute_moment",
    "connected",
    "connected_expansion",
    "connected_four_point",
    "correlator",
    "density",
    "draws_needed",
    "draws_needed_at",
    "fluctuation",
    "fluctuation_expansion",
    "log_moments",
    "log_variance_statistics",
    "moments",
    "nongaussian_weights",
    "pairing_amplitudes",
    "perturbation_valid",
    "sample_preactivations",
    "sample_variances",
    "scaling_limit_connected",
    "scaling_limit_leading",
    "scaling_limit_log_variance",
    "scaling_limit_moments",
    "scaling_limit_relative_error",
    "two_point",
    "width_factor",
]
