"""The global-state NTK: how gradient descent changes everything that a model computes."""

from foretrain.empirical.global_ntk.entry import global_ntk
from foretrain.empirical.global_ntk.implicit_solve import solve
from foretrain.empirical.global_ntk.kernel import GlobalNTK

__all__ = ["GlobalNTK", "global_ntk", "solve"]
