"""The MLP that a model is or ends with: its layers, signals and critical initialisation."""
