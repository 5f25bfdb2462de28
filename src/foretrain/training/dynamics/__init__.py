"""What recurrent models do by themselves: exponents, fixed points, dimension of their states, and initial memories.

``lyapunov``             how fast small changes of the states grow
``fixed_points``         where a step stands still or is slow, with the linear dynamics there
``participation_ratio``  how many directions states spread over
``spectral_radius``      of recurrent weights and of the Jacobians of steps
``fixed_point_weights``  a recurrent matrix with points of one's choice (Hazelden et al., (17)): ``basis_points``,
                         ``sign_points`` or others; ``spectral_radii`` says which attract
``plant_fixed_points``   the same for a GRU

A model is a recurrent layer or cell of torch, any module with one inside, a loop whose states modules return, or one
step as a function f(h, x).
"""

from foretrain.training.dynamics.lyapunov_exponents import LyapunovExponents, lyapunov
from foretrain.training.dynamics.planted import (
    FixedPointWeights,
    basis_points,
    fixed_point_weights,
    plant_fixed_points,
    sign_points,
    spectral_radii,
)
from foretrain.training.dynamics.state_statistics import (
    ParticipationRatio,
    SpectralRadius,
    participation_ratio,
    spectral_radius,
)
from foretrain.training.dynamics.stationary_points import FixedPoints, fixed_points

__all__ = [
    "FixedPointWeights",
    "FixedPoints",
    "LyapunovExponents",
    "ParticipationRatio",
    "SpectralRadius",
    "basis_points",
    "fixed_point_weights",
    "fixed_points",
    "lyapunov",
    "participation_ratio",
    "plant_fixed_points",
    "sign_points",
    "spectral_radii",
    "spectral_radius",
]
