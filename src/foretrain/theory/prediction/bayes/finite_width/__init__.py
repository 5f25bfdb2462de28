"""Bayesian learning at finite width (section 6.4): the order 1/n, and the posterior without an expansion.

``finite_bayes_prediction``  posterior mean and covariance to order 1/n, with the wiring between outputs
``finite_log_evidence``      the evidence to order 1/n; ``finite_bayes_factor``, ``finite_evidence_scan``
``representation_shift``     how every hidden layer moves when targets are observed
``hebbian_variance``         the variance of a neuron, given others of its layer
``book_posterior_mean``      (6.88) letter by letter, for comparison
``importance_posterior``     the exact posterior by weighted networks, with standard errors

vertex.py and shifts.py have the four-point vertex on chosen pairs, and what it does to a posterior.
"""
