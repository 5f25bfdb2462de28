"""Experiments on *The Principles of Deep Learning Theory* (Roberts & Yaida)."""
