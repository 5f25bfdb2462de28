"""The experiments on collective fields: what each one reproduces, and where it is written."""

from foretrain.experiments.experiment import Experiment

_SOURCE = "Nordio"  # Learning Dynamics Reveal a Hierarchy of Weight-Induced Layerwise Gram Metrics

EXPERIMENTS = (
    Experiment(
        "collective-fields",
        "Collective fields: predicted and real updates, mask flips, training without weights",
        f"{_SOURCE}, (47), (152), (171), (172), (185)",
        "foretrain.experiments.collective_fields.collective_fields:collective_fields",
        seconds=35,
    ),
    Experiment(
        "weight-metrics",
        "Kernels of general networks by layer, inputs that only watch, metrics and spectra while a network learns",
        f"{_SOURCE}, (62)-(64), (165)-(188), section 10.3",
        "foretrain.experiments.collective_fields.weight_metrics:weight_metrics",
        seconds=7,
    ),
)
