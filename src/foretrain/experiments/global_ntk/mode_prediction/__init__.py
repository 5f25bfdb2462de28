"""Corollary 2 tested forward: which modes are learned within a budget."""
