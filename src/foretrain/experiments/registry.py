"""Named experiments: what each one reproduces, and where it is written.

A later room adds an experiment in three steps. In a module of the folder of its source, write a frozen dataclass
``Plan`` of all that depends on the scale, and ``PLANS = plans(quick=Plan(..), paper=Plan(..))``. Beside them, write
``def name(plan: Plan, seed: int) -> Result``. Add one entry to the table below; listing experiments imports none of
those modules. What is a number, a text or a list of them in the plan is a setting for sweeps. One that runs for long
takes ``parts: Parts`` as a third argument, keeps with it what is finished, and says ``resumable``.
"""

from __future__ import annotations

from functools import partial

from foretrain.experiments.experiment import Experiment, Result, Row, Scale, plans
from foretrain.support.errors import unknown_name

__all__ = ["Experiment", "Result", "Row", "Scale", "get", "names", "plans"]


def _experiment(
    folder: str,
    source: str,
    name: str,
    title: str,
    place: str,
    seconds: float,
    module: str = "",
    *,
    resumable: bool = False,
) -> Experiment:
    """An entry whose function, and module unless another is given, are called like it; ``place`` is in the source."""
    function = name.replace("-", "_")
    address = module if ":" in module else f"{module or function}:{function}"
    address = f"foretrain.experiments.{folder}.{address}"
    return Experiment(name, title, f"{source}, {place}", address, resumable, seconds)


# The Principles of Deep Learning Theory; The Global Empirical NTK; Learning Dynamics Reveal a Hierarchy of
# Weight-Induced Layerwise Gram Metrics; A Theory of Saddle Escape in Deep Nonlinear Networks.
_book = partial(_experiment, "effective_theory", "Roberts & Yaida")
_global_ntk = partial(_experiment, "global_ntk", "Hazelden et al.")
_fields = partial(_experiment, "collective_fields", "Nordio")
_saddle = partial(_experiment, "saddle_escape", "Rawal & DeWeese")

