"""Escape from the saddle at small initialization: classes, reduced flow, escape times (Rawal & DeWeese)."""
