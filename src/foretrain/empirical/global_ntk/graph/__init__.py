"""States of any model, named by submodules: changes go through its autograd graph."""

from foretrain.empirical.global_ntk.graph.dynamics import GraphDynamics

__all__ = ["GraphDynamics"]
