"""Products of the tangent kernel with vectors, without the kernel: ``ntk_operator``, and the passes behind it."""

from foretrain.empirical.kernel_operator.entry import ntk_operator
from foretrain.empirical.kernel_operator.estimate import KernelEstimate
from foretrain.empirical.kernel_operator.operator import NTKOperator

__all__ = ["KernelEstimate", "NTKOperator", "ntk_operator"]
