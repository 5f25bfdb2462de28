"""Training: record observables while any loop runs, gradient-flow integrators, tasks.

``Recorder``, ``read``   observables written while a loop of your own runs, and read back labelled;
                         ``recording`` reads them as a result that prints and draws itself
``observables``          the named ones, and ``register`` for more
``gradient_flow``        the flow of whole networks, and of any torch model, with adaptive steps
``tasks``                Memory-Pro, student and teacher, Gaussian sequences
``two_step``             a network trained in two updates, a giant leap and a small step
``dynamics``             Lyapunov exponents, fixed points and dimension of recurrent models, and initial memories (17)
``optimizers``           Shampoo
"""

from foretrain.training import dynamics, gradient_flow, observables, optimizers, tasks
from foretrain.training.recorder import Recorder, RecorderSummary, Recording, read, recording
from foretrain.training.two_step import two_step

__all__ = [
    "Recorder",
    "RecorderSummary",
    "Recording",
    "dynamics",
    "gradient_flow",
    "observables",
    "optimizers",
    "read",
    "recording",
    "tasks",
    "two_step",
]
