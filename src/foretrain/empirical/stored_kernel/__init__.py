"""Tangent kernels larger than memory: computed tile by tile into a store on disk."""

from foretrain.empirical.stored_kernel.driver import run

__all__ = ["run"]