_TABLE: tuple[Experiment, ...] = (
    _book(
        "taylor-expansion",
        "The Taylor series of trained networks around their initialisation, order by order in 1/n",
        "chapter 0 and (∞.4)",
        35,
    ),
    _book(
        "nearly-gaussian",
        "Nearly-Gaussian laws: correlators from couplings, and where first order breaks down",
        "(1.73)-(1.83)",
        13,
    ),
    _book("parameter-count", "Parameter count of a multilayer perceptron", "figure 2.1 and (2.7)", 1),
    _book("activation-curves", "The common activation functions", "figure 2.2", 1),
    _book(
        "weight-laws",
        "Gaussian, uniform and truncated normal weights: what the law changes",
        "section 2.3 and chapter 3",
        30,
    ),
    _book(
        "metric-fluctuations",
        "Second layer of random networks against Gaussian expectations",
        "chapter 2 and section 4.2",
        7,
    ),
    _book(
        "deep-linear-vertex",
        "Deep linear four-point vertex against depth over width",
        "(3.28) and (3.56)",
        8,
        "deep_linear",
    ),
    _book(
        "deep-linear-scaling",
        "Deep linear moments at fixed depth over width, growing width",
        "section 3.4, (3.55)",
        7,
        "deep_linear",
    ),
    _book(
        "log-variance",
        "Log-normal law of the deep linear output variance",
        "section 3.4, from (3.47) and (3.55)",
        6,
        "deep_linear",
    ),
    _book(
        "layer-statistics",
        "Kernel, four-point vertex and next-to-leading metric of random networks",
        "chapter 4",
        25,
    ),
    _book(
        "neuron-observables",
        "Functions of one, two and several neurons of random networks to order 1/n",
        "section 4.3, (4.61), (4.64) and (4.102)",
        25,
    ),
    _book(
        "critical-lines",
        "Critical lines of tanh and the ratio of its susceptibilities",
        "figure 5.1",
        2,
        "critical_curves",
    ),
    _book(
        "ratio-without-criticality",
        "Sigmoid and softplus cannot be critical",
        "figure 5.2",
        2,
        "critical_curves",
    ),
    _book(
        "ratio-half-stable",
        "SWISH and GELU are critical at a kernel above zero",
        "figure 5.3",
        3,
        "critical_curves",
    ),
    _book(
        "depth-laws",
        "Kernel, fluctuations and finite-width shift against depth, class by class",
        "sections 5.3 and 5.4",
        5,
    ),
    _book("angle-flow", "The angle between two signals falls as 3 / (rho l)", "section 5.5", 9),
    _book(
        "model-evidence",
        "Evidence of deep networks against their initialisation, and noise on targets",
        "sections 6.2 and 6.3",
        15,
    ),
    _book(
        "hebbian-association",
        "Neurons that fire together: one neuron, given another",
        "section 6.4.1, (6.78)",
        30,
    ),
    _book(
        "finite-width-posterior",
        "Posterior, evidence and hidden layers at order 1/n against exact finite-width posteriors",
        "section 6.4",
        100,
        resumable=True,
    ),
    _book(
        "gradient-step",
        "One step of descent of real networks against the tangent kernel and its differentials",
        "(7.14), (7.20), (11.9)",
        45,
    ),
    _book(
        "ntk-statistics",
        "Mean, shift and fluctuations of the tangent kernel of random networks, and their depth laws",
        "chapters 8 and 9",
        65,
        "tensor_statistics",
    ),
    _book(
        "exploding-gradients",
        "Exploding and vanishing gradients, and shares of layers in the tangent kernel",
        "section 9.4, (9.28) and (9.93)",
        30,
    ),
    _book(
        "learning-rate-scaling",
        "Learning rates by the equivalence principle against uniform ones",
        "section 9.4",
        45,
    ),
    _book(
        "hidden-updates",
        "How much one step of descent moves the last hidden layer",
        "section 10.1, (10.11) and (10.12)",
        25,
    ),
    _book(
        "algorithm-independence",
        "Every algorithm ends at the same function, and the last layer alone at the posterior",
        "section 10.2",
        55,
    ),
    _book("nearby-inputs", "Predictions near one training input, against depth", "section 10.3.1", 40),
    _book("interpolation", "Between and beyond two training inputs", "section 10.3.2", 30),
    _book(
        "trained-ensembles",
        "Mean and covariance of trained networks of five widths, on a function and on digits",
        "(10.40) and (10.41)",
        335,
        resumable=True,
    ),
    _book(
        "dntk-statistics",
        "Differentials of the tangent kernel of random networks, and their growth with depth",
        "sections 11.2, 11.3 and ∞.1",
        45,
        "tensor_statistics",
    ),
    _book("quadratic-models", "Quadratic models: closed form against training", "(11.105)-(11.142)", 5),
    _book(
        "effective-kernel",
        "Tangent kernel after training, predicted at initialisation",
        "(11.138), (11.146)",
        85,
        resumable=True,
    ),
    _book(
        "finite-width-training",
        "What finite width does to trained networks, times n, by three algorithms",
        "chapter ∞",
        330,
        resumable=True,
    ),
    _book(
        "six-point-vertex", "The six-point vertex of random networks against its recursion", "epilogue", 40
    ),
    _book(
        "mutual-information",
        "Information between neurons: truncated series, exact mixture, random networks",
        "appendix A, (A.66)-(A.75)",
        20,
    ),
    _book(
        "residual-fluctuations",
        "Fluctuations of residual networks against the skip coupling",
        "appendix B",
        35,
    ),
    _global_ntk(
        "global-ntk-propositions",
        "The statements of the theory on small networks, written out as matrices",
        "propositions 1 and 2, theorem 1, corollary 2",
        7,
        "propositions",
    ),
    _global_ntk(
        "core-of-the-ntk",
        "The global-state NTK and its Kronecker core while a GRU learns Memory-Pro",
        "figure 3",
        200,
        resumable=True,
    ),
    _global_ntk(
        "learning-bottleneck",
        "A bottleneck of learning, and two ways out of it",
        "figure 4",
        270,
        resumable=True,
    ),
    _global_ntk(
        "student-teacher-ranks",
        "Ranks of the global-state NTK against gain and input rank",
        "figure 5",
        380,
        resumable=True,
    ),
    _global_ntk(
        "attention-input-dimension",
        "The rank in time of an attention block follows the dimension of its input",
        "figures 6, 9 and 10",
        120,
        "attention_ranks:input_dimension",
        resumable=True,
    ),
    _global_ntk(
        "attention-width-and-heads",
        "Width sets the ranks in space and in total, heads hardly matter",
        "figures 6, 9 and 10",
        150,
        "attention_ranks:width_and_heads",
        resumable=True,
    ),
    _global_ntk(
        "attention-fourier-features",
        "Fourier features lift the rank of one-dimensional input",
        "figures 6, 9 and 10",
        150,
        "attention_ranks:fourier_features",
        resumable=True,
    ),
    _global_ntk(
        "fixed-point-initialisation", "Recurrent matrices with added fixed points", "figure 8 and (17)", 75
    ),
    _global_ntk(
        "mode-prediction",
        "Modes that gradient descent learns within a budget, foretold from the initial NTK",
        "corollary 2, tested forward",
        125,
        resumable=True,
    ),
    _fields(
        "collective-fields",
        "Collective fields: predicted and real updates, mask flips, training without weights",
        "(47), (152), (171), (172), (185)",
        35,
    ),
    _fields(
        "weight-metrics",
        "Kernels of general networks by layer, inputs that only watch, metrics and spectra while a network learns",
        "(62)-(64), (165)-(188), section 10.3",
        7,
    ),
    _saddle(
        "imbalance-identity",
        "The imbalance of layers: what is conserved and what drifts",
        "section 2, (2), (28) and corollary 12",
        7,
        "imbalance",
    ),
    _saddle(
        "saddle-trajectory", "Whole networks on the scalar flow of the saddle", "figure 1", 35, "trajectory"
    ),
    _saddle(
        "saddle-scaling", "Escape time against initial scale, depth and bottleneck", "figure 2", 25, "scaling"
    ),
    _saddle(
        "saddle-universality",
        "Escape times of five activations collapse",
        "figure 3",
        60,
        "universality",
        resumable=True,
    ),
    _saddle(
        "saddle-slopes",
        "Slopes of escape times of He-normal networks",
        "figure 4 and table of slopes",
        245,
        "slopes",
        resumable=True,
    ),
    _saddle("saddle-modes", "Several modes escaping together", "figure 5", 310, "modes"),
    _saddle(
        "saddle-corrections",
        "What comes after the leading order of escape times",
        "theorem 5, corollary 17 and appendix E",
        6,
        "corrections",
    ),
    _saddle(
        "plateau-prediction",
        "Plateaus of real networks: predicted steps beside stochastic descent, and the rescaling that removes them",
        "(12)",
        175,
        resumable=True,
    ),
)
_BY_NAME = {entry.name: entry for entry in _TABLE}


def names() -> tuple[str, ...]:
    """Names of all experiments, in the order of the sources."""
    return tuple(_BY_NAME)


def get(name: str) -> Experiment:
    """The experiment with this name."""
    if name not in _BY_NAME:
        raise unknown_name("experiment", name, _BY_NAME, "name")
    return _BY_NAME[name]
