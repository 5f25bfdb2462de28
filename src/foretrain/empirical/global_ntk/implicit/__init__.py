"""States that solve an equation, and how to find them."""

from foretrain.empirical.global_ntk.implicit.dynamics import ImplicitDynamics
from foretrain.empirical.global_ntk.implicit.equilibrium import solve

__all__ = ["ImplicitDynamics", "solve"]
