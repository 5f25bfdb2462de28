"""Figures 6, 9 and 10: ranks of attention blocks."""
