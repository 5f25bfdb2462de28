"""Infinite-width kernels of real layers, on a description of a network that knows nothing of torch."""

from foretrain.theory.layers import windows
from foretrain.theory.layers.signal import Signal, concatenated, data, joined, kernels, table, tokens

__all__ = ["Signal", "concatenated", "data", "joined", "kernels", "table", "tokens", "windows"]
