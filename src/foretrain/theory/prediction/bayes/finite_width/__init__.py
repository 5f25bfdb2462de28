"""Bayesian learning at finite width (section 6.4): the order 1/n, and the posterior without an expansion.

Functions are those of :mod:`foretrain.theory.prediction.bayes`. vertex.py and shifts.py have the four-point vertex on
chosen pairs, and what it does to a posterior.
"""
