"""What a layer's statistics mean for what one measures: observables of preactivations to order 1/n.

Given the layer before, the neurons of a layer are independent and Gaussian over the inputs. Their covariance, the
metric, fluctuates from network to network with mean K + G1/n and covariance V/n, n the fan-in. The mean of a
function F of one neuron is therefore that of <F>_metric, and two neurons covary because they share the metric:
Taylor expansions in the metric, (4.61), (4.64) and (4.112).

An observable is a list of factors, one per input (``["tanh", z**2]``; a single factor for a single input), or
any function of an array (points, inputs) that gives one number per point.

``mean_of``, ``covariance_of``, ``covariance_within_neuron``  of observables, with their parts
``expansion_parameter``  whether 1/n is small for a network
``layer_statistics``     K, V and G1 of one layer, from which all of this follows
``second_moment``, ``excess_kurtosis``, ``fluctuation``, ``neuron_covariance``, ``connected_four_point``  by layer
``couplings``            the action of a layer, its couplings, and how they run with the neurons kept
"""

from foretrain.theory.finite_width.observables import (
    FirstOrder,
    covariance_of,
    covariance_within_neuron,
    mean_of,
)
from foretrain.theory.finite_width.statistics import (
    LARGE,
    SMALL,
    ExpansionParameter,
    LayerStatistics,
    connected_four_point,
    excess_kurtosis,
    expansion_parameter,
    fluctuation,
    layer_statistics,
    neuron_covariance,
    second_moment,
    verdict_on,
)

__all__ = [
    "LARGE",
    "SMALL",
    "ExpansionParameter",
    "FirstOrder",
    "LayerStatistics",
    "connected_four_point",
    "covariance_of",
    "covariance_within_neuron",
    "excess_kurtosis",
    "expansion_parameter",
    "fluctuation",
    "layer_statistics",
    "mean_of",
    "neuron_covariance",
    "second_moment",
    "verdict_on",
]
