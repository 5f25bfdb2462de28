"""The experiments on the escape from the saddle: what each one reproduces, and where it is written."""

from foretrain.experiments.experiment import Experiment

_SOURCE = "Rawal & DeWeese"  # A Theory of Saddle Escape in Deep Nonlinear Networks

EXPERIMENTS = (
    Experiment(
        "imbalance-identity",
        "The imbalance of layers: what is conserved and what drifts",
        f"{_SOURCE}, section 2, (2), (28) and corollary 12",
        "foretrain.experiments.saddle_escape.imbalance:imbalance_identity",
        seconds=7,
    ),
    Experiment(
        "saddle-trajectory",
        "Whole networks on the scalar flow of the saddle",
        f"{_SOURCE}, figure 1",
        "foretrain.experiments.saddle_escape.trajectory:saddle_trajectory",
        seconds=35,
    ),
    Experiment(
        "saddle-scaling",
        "Escape time against initial scale, depth and bottleneck",
        f"{_SOURCE}, figure 2",
        "foretrain.experiments.saddle_escape.scaling:saddle_scaling",
        seconds=25,
    ),
    Experiment(
        "saddle-universality",
        "Escape times of five activations collapse",
        f"{_SOURCE}, figure 3",
        "foretrain.experiments.saddle_escape.universality:saddle_universality",
        resumable=True,
        seconds=60,
    ),
    Experiment(
        "saddle-slopes",
        "Slopes of escape times of He-normal networks",
        f"{_SOURCE}, figure 4 and table of slopes",
        "foretrain.experiments.saddle_escape.slopes:saddle_slopes",
        resumable=True,
        seconds=245,
    ),
    Experiment(
        "saddle-modes",
        "Several modes escaping together",
        f"{_SOURCE}, figure 5",
        "foretrain.experiments.saddle_escape.modes:saddle_modes",
        seconds=310,
    ),
    Experiment(
        "saddle-corrections",
        "What comes after the leading order of escape times",
        f"{_SOURCE}, theorem 5, corollary 17 and appendix E",
        "foretrain.experiments.saddle_escape.corrections:saddle_corrections",
        seconds=6,
    ),
    Experiment(
        "plateau-prediction",
        "Plateaus of real networks: predicted steps beside stochastic descent, and the rescaling that removes them",
        f"{_SOURCE}, (12)",
        "foretrain.experiments.saddle_escape.plateau_prediction:plateau_prediction",
        resumable=True,
        seconds=175,
    ),
)
