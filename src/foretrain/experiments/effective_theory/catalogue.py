"""The experiments of the effective theory, by chapter: what each one reproduces, and where it is written."""

from foretrain.experiments.experiment import Experiment


def _experiment(
    name: str, title: str, place: str, seconds: float, module: str = "", *, resumable: bool = False
) -> Experiment:
    """An entry whose function, and module unless another is given, are called like it; ``place`` is in the book."""
    function = name.replace("-", "_")
    address = f"foretrain.experiments.effective_theory.{module or function}:{function}"
    # The book: The Principles of Deep Learning Theory.
    return Experiment(name, title, f"Roberts & Yaida, {place}", address, resumable, seconds)


EXPERIMENTS = (
    _experiment(
        "taylor-expansion",
        "The Taylor series of trained networks around their initialisation, order by order in 1/n",
        "chapter 0 and (∞.4)",
        35,
    ),
    _experiment(
        "nearly-gaussian",
        "Nearly-Gaussian laws: correlators from couplings, and where first order breaks down",
        "(1.73)-(1.83)",
        13,
    ),
    _experiment("parameter-count", "Parameter count of a multilayer perceptron", "figure 2.1 and (2.7)", 1),
    _experiment("activation-curves", "The common activation functions", "figure 2.2", 1),
    _experiment(
        "weight-laws",
        "Gaussian, uniform and truncated normal weights: what the law changes",
        "section 2.3 and chapter 3",
        30,
    ),
    _experiment(
        "metric-fluctuations",
        "Second layer of random networks against Gaussian expectations",
        "chapter 2 and section 4.2",
        7,
    ),
    _experiment(
        "deep-linear-vertex",
        "Deep linear four-point vertex against depth over width",
        "(3.28) and (3.56)",
        8,
        "deep_linear.vertex",
    ),
    _experiment(
        "deep-linear-scaling",
        "Deep linear moments at fixed depth over width, growing width",
        "section 3.4, (3.55)",
        7,
        "deep_linear.scaling",
    ),
    _experiment(
        "log-variance",
        "Log-normal law of the deep linear output variance",
        "section 3.4, from (3.47) and (3.55)",
        6,
        "deep_linear.log_variance",
    ),
    _experiment(
        "layer-statistics",
        "Kernel, four-point vertex and next-to-leading metric of random networks",
        "chapter 4",
        25,
    ),
    _experiment(
        "neuron-observables",
        "Functions of one, two and several neurons of random networks to order 1/n",
        "section 4.3, (4.61), (4.64) and (4.102)",
        25,
    ),
    _experiment(
        "critical-lines",
        "Critical lines of tanh and the ratio of its susceptibilities",
        "figure 5.1",
        2,
        "critical_curves",
    ),
    _experiment(
        "ratio-without-criticality",
        "Sigmoid and softplus cannot be critical",
        "figure 5.2",
        2,
        "critical_curves",
    ),
    _experiment(
        "ratio-half-stable",
        "SWISH and GELU are critical at a kernel above zero",
        "figure 5.3",
        3,
        "critical_curves",
    ),
    _experiment(
        "depth-laws",
        "Kernel, fluctuations and finite-width shift against depth, class by class",
        "sections 5.3 and 5.4",
        5,
    ),
    _experiment("angle-flow", "The angle between two signals falls as 3 / (rho l)", "section 5.5", 9),
    _experiment(
        "model-evidence",
        "Evidence of deep networks against their initialisation, and noise on targets",
        "sections 6.2 and 6.3",
        15,
    ),
    _experiment(
        "hebbian-association",
        "Neurons that fire together: one neuron, given another",
        "section 6.4.1, (6.78)",
        30,
    ),
    _experiment(
        "finite-width-posterior",
        "Posterior, evidence and hidden layers at order 1/n against exact finite-width posteriors",
        "section 6.4",
        100,
        resumable=True,
    ),
    _experiment(
        "gradient-step",
        "One step of descent of real networks against the tangent kernel and its differentials",
        "(7.14), (7.20), (11.9)",
        45,
    ),
    _experiment(
        "ntk-statistics",
        "Mean, shift and fluctuations of the tangent kernel of random networks, and their depth laws",
        "chapters 8 and 9",
        65,
    ),
    _experiment(
        "exploding-gradients",
        "Exploding and vanishing gradients, and shares of layers in the tangent kernel",
        "section 9.4, (9.28) and (9.93)",
        30,
    ),
    _experiment(
        "learning-rate-scaling",
        "Learning rates by the equivalence principle against uniform ones",
        "section 9.4",
        45,
    ),
    _experiment(
        "hidden-updates",
        "How much one step of descent moves the last hidden layer",
        "section 10.1, (10.11) and (10.12)",
        25,
    ),
    _experiment(
        "algorithm-independence",
        "Every algorithm ends at the same function, and the last layer alone at the posterior",
        "section 10.2",
        55,
    ),
    _experiment("nearby-inputs", "Predictions near one training input, against depth", "section 10.3.1", 40),
    _experiment("interpolation", "Between and beyond two training inputs", "section 10.3.2", 30),
    _experiment(
        "trained-ensembles",
        "Mean and covariance of trained networks of five widths, on a function and on digits",
        "(10.40) and (10.41)",
        335,
        resumable=True,
    ),
    _experiment(
        "dntk-statistics",
        "Differentials of the tangent kernel of random networks, and their growth with depth",
        "sections 11.2, 11.3 and ∞.1",
        45,
    ),
    _experiment("quadratic-models", "Quadratic models: closed form against training", "(11.105)-(11.142)", 5),
    _experiment(
        "effective-kernel",
        "Tangent kernel after training, predicted at initialisation",
        "(11.138), (11.146)",
        85,
        resumable=True,
    ),
    _experiment(
        "finite-width-training",
        "What finite width does to trained networks, times n, by three algorithms",
        "chapter ∞",
        330,
        resumable=True,
    ),
    _experiment(
        "six-point-vertex", "The six-point vertex of random networks against its recursion", "epilogue", 40
    ),
    _experiment(
        "mutual-information",
        "Information between neurons: truncated series, exact mixture, random networks",
        "appendix A, (A.66)-(A.75)",
        20,
    ),
    _experiment(
        "residual-fluctuations",
        "Fluctuations of residual networks against the skip coupling",
        "appendix B",
        35,
    ),
)
