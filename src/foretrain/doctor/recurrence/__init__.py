"""Recurrent layers: what their states remember of the target, what descent can change in them, longer memory."""
