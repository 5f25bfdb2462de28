"""Measurements on torch models: what a network does at initialisation and while it learns."""

from foretrain.empirical.residual_blocks import BlockTuning, residual_scale, tune_block

__all__ = ["BlockTuning", "residual_scale", "tune_block"]
