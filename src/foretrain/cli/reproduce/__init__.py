"""``foretrain reproduce``: the experiments of the registry, one by one, several or all."""

from foretrain.cli.reproduce.entry import COMMAND

__all__ = ["COMMAND"]
