"""``foretrain escape``: how long the plateau of a small initialisation is, for described and for real networks."""

from foretrain.cli.escape.entry import COMMAND

__all__ = ["COMMAND"]
