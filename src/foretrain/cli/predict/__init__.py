"""``foretrain predict``: what networks answer on test inputs after training."""

from foretrain.cli.predict.entry import COMMAND

__all__ = ["COMMAND"]
