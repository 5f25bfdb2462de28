"""The closed form beside real training at several ε: the error must fall as ε², by 4 for every halving."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.theory.prediction.nearly_kernel.algorithms import ALGORITHMS
from foretrain.theory.prediction.nearly_kernel.models import Function, QuadraticModel
from foretrain.theory.prediction.nearly_kernel.solution import solve
from foretrain.theory.prediction.nearly_kernel.training import train

if TYPE_CHECKING:
    import xarray


def order_of_error(
    features: Function,
    meta_features: Function,
    x: Any,
    y: Any,
    x_test: Any,
    *,
    epsilons: Sequence[float] = (0.04, 0.02, 0.01),
    algorithms: Sequence[str] = ALGORITHMS,
    eta: float | None = None,
) -> xarray.Dataset:
    """Formula and training for each algorithm and ε.

    By (algorithm, epsilon): ``error`` and ``kernel_error``, the largest differences of predictions and effective
    kernels on the tests; ``correction`` and ``kernel_correction``, how much the formula adds to the linear model;
    ``expansion_parameter``. By algorithm: ``order`` and ``kernel_order``, the slope of log error against log ε.
    """
    import xarray

    sizes = np.asarray(epsilons, dtype=float)
    if sizes.ndim != 1 or len(sizes) < 2 or not (sizes > 0).all() or len(set(sizes)) < len(sizes):
        raise InputError(f"epsilons are {epsilons}: give at least two different positive numbers.")
    names = ("error", "correction", "kernel_error", "kernel_correction", "expansion_parameter")
    found = np.empty((len(names), len(algorithms), len(sizes)))
    jobs = [(row, column) for row in range(len(algorithms)) for column in range(len(sizes))]
    for row, column in track(jobs, "formula against training"):
        model = QuadraticModel.from_features(features, meta_features, float(sizes[column]))
        formula = solve(model, x, y, algorithms[row], eta)
        trained = train(model, x, y, algorithms[row], eta)
        prediction, kernel = formula.predict(x_test), formula.effective_kernel(x_test)
        found[:, row, column] = (
            np.abs(trained.predict(x_test) - prediction).max(),
            np.abs(prediction - formula.predict_linear(x_test)).max(),
            np.abs(trained.effective_kernel(x_test) - kernel).max(),
            np.abs(kernel - model.kernel(x_test, x_test)).max(),
            formula.expansion_parameter,
        )
    dims = ("algorithm", "epsilon")
    data = xarray.Dataset(
        {name: (dims, values) for name, values in zip(names, found)},
        coords={"algorithm": list(algorithms), "epsilon": sizes},
    )
    for name in ("error", "kernel_error"):
        slopes = np.polyfit(np.log(sizes), np.log(np.maximum(data[name].values.T, 1e-300)), 1)[0]
        data[name.replace("error", "order")] = ("algorithm", slopes)
    return data
