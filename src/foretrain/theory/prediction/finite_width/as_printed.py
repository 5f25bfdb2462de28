"""The mean prediction with three formulas as they are printed, which are wrong: for comparison only.

(∞.162) has the opposite sign; (∞.163) has 2 Z_B where the two orders of its indices must be added, which differ for
unequal eigenvalues; (∞.165) has the index orders of Z_IIB in front of T and U interchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foretrain.theory.prediction.finite_width.covariance import dntk_of_the_book
from foretrain.theory.prediction.finite_width.mean import bracket, errors_of
from foretrain.theory.prediction.finite_width.plan import plan_of
from foretrain.theory.prediction.finite_width.projectors import Algorithm
from foretrain.theory.prediction.finite_width.result import labelled_terms
from foretrain.theory.prediction.finite_width.training import FiniteWidth
from foretrain.theory.prediction.finite_width.weights import (
    dntk_weights,
    second_differential_weights,
    variance_weights,
)
from foretrain.theory.prediction.result import labelled_tests

if TYPE_CHECKING:
    import xarray as xr


def terms_as_printed(
    ensemble: FiniteWidth, algorithm: Algorithm = "gradient_descent", eta: float | None = None
) -> dict[str, xr.DataArray]:
    """The terms at the end of training, with their 1/n, where ntk_variance, dntk and ddntk_2 are as printed."""
    store = ensemble.store
    plan = plan_of(algorithm, eta, None, store.modes.values)
    errors, course = errors_of(store, ensemble.targets), plan.course()
    Z = course.projectors
    first, second = second_differential_weights(Z.IA, Z.IB, Z.IIA, Z.IIB, errors.cubic())
    second["T", 0], second["U", 0] = second["U", 0], second["T", 0]
    weights = {
        "ntk_variance": variance_weights(-course.variance, errors),
        "dntk": dntk_weights(Z.A, 2 * Z.B, errors),
        "ddntk_1": first,
        "ddntk_2": second,
    }
    return labelled_terms({name: bracket(store, part) / store.width for name, part in weights.items()})


def covariance_part_as_printed(
    ensemble: FiniteWidth, algorithm: Algorithm = "gradient_descent", eta: float | None = None
) -> xr.DataArray:
    """The sum (∞.167) letter by letter, with its 1/n, for the first output: no [..] on the tests, not symmetrised."""
    store = ensemble.store
    plan = plan_of(algorithm, eta, None, store.modes.values)
    raw = dntk_of_the_book(store, ensemble.targets, plan)
    tests = raw[len(store.train) :, len(store.train) :, 0, 0]
    meaning = (
        "what (∞.167) adds to the covariance of the first output, without projection off the training outputs"
    )
    return labelled_tests("covariance_part", tests / store.width, meaning)
