"""Bayesian learning at finite width (section 6.4): the order 1/n, and the posterior without an expansion.

``finite_bayes_prediction``  posterior mean and covariance to order 1/n, with the wiring between outputs
``finite_log_evidence``      the evidence to order 1/n; ``finite_bayes_factor``, ``finite_evidence_scan``
``representation_shift``     how every hidden layer moves when targets are observed
``hebbian_variance``         the variance of a neuron, given others of its layer
``book_posterior_mean``      (6.88) letter by letter, for comparison
``importance_posterior``     the exact posterior by weighted networks, with standard errors

vertex.py and shifts.py have the four-point vertex on chosen pairs, and what it does to a posterior.
"""

from foretrain.theory.prediction.bayes.finite_width.importance import (
    ImportancePosterior,
    importance_posterior,
)
from foretrain.theory.prediction.bayes.finite_width.posterior import (
    FiniteBayesPrediction,
    FiniteEvidence,
    finite_bayes_factor,
    finite_bayes_prediction,
    finite_evidence_scan,
    finite_log_evidence,
)
from foretrain.theory.prediction.bayes.finite_width.representation import (
    book_posterior_mean,
    hebbian_variance,
    representation_shift,
)

__all__ = [
    "FiniteBayesPrediction",
    "FiniteEvidence",
    "ImportancePosterior",
    "book_posterior_mean",
    "finite_bayes_factor",
    "finite_bayes_prediction",
    "finite_evidence_scan",
    "finite_log_evidence",
    "hebbian_variance",
    "importance_posterior",
    "representation_shift",
]
