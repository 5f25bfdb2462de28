"""Many experiments in one run: each in a process of its own, what is finished is kept, failures end nothing else.

>>> run = run_many(["parameter-count", "critical-lines"], keep="results")
>>> run.holds, run.verdict, run.records

``many``       the run: what is finished already, what is left, in which order
``one``        one experiment of it: its numbers, its files, or its error
``record``     how one experiment ended, and the file that keeps it
``outcome``    all records together: verdict, tables, picture and dataset
"""

from foretrain.experiments.runs.many import run_many
from foretrain.experiments.runs.outcome import Run
from foretrain.experiments.runs.record import Difference, Record

__all__ = ["Difference", "Record", "Run", "run_many"]
