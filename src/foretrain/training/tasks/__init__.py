"""Tasks of the sources, made from seeds alone: no data set is needed.

``MemoryPro``           remember an angle through a delay; ``Recurrent`` is the network that learns it
``StudentTeacher``      a recurrent network learns another one, by its recurrent or its input weights
``FlipFlop``, ``MatchToSample``, ``FiltersAndDelays``   working memory; ``LeakyNetwork`` is a loop that learns them
``GaussianSequences``   random sequences for attention; ``AttentionBlock`` with or without ``FourierFeatures``
"""

from foretrain.training.tasks.attention import AttentionBlock, FourierFeatures, GaussianSequences, GlobalState
from foretrain.training.tasks.memory_pro import MemoryPro, Recurrent, xavier
from foretrain.training.tasks.student_teacher import StudentTeacher
from foretrain.training.tasks.working_memory import FiltersAndDelays, FlipFlop, LeakyNetwork, MatchToSample

__all__ = [
    "AttentionBlock",
    "FiltersAndDelays",
    "FlipFlop",
    "FourierFeatures",
    "GaussianSequences",
    "GlobalState",
    "LeakyNetwork",
    "MatchToSample",
    "MemoryPro",
    "Recurrent",
    "StudentTeacher",
    "xavier",
]
