"""The global-state NTK: how gradient descent changes everything that a model computes.

``global_ntk``     the kernel of a model's states, as an operator
``global_summary`` its ranks, modes, core and shares, and how a target fits, at a glance
``solve``          the state of an equilibrium model
"""

from foretrain.empirical.global_ntk.implicit.equilibrium import solve
from foretrain.empirical.global_ntk.kernel import GlobalNTK
from foretrain.empirical.global_ntk.model_kernel import global_ntk
from foretrain.empirical.global_ntk.reduced_views import ReducedView
from foretrain.empirical.global_ntk.summary import GlobalSummary, global_summary

__all__ = [
    "GlobalNTK",
    "GlobalSummary",
    "ReducedView",
    "global_ntk",
    "global_summary",
    "solve",
]
