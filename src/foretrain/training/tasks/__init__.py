"""Tasks of the sources, made from seeds alone: no data set is needed.

``MemoryPro``           remember an angle through a delay; ``Recurrent`` is the network that learns it
``StudentTeacher``      a recurrent network learns another one, by its recurrent or its input weights
``GaussianSequences``   random sequences for attention; ``AttentionBlock`` with or without ``FourierFeatures``
"""

from foretrain.training.tasks.attention import AttentionBlock, FourierFeatures, GaussianSequences, GlobalState
from foretrain.training.tasks.memory_pro import MemoryPro, Recurrent, xavier
from foretrain.training.tasks.student_teacher import StudentTeacher

__all__ = [
    "AttentionBlock",
    "FourierFeatures",
    "GaussianSequences",
    "GlobalState",
    "MemoryPro",
    "Recurrent",
    "StudentTeacher",
    "xavier",
]
