"""Experiments on collective fields (Nordio)."""
