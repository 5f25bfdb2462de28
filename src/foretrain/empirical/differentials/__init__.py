"""Differentials of the tangent kernel of torch models: the dNTK, both ddNTKs, and what one step does to the kernel.

``dntk``, ``ddntk``          exact tensors, for any model that can be differentiated often enough
``step_prediction``          one step of gradient descent, predicted to second or third order and really made
``layered``                  networks of linear layers, many at once, by fields that change along gradients
"""

from foretrain.empirical.differentials.entry import ddntk, dntk
from foretrain.empirical.differentials.result import Differential, SecondDifferentials
from foretrain.empirical.differentials.step import StepPrediction, step_prediction

__all__ = [
    "Differential",
    "SecondDifferentials",
    "StepPrediction",
    "ddntk",
    "dntk",
    "step_prediction",
]
