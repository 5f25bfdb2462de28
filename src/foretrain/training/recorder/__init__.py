"""Recording a training: ``Recorder`` writes observables while any loop runs, ``read`` gives them back labelled."""

from foretrain.training.recorder.entry import Recorder
from foretrain.training.recorder.reading import read
from foretrain.training.recorder.summary import RecorderSummary

__all__ = ["Recorder", "RecorderSummary", "read"]
