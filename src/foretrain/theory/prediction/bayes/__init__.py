"""Bayesian learning (chapter 6).

At infinite width:

``bayes_prediction``        posterior mean and covariance of a network; ``condition`` for any kernel
``log_evidence``            how probable the targets are; ``compare_hypotheses``, ``bayes_factor``
``evidence_scan``           the evidence over C_b, C_W and depth, and its best point
``bayes_equivalent_rates``  learning rates at which gradient descent gives the posterior mean
``losses``                  likelihoods, and the penalties that make maximum likelihood maximum a posteriori
``regularised``             training with such penalties

At finite width, in ``finite_width``:

``finite_bayes_prediction``  mean, covariance and wiring of outputs to order 1/n; ``book_posterior_mean``
``finite_log_evidence``      to order 1/n; ``finite_bayes_factor``, ``finite_evidence_scan``
``representation_shift``     how hidden layers move; ``hebbian_variance`` of a neuron, given others
``importance_posterior``     exact, by weighted networks
"""

from foretrain.theory.prediction.bayes.evidence import (
    BestPoint,
    bayes_factor,
    best_kernel,
    best_point,
    compare_hypotheses,
    evidence_scan,
    log_evidence,
    log_evidence_of_kernel,
    two_input_log_evidence,
)
from foretrain.theory.prediction.bayes.finite_width import (
    FiniteBayesPrediction,
    FiniteEvidence,
    finite_bayes_factor,
    finite_bayes_prediction,
    finite_evidence_scan,
    finite_log_evidence,
)
from foretrain.theory.prediction.bayes.importance import (
    ImportancePosterior,
    importance_posterior,
)
from foretrain.theory.prediction.bayes.posterior import (
    BayesPrediction,
    Penalty,
    bayes_equivalent_rates,
    bayes_prediction,
    categorical_loss,
    condition,
    gaussian_loss,
    log_prior,
    negative_log_posterior,
    output_layer_estimates,
    penalty_response,
    prior_penalties,
    regularised_prediction,
    response_law,
)
from foretrain.theory.prediction.bayes.representation import (
    book_posterior_mean,
    hebbian_variance,
    representation_shift,
)

__all__ = [
    "BayesPrediction",
    "BestPoint",
    "FiniteBayesPrediction",
    "FiniteEvidence",
    "ImportancePosterior",
    "Penalty",
    "bayes_equivalent_rates",
    "bayes_factor",
    "bayes_prediction",
    "best_kernel",
    "best_point",
    "book_posterior_mean",
    "categorical_loss",
    "compare_hypotheses",
    "condition",
    "evidence_scan",
    "finite_bayes_factor",
    "finite_bayes_prediction",
    "finite_evidence_scan",
    "finite_log_evidence",
    "gaussian_loss",
    "hebbian_variance",
    "importance_posterior",
    "log_evidence",
    "log_evidence_of_kernel",
    "log_prior",
    "negative_log_posterior",
    "output_layer_estimates",
    "penalty_response",
    "prior_penalties",
    "regularised_prediction",
    "representation_shift",
    "response_law",
    "two_input_log_evidence",
]
