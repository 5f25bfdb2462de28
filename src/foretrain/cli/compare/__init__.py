"""``foretrain compare``: theory beside real networks, at initialisation or trained."""

from foretrain.cli.compare.entry import COMMAND

__all__ = ["COMMAND"]
