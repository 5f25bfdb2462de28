"""Products of the tangent kernel with vectors, without the kernel: ``ntk_operator``, and the passes behind it."""

from foretrain.empirical.kernel_operator.operator import NTKOperator, ntk_operator
from foretrain.operators.estimators.estimate import KernelEstimate

__all__ = ["KernelEstimate", "NTKOperator", "ntk_operator"]
