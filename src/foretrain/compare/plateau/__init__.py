"""The plateau of a real network at small initialization: how long it is, why, and the rescaling that removes it.

``plateau``        reads the layers, integrates the network's own gradient flow on its own data, and advises
``Plateau``        what it returns; ``verify()`` trains the given and the rescaled network

Rooms: ``layers`` (scales and the bottleneck), ``levels`` (loss at the saddle, threshold), ``rates`` (learning rates
by parameter), ``prediction`` (the flow in steps), ``rescaling`` (factors, scaling law), ``verification`` (descent).
"""

from foretrain.compare.plateau.entry import plateau
from foretrain.compare.plateau.layers import Bottleneck, LayerScale
from foretrain.compare.plateau.prediction import Forecast
from foretrain.compare.plateau.rescaling import ScalingLaw
from foretrain.compare.plateau.result import Plateau, PlateauVerification

__all__ = ["Bottleneck", "Forecast", "LayerScale", "Plateau", "PlateauVerification", "ScalingLaw", "plateau"]
