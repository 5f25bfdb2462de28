"""``foretrain flow``: statistics of a random network's preactivations, layer by layer."""

from foretrain.cli.flow.entry import COMMAND

__all__ = ["COMMAND"]
