"""Many experiments in one run: each in a process of its own, what is finished is kept, failures end nothing else.

>>> run = run_many(["parameter-count", "critical-lines"], keep="results")
>>> run.holds, run.verdict, run.records
"""

from foretrain.experiments.runs.many import run_many
from foretrain.experiments.runs.outcome import Difference, Record, Run

__all__ = ["Difference", "Record", "Run", "run_many"]
