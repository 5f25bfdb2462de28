"""The plateau of a real network at small initialization: how long it is, why, and the rescaling that removes it.

``plateau``        reads the layers, integrates the network's own gradient flow on its own data, and advises
``Plateau``        what it returns; ``verify()`` trains the given and the rescaled network

Rooms: ``layers`` (scales, the bottleneck, its rescaling, the scaling law), ``forecast`` (the loss at the saddle and
the flow in steps), ``descent`` (learning rates by parameter, real runs).
"""

from foretrain.compare.plateau.forecast import Forecast
from foretrain.compare.plateau.layers import Bottleneck, LayerScale, ScalingLaw
from foretrain.compare.plateau.network_plateau import Plateau, PlateauVerification, plateau

__all__ = ["Bottleneck", "Forecast", "LayerScale", "Plateau", "PlateauVerification", "ScalingLaw", "plateau"]
