"""Tangent kernels larger than memory: computed tile by tile into a store on disk."""

from foretrain.empirical.stored_kernel.computation import Prepared, compute
from foretrain.empirical.stored_kernel.workers import Stored

__all__ = ["Prepared", "Stored", "compute"]
