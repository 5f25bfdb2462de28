"""Experiments on the global-state NTK (Hazelden et al.)."""
