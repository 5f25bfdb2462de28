"""States of any model, named by submodules: changes go through its autograd graph."""
