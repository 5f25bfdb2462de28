"""Networks of finite width during and after training, to order 1/n (chapter ∞).

``finite_prediction``    the mean over networks at the end or at a time, split by origin; on demand the covariance at
                         order 1/n and the mean change of the tangent kernel
``FiniteWidth``          the same with its tensors kept, for many algorithms, rates, times, targets and widths
``Projectors``           what distinguishes algorithms; ``algorithm_projectors`` of the known ones
``compare_algorithms``   several algorithms side by side; ``descent_and_bayes`` with exact inference
``OneNetwork``           outputs, tangent kernel and dNTK of one given network, from its differentials
``terms_as_printed``     three formulas as printed, which are wrong; ``covariance_part_as_printed``
"""

from foretrain.theory.prediction.algorithms import Projectors, algorithm_projectors
from foretrain.theory.prediction.finite_width.one_network import OneNetwork, TrainedNetwork
from foretrain.theory.prediction.finite_width.training import (
    Expansion,
    FinitePrediction,
    FiniteWidth,
    compare_algorithms,
    covariance_part_as_printed,
    descent_and_bayes,
    finite_prediction,
    terms_as_printed,
)

__all__ = [
    "Expansion",
    "FinitePrediction",
    "FiniteWidth",
    "OneNetwork",
    "Projectors",
    "TrainedNetwork",
    "algorithm_projectors",
    "compare_algorithms",
    "covariance_part_as_printed",
    "descent_and_bayes",
    "finite_prediction",
    "terms_as_printed",
]
