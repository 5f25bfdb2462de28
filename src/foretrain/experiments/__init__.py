"""Figures and tables of the sources as runnable experiments: ``get("log-variance").run("quick", seed=0)``."""

from foretrain.experiments.registry import Experiment, Result, Row, Scale, get, names

__all__ = ["Experiment", "Result", "Row", "Scale", "get", "names"]
