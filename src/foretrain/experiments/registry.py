"""Named experiments: what each one reproduces, and where it is written.

A later room adds an experiment in two steps: write ``def run(scale: Scale, seed: int) -> Result`` in a module
of this package, and add one line to the table below. Listing the table imports none of those modules. One that
runs for long takes ``parts: Parts`` as a third argument, keeps with it what is finished, and says ``resumable``.
"""

from __future__ import annotations

from foretrain.experiments.experiment import Experiment, Result, Row, Scale
from foretrain.support.errors import unknown_name

__all__ = ["Experiment", "Result", "Row", "Scale", "get", "names"]

_BOOK = "Roberts & Yaida"  # The Principles of Deep Learning Theory
_GLOBAL = "Hazelden et al."  # The Global Empirical NTK
_FIELDS = "Nordio"  # Learning Dynamics Reveal a Hierarchy of Weight-Induced Layerwise Gram Metrics
_SADDLE = "Rawal & DeWeese"  # A Theory of Saddle Escape in Deep Nonlinear Networks
_CURVES = "foretrain.experiments.effective_theory.critical_curves"

_TABLE = (
    Experiment(
        "taylor-expansion",
        "The Taylor series of trained networks around their initialisation, order by order in 1/n",
        f"{_BOOK}, chapter 0 and (∞.4)",
        "foretrain.experiments.effective_theory.taylor_expansion:taylor_expansion",
        seconds=25,
    ),
    Experiment(
        "nearly-gaussian",
        "Nearly-Gaussian laws: correlators from couplings, and where first order breaks down",
        f"{_BOOK}, (1.73)-(1.83)",
        "foretrain.experiments.effective_theory.nearly_gaussian.entry:nearly_gaussian",
        seconds=10,
    ),
    Experiment(
        "parameter-count",
        "Parameter count of a multilayer perceptron",
        f"{_BOOK}, figure 2.1 and (2.7)",
        "foretrain.experiments.effective_theory.networks:parameter_count",
        seconds=1,
    ),
    Experiment(
        "activation-curves",
        "The common activation functions",
        f"{_BOOK}, figure 2.2",
        "foretrain.experiments.effective_theory.networks:activation_curves",
        seconds=1,
    ),
    Experiment(
        "weight-laws",
        "Gaussian, uniform and truncated normal weights: what the law changes",
        f"{_BOOK}, section 2.3 and chapter 3",
        "foretrain.experiments.effective_theory.weight_laws:weight_laws",
        seconds=20,
    ),
    Experiment(
        "metric-fluctuations",
        "Second layer of random networks against Gaussian expectations",
        f"{_BOOK}, chapter 2 and section 4.2",
        "foretrain.experiments.effective_theory.metric_fluctuations:metric_fluctuations",
        seconds=5,
    ),
    Experiment(
        "deep-linear-vertex",
        "Deep linear four-point vertex against depth over width",
        f"{_BOOK}, (3.28) and (3.56)",
        "foretrain.experiments.effective_theory.deep_linear.vertex:deep_linear_vertex",
        seconds=8,
    ),
    Experiment(
        "deep-linear-scaling",
        "Deep linear moments at fixed depth over width, growing width",
        f"{_BOOK}, section 3.4, (3.55)",
        "foretrain.experiments.effective_theory.deep_linear.scaling:deep_linear_scaling",
        seconds=6,
    ),
    Experiment(
        "log-variance",
        "Log-normal law of the deep linear output variance",
        f"{_BOOK}, section 3.4, from (3.47) and (3.55)",
        "foretrain.experiments.effective_theory.deep_linear.log_variance:log_variance",
        seconds=4,
    ),
    Experiment(
        "layer-statistics",
        "Kernel, four-point vertex and next-to-leading metric of random networks",
        f"{_BOOK}, chapter 4",
        "foretrain.experiments.effective_theory.layer_statistics:layer_statistics",
        seconds=13,
    ),
    Experiment(
        "neuron-observables",
        "Functions of one, two and several neurons of random networks to order 1/n",
        f"{_BOOK}, section 4.3, (4.61), (4.64) and (4.102)",
        "foretrain.experiments.effective_theory.neuron_observables:neuron_observables",
        seconds=18,
    ),
    Experiment(
        "critical-lines",
        "Critical lines of tanh and the ratio of its susceptibilities",
        f"{_BOOK}, figure 5.1",
        f"{_CURVES}:critical_lines",
        seconds=1,
    ),
    Experiment(
        "ratio-without-criticality",
        "Sigmoid and softplus cannot be critical",
        f"{_BOOK}, figure 5.2",
        f"{_CURVES}:ratio_without_criticality",
        seconds=1,
    ),
    Experiment(
        "ratio-half-stable",
        "SWISH and GELU are critical at a kernel above zero",
        f"{_BOOK}, figure 5.3",
        f"{_CURVES}:ratio_half_stable",
        seconds=1,
    ),
    Experiment(
        "depth-laws",
        "Kernel, fluctuations and finite-width shift against depth, class by class",
        f"{_BOOK}, sections 5.3 and 5.4",
        "foretrain.experiments.effective_theory.depth_laws:depth_laws",
        seconds=3,
    ),
    Experiment(
        "angle-flow",
        "The angle between two signals falls as 3 / (rho l)",
        f"{_BOOK}, section 5.5",
        "foretrain.experiments.effective_theory.angle_flow:angle_flow",
        seconds=7,
    ),
    Experiment(
        "model-evidence",
        "Evidence of deep networks against their initialisation, and noise on targets",
        f"{_BOOK}, sections 6.2 and 6.3",
        "foretrain.experiments.effective_theory.model_evidence:model_evidence",
        seconds=16,
    ),
    Experiment(
        "hebbian-association",
        "Neurons that fire together: one neuron, given another",
        f"{_BOOK}, section 6.4.1, (6.78)",
        "foretrain.experiments.effective_theory.hebbian_association:hebbian_association",
        seconds=15,
    ),
    Experiment(
        "finite-width-posterior",
        "Posterior, evidence and hidden layers at order 1/n against exact finite-width posteriors",
        f"{_BOOK}, section 6.4",
        "foretrain.experiments.effective_theory.finite_width_posterior.entry:finite_width_posterior",
        resumable=True,
        seconds=70,
    ),
    Experiment(
        "gradient-step",
        "One step of descent of real networks against the tangent kernel and its differentials",
        f"{_BOOK}, (7.14), (7.20), (11.9)",
        "foretrain.experiments.effective_theory.gradient_step:gradient_step",
        seconds=25,
    ),
    Experiment(
        "ntk-statistics",
        "Mean, shift and fluctuations of the tangent kernel of random networks, and their depth laws",
        f"{_BOOK}, chapters 8 and 9",
        "foretrain.experiments.effective_theory.ntk_statistics:ntk_statistics",
        seconds=40,
    ),
    Experiment(
        "exploding-gradients",
        "Exploding and vanishing gradients, and shares of layers in the tangent kernel",
        f"{_BOOK}, section 9.4, (9.28) and (9.93)",
        "foretrain.experiments.effective_theory.exploding_gradients:exploding_gradients",
        seconds=20,
    ),
    Experiment(
        "learning-rate-scaling",
        "Learning rates by the equivalence principle against uniform ones",
        f"{_BOOK}, section 9.4",
        "foretrain.experiments.effective_theory.learning_rate_scaling:learning_rate_scaling",
        seconds=25,
    ),
    Experiment(
        "hidden-updates",
        "How much one step of descent moves the last hidden layer",
        f"{_BOOK}, section 10.1, (10.11) and (10.12)",
        "foretrain.experiments.effective_theory.hidden_updates:hidden_updates",
        seconds=45,
    ),
    Experiment(
        "algorithm-independence",
        "Every algorithm ends at the same function, and the last layer alone at the posterior",
        f"{_BOOK}, section 10.2",
        "foretrain.experiments.effective_theory.algorithm_independence:algorithm_independence",
        seconds=50,
    ),
    Experiment(
        "nearby-inputs",
        "Predictions near one training input, against depth",
        f"{_BOOK}, section 10.3.1",
        "foretrain.experiments.effective_theory.nearby_inputs.entry:nearby_inputs",
        seconds=30,
    ),
    Experiment(
        "interpolation",
        "Between and beyond two training inputs",
        f"{_BOOK}, section 10.3.2",
        "foretrain.experiments.effective_theory.interpolation:interpolation",
        seconds=30,
    ),
    Experiment(
        "trained-ensembles",
        "Mean and covariance of trained networks of five widths, on a function and on digits",
        f"{_BOOK}, (10.40) and (10.41)",
        "foretrain.experiments.effective_theory.trained_ensembles.entry:trained_ensembles",
        resumable=True,
        seconds=225,
    ),
    Experiment(
        "dntk-statistics",
        "Differentials of the tangent kernel of random networks, and their growth with depth",
        f"{_BOOK}, sections 11.2, 11.3 and ∞.1",
        "foretrain.experiments.effective_theory.dntk_statistics:dntk_statistics",
        seconds=35,
    ),
    Experiment(
        "quadratic-models",
        "Quadratic models: closed form against training",
        f"{_BOOK}, (11.105)-(11.142)",
        "foretrain.experiments.effective_theory.quadratic_models.entry:quadratic_models",
        seconds=2,
    ),
    Experiment(
        "effective-kernel",
        "Tangent kernel after training, predicted at initialisation",
        f"{_BOOK}, (11.138), (11.146)",
        "foretrain.experiments.effective_theory.effective_kernel:effective_kernel",
        resumable=True,
        seconds=90,
    ),
    Experiment(
        "finite-width-training",
        "What finite width does to trained networks, times n, by three algorithms",
        f"{_BOOK}, chapter ∞",
        "foretrain.experiments.effective_theory.finite_width_training.entry:finite_width_training",
        resumable=True,
        seconds=150,
    ),
    Experiment(
        "six-point-vertex",
        "The six-point vertex of random networks against its recursion",
        f"{_BOOK}, epilogue",
        "foretrain.experiments.effective_theory.six_point_vertex:six_point_vertex",
        seconds=30,
    ),
    Experiment(
        "mutual-information",
        "Information between neurons: truncated series, exact mixture, random networks",
        f"{_BOOK}, appendix A, (A.66)-(A.75)",
        "foretrain.experiments.effective_theory.mutual_information.entry:mutual_information",
        seconds=11,
    ),
    Experiment(
        "residual-fluctuations",
        "Fluctuations of residual networks against the skip coupling",
        f"{_BOOK}, appendix B",
        "foretrain.experiments.effective_theory.residual_fluctuations:residual_fluctuations",
        seconds=25,
    ),
    Experiment(
        "global-ntk-propositions",
        "The statements of the theory on small networks, written out as matrices",
        f"{_GLOBAL}, propositions 1 and 2, theorem 1, corollary 2",
        "foretrain.experiments.global_ntk.propositions:global_ntk_propositions",
        seconds=4,
    ),
    Experiment(
        "core-of-the-ntk",
        "The global-state NTK and its Kronecker core while a GRU learns Memory-Pro",
        f"{_GLOBAL}, figure 3",
        "foretrain.experiments.global_ntk.core_of_the_ntk.entry:core_of_the_ntk",
        resumable=True,
        seconds=120,
    ),
    Experiment(
        "learning-bottleneck",
        "A bottleneck of learning, and two ways out of it",
        f"{_GLOBAL}, figure 4",
        "foretrain.experiments.global_ntk.learning_bottleneck.entry:learning_bottleneck",
        resumable=True,
        seconds=150,
    ),
    Experiment(
        "student-teacher-ranks",
        "Ranks of the global-state NTK against gain and input rank",
        f"{_GLOBAL}, figure 5",
        "foretrain.experiments.global_ntk.student_teacher_ranks.entry:student_teacher_ranks",
        resumable=True,
        seconds=150,
    ),
    Experiment(
        "attention-input-dimension",
        "The rank in time of an attention block follows the dimension of its input",
        f"{_GLOBAL}, figures 6, 9 and 10",
        "foretrain.experiments.global_ntk.attention_ranks.entry:input_dimension",
        resumable=True,
        seconds=150,
    ),
    Experiment(
        "attention-width-and-heads",
        "Width sets the ranks in space and in total, heads hardly matter",
        f"{_GLOBAL}, figures 6, 9 and 10",
        "foretrain.experiments.global_ntk.attention_ranks.entry:width_and_heads",
        resumable=True,
        seconds=150,
    ),
    Experiment(
        "attention-fourier-features",
        "Fourier features lift the rank of one-dimensional input",
        f"{_GLOBAL}, figures 6, 9 and 10",
        "foretrain.experiments.global_ntk.attention_ranks.entry:fourier_features",
        resumable=True,
        seconds=150,
    ),
    Experiment(
        "fixed-point-initialisation",
        "Recurrent matrices with added fixed points",
        f"{_GLOBAL}, figure 8 and (17)",
        "foretrain.experiments.global_ntk.fixed_point_initialisation.entry:fixed_point_initialisation",
        seconds=40,
    ),
    Experiment(
        "mode-prediction",
        "Modes that gradient descent learns within a budget, foretold from the initial NTK",
        f"{_GLOBAL}, corollary 2, tested forward",
        "foretrain.experiments.global_ntk.mode_prediction.entry:mode_prediction",
        resumable=True,
        seconds=85,
    ),
    Experiment(
        "collective-fields",
        "Collective fields: predicted and real updates, mask flips, training without weights",
        f"{_FIELDS}, (47), (152), (171), (172), (185)",
        "foretrain.experiments.collective_fields.entry:collective_fields",
        seconds=20,
    ),
    Experiment(
        "weight-metrics",
        "Kernels of general networks by layer, inputs that only watch, metrics and spectra while a network learns",
        f"{_FIELDS}, (62)-(64), (165)-(188), section 10.3",
        "foretrain.experiments.collective_fields.weight_metrics:weight_metrics",
        seconds=10,
    ),
    Experiment(
        "imbalance-identity",
        "The imbalance of layers: what is conserved and what drifts",
        f"{_SADDLE}, section 2, (2), (28) and corollary 12",
        "foretrain.experiments.saddle_escape.imbalance:imbalance_identity",
        seconds=6,
    ),
    Experiment(
        "saddle-trajectory",
        "Whole networks on the scalar flow of the saddle",
        f"{_SADDLE}, figure 1",
        "foretrain.experiments.saddle_escape.trajectory:saddle_trajectory",
        seconds=20,
    ),
    Experiment(
        "saddle-scaling",
        "Escape time against initial scale, depth and bottleneck",
        f"{_SADDLE}, figure 2",
        "foretrain.experiments.saddle_escape.scaling:saddle_scaling",
        seconds=14,
    ),
    Experiment(
        "saddle-universality",
        "Escape times of five activations collapse",
        f"{_SADDLE}, figure 3",
        "foretrain.experiments.saddle_escape.universality.entry:saddle_universality",
        resumable=True,
        seconds=35,
    ),
    Experiment(
        "saddle-slopes",
        "Slopes of escape times of He-normal networks",
        f"{_SADDLE}, figure 4 and table of slopes",
        "foretrain.experiments.saddle_escape.slopes.entry:saddle_slopes",
        resumable=True,
        seconds=120,
    ),
    Experiment(
        "saddle-modes",
        "Several modes escaping together",
        f"{_SADDLE}, figure 5",
        "foretrain.experiments.saddle_escape.modes.entry:saddle_modes",
        seconds=135,
    ),
    Experiment(
        "saddle-corrections",
        "What comes after the leading order of escape times",
        f"{_SADDLE}, theorem 5, corollary 17 and appendix E",
        "foretrain.experiments.saddle_escape.corrections:saddle_corrections",
        seconds=4,
    ),
    Experiment(
        "plateau-prediction",
        "Plateaus of real networks: predicted steps beside stochastic descent, and the rescaling that removes them",
        f"{_SADDLE}, (12)",
        "foretrain.experiments.saddle_escape.plateau_prediction.entry:plateau_prediction",
        resumable=True,
        seconds=110,
    ),
)
_BY_NAME = {entry.name: entry for entry in _TABLE}


def names() -> tuple[str, ...]:
    """Names of all experiments, in the order of the sources."""
    return tuple(_BY_NAME)


def get(name: str) -> Experiment:
    """The experiment with this name."""
    if name not in _BY_NAME:
        raise unknown_name("experiment", name, _BY_NAME)
    return _BY_NAME[name]
