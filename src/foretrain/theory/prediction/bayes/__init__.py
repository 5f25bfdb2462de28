"""Bayesian learning at infinite width (chapter 6).

``bayes_prediction``        posterior mean and covariance of a network; ``condition`` for any kernel
``log_evidence``            how probable the targets are; ``compare_hypotheses``, ``bayes_factor``
``evidence_scan``           the evidence over C_b, C_W and depth, and its best point
``bayes_equivalent_rates``  learning rates at which gradient descent gives the posterior mean
``losses``                  likelihoods, and the penalties that make maximum likelihood maximum a posteriori
``regularised``             training with such penalties
``kernels``                 K and Theta of the output layer, block by block
"""

from foretrain.theory.prediction.bayes.equivalent_rates import bayes_equivalent_rates
from foretrain.theory.prediction.bayes.evidence import (
    bayes_factor,
    best_kernel,
    compare_hypotheses,
    log_evidence,
    log_evidence_of_kernel,
    two_input_log_evidence,
)
from foretrain.theory.prediction.bayes.losses import (
    Penalty,
    categorical_loss,
    gaussian_loss,
    log_prior,
    negative_log_posterior,
    prior_penalties,
)
from foretrain.theory.prediction.bayes.posterior import BayesPrediction, bayes_prediction, condition
from foretrain.theory.prediction.bayes.regularised import (
    output_layer_estimates,
    penalty_response,
    regularised_prediction,
    response_law,
)
from foretrain.theory.prediction.bayes.scan import BestPoint, best_point, evidence_scan

__all__ = [
    "BayesPrediction",
    "BestPoint",
    "Penalty",
    "bayes_equivalent_rates",
    "bayes_factor",
    "bayes_prediction",
    "best_kernel",
    "best_point",
    "categorical_loss",
    "compare_hypotheses",
    "condition",
    "evidence_scan",
    "gaussian_loss",
    "log_evidence",
    "log_evidence_of_kernel",
    "log_prior",
    "negative_log_posterior",
    "output_layer_estimates",
    "penalty_response",
    "prior_penalties",
    "regularised_prediction",
    "response_law",
    "two_input_log_evidence",
]
