"""Measurements on torch models: what a network does at initialisation and while it learns."""

from foretrain.empirical.residual_blocks import BlockTuning, residual_scale, tune_block
from foretrain.empirical.tangent_kernel import TangentKernel, ntk

__all__ = ["BlockTuning", "TangentKernel", "ntk", "residual_scale", "tune_block"]
