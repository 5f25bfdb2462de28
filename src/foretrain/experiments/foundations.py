"""Experiments on chapters 1 to 3 and on the exact parts of chapter 4, by the names of the table."""

from foretrain.experiments.deep_linear_scaling import deep_linear_scaling
from foretrain.experiments.deep_linear_vertex import deep_linear_vertex
from foretrain.experiments.log_variance import log_variance
from foretrain.experiments.metric_fluctuations import metric_fluctuations
from foretrain.experiments.networks import activation_curves, parameter_count

__all__ = [
    "activation_curves",
    "deep_linear_scaling",
    "deep_linear_vertex",
    "log_variance",
    "metric_fluctuations",
    "parameter_count",
]
