"""Named observables of a training: functions of model and batch that a ``Recorder`` knows by name.

``loss``, ``gradient_norm``, ``learning_rate``, ``weight_spectra``, ``ntk_shares``, ``fields``, ``global_ntk_rank``,
``core_cosine``, ``mode_alignment``, ``imbalance``; each function here gives the observable with its options, such as
``mode_alignment(modes=5)`` (``imbalance`` has none). ``register`` adds more, ``names`` lists all.
"""

from foretrain.empirical.imbalance import observe_imbalance
from foretrain.training.observables.kernels import (
    core_cosine,
    fields,
    global_ntk_rank,
    mode_alignment,
    ntk_shares,
)
from foretrain.training.observables.progress import gradient_norm, learning_rate, loss, weight_spectra
from foretrain.training.observables.registry import Observable, names, register

register("imbalance", observe_imbalance, needs=("loss",))

__all__ = [
    "Observable",
    "core_cosine",
    "fields",
    "global_ntk_rank",
    "gradient_norm",
    "learning_rate",
    "loss",
    "mode_alignment",
    "names",
    "ntk_shares",
    "register",
    "weight_spectra",
]
