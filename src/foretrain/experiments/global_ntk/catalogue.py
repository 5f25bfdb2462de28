"""The experiments of the global-state NTK: what each one reproduces, and where it is written."""

from foretrain.experiments.experiment import Experiment

_SOURCE = "Hazelden et al."  # The Global Empirical NTK

EXPERIMENTS = (
    Experiment(
        "global-ntk-propositions",
        "The statements of the theory on small networks, written out as matrices",
        f"{_SOURCE}, propositions 1 and 2, theorem 1, corollary 2",
        "foretrain.experiments.global_ntk.propositions:global_ntk_propositions",
        seconds=7,
    ),
    Experiment(
        "core-of-the-ntk",
        "The global-state NTK and its Kronecker core while a GRU learns Memory-Pro",
        f"{_SOURCE}, figure 3",
        "foretrain.experiments.global_ntk.core_of_the_ntk:core_of_the_ntk",
        resumable=True,
        seconds=200,
    ),
    Experiment(
        "learning-bottleneck",
        "A bottleneck of learning, and two ways out of it",
        f"{_SOURCE}, figure 4",
        "foretrain.experiments.global_ntk.learning_bottleneck:learning_bottleneck",
        resumable=True,
        seconds=270,
    ),
    Experiment(
        "student-teacher-ranks",
        "Ranks of the global-state NTK against gain and input rank",
        f"{_SOURCE}, figure 5",
        "foretrain.experiments.global_ntk.student_teacher_ranks:student_teacher_ranks",
        resumable=True,
        seconds=380,
    ),
    Experiment(
        "attention-input-dimension",
        "The rank in time of an attention block follows the dimension of its input",
        f"{_SOURCE}, figures 6, 9 and 10",
        "foretrain.experiments.global_ntk.attention_ranks:input_dimension",
        resumable=True,
        seconds=120,
    ),
    Experiment(
        "attention-width-and-heads",
        "Width sets the ranks in space and in total, heads hardly matter",
        f"{_SOURCE}, figures 6, 9 and 10",
        "foretrain.experiments.global_ntk.attention_ranks:width_and_heads",
        resumable=True,
        seconds=150,
    ),
    Experiment(
        "attention-fourier-features",
        "Fourier features lift the rank of one-dimensional input",
        f"{_SOURCE}, figures 6, 9 and 10",
        "foretrain.experiments.global_ntk.attention_ranks:fourier_features",
        resumable=True,
        seconds=150,
    ),
    Experiment(
        "fixed-point-initialisation",
        "Recurrent matrices with added fixed points",
        f"{_SOURCE}, figure 8 and (17)",
        "foretrain.experiments.global_ntk.fixed_point_initialisation:fixed_point_initialisation",
        seconds=75,
    ),
    Experiment(
        "mode-prediction",
        "Modes that gradient descent learns within a budget, foretold from the initial NTK",
        f"{_SOURCE}, corollary 2, tested forward",
        "foretrain.experiments.global_ntk.mode_prediction:mode_prediction",
        resumable=True,
        seconds=125,
    ),
)
