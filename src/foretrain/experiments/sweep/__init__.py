"""Sweeps: any experiment or observable over any of its parameters, on any engine, resumable at any moment.

``sweep(file)``   computes what is missing of what a TOML file describes; :mod:`.spec` shows one
``read(file)``    what is finished so far, labelled
``price(file)``   points, time and memory that are left

:mod:`.observables` lists what can be swept besides experiments; any function of a Python file can.
"""

from pathlib import Path

from foretrain.experiments.sweep.pricing import Price, price
from foretrain.experiments.sweep.run import Sweep, read, sweep

EXAMPLE = Path(__file__).with_name("phases.toml")

__all__ = ["EXAMPLE", "Price", "Sweep", "price", "read", "sweep"]
