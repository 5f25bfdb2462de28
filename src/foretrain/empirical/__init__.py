"""Measurements on torch models: what a network does at initialisation and while it learns.

``ntk`` and ``ntk_operator``, the tangent kernel as a matrix and as products; what is asked of it: ``spectrum``,
``condition_number``, ``alignment``, ``regression``, ``spectral_density``, ``summarise``; ``predict_modes``, which
modes of a target will be learned; ``NetworkFeatures``, a network as a quadratic model; ``tune_block``, residual
blocks. In packages of their own:

``foretrain.empirical.global_ntk``      the kernel of all states of a model
``foretrain.empirical.fields``          the collective fields of feed-forward networks
``foretrain.empirical.differentials``   the dNTK, the ddNTKs and what they say of a step
``foretrain.empirical.imbalance``       what conserves the balance of neighbouring layers
``foretrain.empirical.layer_scales``    how large every layer is, as escape times want it
"""

from foretrain.empirical.kernel_analysis import (
    KernelAlignment,
    KernelRegression,
    KernelSpectrum,
    KernelSummary,
    SpectralDensity,
    alignment,
    condition_number,
    regression,
    spectral_density,
    spectrum,
    summarise,
)
from foretrain.empirical.kernel_operator import KernelEstimate, NTKOperator, ntk_operator
from foretrain.empirical.mode_prediction import ModePrediction, predict_modes
from foretrain.empirical.quadratic_features import NetworkFeatures
from foretrain.empirical.residual_blocks import BlockTuning, residual_scale, tune_block
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.empirical.tangent_kernel import TangentKernel, ntk

__all__ = [
    "BlockTuning",
    "KernelAlignment",
    "KernelEstimate",
    "KernelRegression",
    "KernelSpectrum",
    "KernelSummary",
    "ModePrediction",
    "NTKOperator",
    "NetworkFeatures",
    "SpectralDensity",
    "StoredKernel",
    "TangentKernel",
    "alignment",
    "condition_number",
    "ntk",
    "ntk_operator",
    "predict_modes",
    "regression",
    "residual_scale",
    "spectral_density",
    "spectrum",
    "summarise",
    "tune_block",
]
