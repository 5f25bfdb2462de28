"""Figures and tables of the sources as runnable experiments: ``get("log-variance").run("quick", seed=0)``.

``run_many`` runs several or all of them, each in a process of its own.
"""

from foretrain.experiments.registry import Experiment, Result, Row, Scale, get, names
from foretrain.experiments.runs import Record, Run, run_many

__all__ = ["Experiment", "Record", "Result", "Row", "Run", "Scale", "get", "names", "run_many"]
