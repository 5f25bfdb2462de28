"""Training: record observables while any loop runs, gradient-flow integrators, tasks.

``Recorder``, ``read``   observables written while a loop of your own runs, and read back labelled
``observables``          the named ones, and ``register`` for more
``gradient_flow``        the flow of whole networks, and of any torch model, with adaptive steps
``tasks``                Memory-Pro, student and teacher, Gaussian sequences
``fixed_points``, ``gru_fixed_points``, ``optimizers``   initialisation with memories (17), and Shampoo
"""

from foretrain.training import gradient_flow, observables, tasks
from foretrain.training.recorder import Recorder, RecorderSummary, read

__all__ = ["Recorder", "RecorderSummary", "gradient_flow", "observables", "read", "tasks"]
