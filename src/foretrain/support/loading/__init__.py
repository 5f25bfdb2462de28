"""Loading what users bring: functions in Python files, data in npz files, weights in checkpoints.

A Python file is run, as its user asked for. Data and checkpoints are not: no pickle is ever executed.
"""

from foretrain.support.loading.checkpoint import load_checkpoint
from foretrain.support.loading.code import load_callable, load_model
from foretrain.support.loading.data import Data, Samples, load_data, load_inputs, load_samples

__all__ = [
    "Data",
    "Samples",
    "load_callable",
    "load_checkpoint",
    "load_data",
    "load_inputs",
    "load_model",
    "load_samples",
]
