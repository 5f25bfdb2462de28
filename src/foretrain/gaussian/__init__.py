"""Expectations under Gaussian and nearly-Gaussian laws.

``expectation``          any product of activations, derivatives and polynomials at 1 to 4 inputs
``gram``                 products of two, for all pairs of N inputs at once
``cross_gram``           the same between two sets of inputs
``expectations_at``      products of up to four, on chosen index sets of N inputs
``products_at``          several such products at once
``expectation_of``       any function of all inputs
``moments``              of one activation, the usual ones
``covariance_gradient``  derivatives with respect to the covariance (Price)
``factor``, ``z``        build what stands at one input
``wick``, ``cumulants``, ``action``, ``orthant``  moments, cumulants, quartic actions, half-space moments
"""

from foretrain.gaussian import action, cumulants, orthant, wick
from foretrain.gaussian.expectation import (
    Expectation,
    covariance_gradient,
    expectation,
    expectations_at,
    moments,
    products_at,
)
from foretrain.gaussian.factors import Factor, factor, one, z
from foretrain.gaussian.grams import cross_gram, gram, second_moments
from foretrain.gaussian.observables import expectation_of

__all__ = [
    "Expectation",
    "Factor",
    "action",
    "covariance_gradient",
    "cross_gram",
    "cumulants",
    "expectation",
    "expectation_of",
    "expectations_at",
    "factor",
    "gram",
    "moments",
    "one",
    "orthant",
    "products_at",
    "second_moments",
    "wick",
    "z",
]
