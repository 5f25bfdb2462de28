"""States of torch's recurrent modules: changes go through all steps by sweeps written out for each cell."""
