"""Measurements on torch models: what a network does at initialisation and while it learns.

``ntk`` and ``ntk_operator``, the tangent kernel as a matrix and as products; what is asked of it: ``spectrum``,
``condition_number``, ``alignment``, ``regression``, ``spectral_density``, ``summarise``; residual blocks. In packages
of their own: ``foretrain.empirical.global_ntk``, the kernel of all states of a model, ``foretrain.empirical.fields``,
the collective fields of feed-forward networks, ``foretrain.empirical.differentials``, the dNTK, the ddNTKs and what
they say of a step, ``foretrain.empirical.stored_kernel``, kernels larger than memory,
``foretrain.empirical.imbalance``, what conserves the balance of neighbouring layers, ``layer_scales``,
``mode_prediction``, which modes of a target will be learned, and
``quadratic_features``, a network as a quadratic model.
"""

from foretrain.empirical.kernel_analysis import (
    KernelAlignment,
    KernelSpectrum,
    alignment,
    condition_number,
    spectrum,
)
from foretrain.empirical.kernel_density import SpectralDensity, spectral_density
from foretrain.empirical.kernel_products import KernelEstimate, NTKOperator, ntk_operator
from foretrain.empirical.kernel_regression import KernelRegression, regression
from foretrain.empirical.quadratic_features import NetworkFeatures
from foretrain.empirical.residual_blocks import BlockTuning, residual_scale, tune_block
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.empirical.stored_kernel.summary import KernelSummary, summarise
from foretrain.empirical.tangent_kernel import TangentKernel, ntk

__all__ = [
    "BlockTuning",
    "KernelAlignment",
    "KernelEstimate",
    "KernelRegression",
    "KernelSpectrum",
    "KernelSummary",
    "NTKOperator",
    "NetworkFeatures",
    "SpectralDensity",
    "StoredKernel",
    "TangentKernel",
    "alignment",
    "condition_number",
    "ntk",
    "ntk_operator",
    "regression",
    "residual_scale",
    "spectral_density",
    "spectrum",
    "summarise",
    "tune_block",
]
