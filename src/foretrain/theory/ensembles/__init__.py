"""Ensembles of random networks: parameters, preactivations, metrics, correlators and diagnostics.

Start with :func:`sample_preactivations` for plain samples, :func:`correlator` and
:func:`connected_correlator` for moments with error bars, :func:`diagnose` for a summary by layer.
Fully connected networks only; convolution layers (2.8) are not offered.
"""

from foretrain.theory.ensembles.correlators import connected_correlator, correlator, diagnose, moment_sums
from foretrain.theory.ensembles.networks import (
    Parameters,
    WeightLaw,
    forward,
    framework_default,
    sample_parameters,
    weight_law,
)
from foretrain.theory.ensembles.sampling import Ensemble, sample_metric, sample_preactivations

__all__ = [
    "Ensemble",
    "Parameters",
    "WeightLaw",
    "connected_correlator",
    "correlator",
    "diagnose",
    "forward",
    "framework_default",
    "moment_sums",
    "sample_metric",
    "sample_parameters",
    "sample_preactivations",
    "weight_law",
]
