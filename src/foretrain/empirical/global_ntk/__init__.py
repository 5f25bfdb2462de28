"""The global-state NTK: how gradient descent changes everything that a model computes."""
