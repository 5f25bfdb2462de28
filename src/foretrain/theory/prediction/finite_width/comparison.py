"""Several ways to train the same networks, side by side.

Three formulas are wrong as they are printed: (∞.162) has the opposite sign; (∞.163) has 2 Z_B where the two orders
of its indices must be added, which differ for unequal eigenvalues; (∞.165) has the index orders of Z_IIB in front
of T and U interchanged. ``terms_as_printed`` keeps them for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import labelled
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.prediction.algorithms import NAMES, finite_algorithm
from foretrain.theory.prediction.bayes import finite_bayes_prediction
from foretrain.theory.prediction.bayes.posterior import bayes_equivalent_rates
from foretrain.theory.prediction.finite_width.changes import dntk_of_the_book
from foretrain.theory.prediction.finite_width.mean import (
    bracket,
    dntk_weights,
    errors_of,
    second_differential_weights,
    variance_weights,
)
from foretrain.theory.prediction.finite_width.training import FiniteWidth, labelled_terms
from foretrain.theory.prediction.predicted_outputs import labelled_tests

if TYPE_CHECKING:
    import xarray as xr

_USUAL = {name: name for name in NAMES}


def compare_algorithms(ensemble: FiniteWidth, algorithms: Mapping[str, Any] = _USUAL) -> xr.Dataset:
    """Mean and terms (algorithm, test, output) of each algorithm, beside infinite width.

    ``algorithms`` gives a label to every algorithm, a name or a value such as ``Descent(eta)``.

    Examples
    --------
    >>> import foretrain as ft
    >>> from foretrain.theory.prediction.algorithms import Descent
    >>> mlp = ft.MLP("sin", depth=2, width=100, C_b=0.1, C_W=1.3, lambda_b=0.5)
    >>> ensemble = FiniteWidth.of(mlp, [[-0.1, -0.7], [2.1, 0.25]], [-0.3, 1.6], [[-1.2, -0.95]])
    >>> found = compare_algorithms(ensemble, {"slow": Descent(0.01), "flow": "flow"})
    >>> found["ddntk_2"].squeeze().values.round(4)
    array([0.0069, 0.007 ])
    """
    import xarray as xr

    if not algorithms:
        raise InputError("algorithms is empty: name at least one, such as {'flow': 'flow'}.")
    rows = []
    for algorithm in algorithms.values():
        found = ensemble.predict(algorithm)
        rows.append(xr.Dataset({"mean": found.mean, "infinite_mean": found.infinite_mean, **found.terms}))
    labels = xr.DataArray(list(algorithms), dims="algorithm", name="algorithm")
    return xr.concat(rows, labels)


def descent_and_bayes(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    algorithm: Any = "gradient_descent",
) -> xr.Dataset:
    """Means (learner, test, output) of gradient descent and exact inference, which part at order 1/n (∞.173).

    ``all_layers`` are trained by the ``algorithm`` at the network's rates, to its end; ``last_layer`` alone at rates
    at which infinite networks answer like the posterior; ``bayes`` is the posterior mean to order 1/n (6.88).
    """
    last = bayes_equivalent_rates(mlp)
    data = (X_train, Y_train, X_test)
    found: dict[str, Any] = {
        "all_layers": FiniteWidth.of(mlp, *data, spread="none").predict(algorithm),
        "last_layer": FiniteWidth.of(last, *data, spread="none").predict("flow"),
        "bayes": finite_bayes_prediction(mlp, *data, spread="none"),
    }
    dims = ("learner", "test", "output")
    means = np.stack([part.mean.values for part in found.values()])
    infinite = np.stack([part.infinite_mean.values for part in found.values()])
    return labelled(
        {
            "mean": (dims, means, "mean output to order 1/n"),
            "infinite_mean": (dims, infinite, "mean output at infinite width"),
        },
        {"network": repr(mlp)},
        learner=list(found),
    )


def terms_as_printed(ensemble: FiniteWidth, algorithm: Any = "gradient_descent") -> dict[str, xr.DataArray]:
    """The terms at the end of training, with their 1/n, where ntk_variance, dntk and ddntk_2 are as printed."""
    store = ensemble.store
    plan = finite_algorithm(algorithm).plan(store.modes.values)
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


def covariance_part_as_printed(ensemble: FiniteWidth, algorithm: Any = "gradient_descent") -> xr.DataArray:
    """The sum (∞.167) letter by letter, with its 1/n, for the first output: no [..] on the tests, not symmetrised."""
    store = ensemble.store
    plan = finite_algorithm(algorithm).plan(store.modes.values)
    raw = dntk_of_the_book(store, ensemble.targets, plan)
    tests = raw[len(store.train) :, len(store.train) :, 0, 0]
    meaning = (
        "what (∞.167) adds to the covariance of the first output, without projection off the training outputs"
    )
    return labelled_tests("covariance_part", tests / store.width, meaning)
