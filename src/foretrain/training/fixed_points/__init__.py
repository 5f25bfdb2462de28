"""Fixed points of recurrent networks: put there by initialisation (Hazelden et al., (17)), or found.

``fixed_point_weights``   a recurrent matrix with points of one's choice: ``basis_points``, ``sign_points`` or others;
                          ``spectral_radii`` says which attract
``plant_fixed_points``    the same for a GRU
``find_fixed_points``     all that many starts lead to, of a plain RNN or GRU at a constant input
"""

from foretrain.training.fixed_points.planted import (
    FixedPointWeights,
    basis_points,
    fixed_point_weights,
    plant_fixed_points,
    sign_points,
    spectral_radii,
)
from foretrain.training.fixed_points.search import FixedPoints, find_fixed_points

__all__ = [
    "FixedPointWeights",
    "FixedPoints",
    "basis_points",
    "find_fixed_points",
    "fixed_point_weights",
    "plant_fixed_points",
    "sign_points",
    "spectral_radii",
]
