"""Figure 3: the global-state NTK and its Kronecker core while a GRU learns."""
