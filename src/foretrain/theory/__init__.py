"""Architecture in, numbers out: what the effective theory says about a network, without torch."""

from foretrain.theory.architecture import MLP

__all__ = ["MLP"]
