"""Recording a training: ``Recorder`` writes observables while any loop runs, ``read`` gives them back labelled.

``recording`` gives them back as a result that prints and draws itself.
"""

from foretrain.training.recorder.recorder import Recorder
from foretrain.training.recorder.recording import RecorderSummary, Recording, recording
from foretrain.training.recorder.records import read

__all__ = ["Recorder", "RecorderSummary", "Recording", "read", "recording"]
