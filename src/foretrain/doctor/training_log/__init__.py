"""What a training log alone shows: losses by step, and what else was written down beside them.

``columns``   files and tables as arrays, their columns found by their usual names
``trend``     changes with error bars that allow for autocorrelated noise, and forecasts
``course``    findings on the course of the loss: divergence, plateaus, what is still to come
``events``    findings on what happens beside it: spikes, schedules, epochs, validation, noise
``log``       ``read_log`` and its result
"""

from foretrain.doctor.training_log.log import TrainingLog, read_log

__all__ = ["TrainingLog", "read_log"]
