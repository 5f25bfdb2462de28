"""Plateaus of real networks, predicted in steps and removed."""
