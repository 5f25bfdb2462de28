"""``foretrain sweep``: any experiment or observable over any of its parameters."""

from foretrain.cli.sweep.entry import COMMAND

__all__ = ["COMMAND"]
