"""``foretrain ntk``: the tangent kernel of a model, in memory or on disk, and what it says."""

from foretrain.cli.ntk.entry import COMMAND

__all__ = ["COMMAND"]
