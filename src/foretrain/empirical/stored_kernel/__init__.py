"""Kernels larger than memory: computed tile by tile into a store on disk."""

from foretrain.empirical.stored_kernel.computation import compute
from foretrain.empirical.stored_kernel.tangents import Tangents
from foretrain.empirical.stored_kernel.workers import Stored, asked_of_store

__all__ = ["Stored", "Tangents", "asked_of_store", "compute"]
