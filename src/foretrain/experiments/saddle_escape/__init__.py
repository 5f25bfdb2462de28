"""Experiments on the escape from the saddle at small initialisation (Rawal & DeWeese)."""
