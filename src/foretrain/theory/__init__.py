"""Architecture in, numbers out: what the effective theory says about a network, without torch.

``MLP``        the network and its hyperparameters (``architecture``)
``flow``       kernel, four-point vertex and next-to-leading metric, layer by layer; public as ``ft.flow``
``criticality``  critical initialisations and universality classes; public as ``ft.criticality``
``ensembles``  random networks: samplers and correlators with standard errors
``linear``     deep linear networks, exact in width
"""

from foretrain.theory import ensembles, linear
from foretrain.theory.architecture import MLP

__all__ = ["MLP", "ensembles", "linear"]
