"""Entropy and information of random networks: discrete, Gaussian, to next order in 1/n, and exact (appendix A).

From tables of probabilities

``surprisal``, ``entropy``, ``cross_entropy``, ``divergence``, ``mutual_information``,
``conditional_information``, ``tripartite_information``  in nats (A.1)-(A.24)

Infinite width

``gaussian_entropy``         of m neurons (A.26)
``gaussian_information``     between groups of inputs, one neuron (A.28); ``similarity_information`` (A.29)
``input_information``        the same at every layer of a network, before training
``trained_input_information``  after training, from the posterior covariance

Finite width, as a series in X = V / (n G^2), the relative variance of the metric

``entropy_series``, ``information_series``, ``tripartite_series``  (A.52)-(A.75)
``leading_information``      several inputs, leading order
``relative_variance``        X of a network, layer by layer; ``layer_information`` what follows from it

Exactly, because neurons are Gaussian given the metric

``linear_law``, ``log_normal_law``, ``sampled_law``  the law of the metric
``mixture_entropy``, ``mixture_information``, ``mixture_tripartite``  with standard errors where it is sampled

Depth over width

``aspect_ratio``             nu, r*, what the series and the exact law say there, and where the series breaks down
"""

from foretrain.theory.information.entropies import (
    conditional_information,
    cross_entropy,
    divergence,
    entropy,
    gaussian_entropy,
    gaussian_information,
    input_information,
    mutual_information,
    similarity_information,
    surprisal,
    trained_input_information,
    tripartite_information,
)
from foretrain.theory.information.mixtures import (
    Estimate,
    MetricLaw,
    linear_law,
    log_normal_law,
    mixture_entropy,
    mixture_information,
    mixture_tripartite,
    sampled_law,
)
from foretrain.theory.information.series import (
    AspectRatio,
    aspect_ratio,
    complete_information,
    entropy_series,
    information_series,
    layer_information,
    leading_information,
    network_information,
    next_coefficient,
    printed_information,
    relative_variance,
    tripartite_series,
    turning_point,
)

__all__ = [
    "AspectRatio",
    "Estimate",
    "MetricLaw",
    "aspect_ratio",
    "complete_information",
    "conditional_information",
    "cross_entropy",
    "divergence",
    "entropy",
    "entropy_series",
    "gaussian_entropy",
    "gaussian_information",
    "information_series",
    "input_information",
    "layer_information",
    "leading_information",
    "linear_law",
    "log_normal_law",
    "mixture_entropy",
    "mixture_information",
    "mixture_tripartite",
    "mutual_information",
    "network_information",
    "next_coefficient",
    "printed_information",
    "relative_variance",
    "sampled_law",
    "similarity_information",
    "surprisal",
    "trained_input_information",
    "tripartite_information",
    "tripartite_series",
    "turning_point",
]
