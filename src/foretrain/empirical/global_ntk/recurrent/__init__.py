"""States of torch's recurrent modules: changes go through all steps by sweeps written out for each cell."""

from foretrain.empirical.global_ntk.recurrent.dynamics import RecurrentDynamics, as_samples_first

__all__ = ["RecurrentDynamics", "as_samples_first"]
