"""The exact tangent kernel of any torch model, found by the structure of its layers."""

from foretrain.empirical.tangent_kernel.kernel import ntk
from foretrain.empirical.tangent_kernel.written_kernel import TangentKernel

__all__ = ["TangentKernel", "ntk"]
