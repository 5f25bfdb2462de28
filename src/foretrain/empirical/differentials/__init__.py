"""Differentials of the tangent kernel of torch models: the dNTK, both ddNTKs, and what one step does to the kernel.

``dntk``, ``ddntk``          exact tensors, for any model that can be differentiated often enough
``step_prediction``          one step of gradient descent, predicted to second or third order and really made
``stack_of``, ``stack_of_models``  many networks of linear layers as one, from their weights or from torch models
``LayeredDifferentials``     all differentials of such a stack, by fields that change along gradients
``forward_equations``        the same and those of hidden layers, by the forward equations; for small networks
"""

from foretrain.empirical.differentials.forward_equations import LayerDifferentials, forward_equations
from foretrain.empirical.differentials.kernel_differentials import (
    Differential,
    SecondDifferentials,
    ddntk,
    dntk,
    stack_of_models,
)
from foretrain.empirical.differentials.layered import LayeredDifferentials, Rates, Stack, stack_of
from foretrain.empirical.differentials.step import StepPrediction, step_prediction

__all__ = [
    "Differential",
    "LayerDifferentials",
    "LayeredDifferentials",
    "Rates",
    "SecondDifferentials",
    "Stack",
    "StepPrediction",
    "ddntk",
    "dntk",
    "forward_equations",
    "stack_of",
    "stack_of_models",
    "step_prediction",
]
