"""Kernel regression with a tangent kernel: where gradient flow of the linearised model ends, or is at some time.

With the loss half the sum of squares, plus ridge/2 times the squared change of the parameters (in units of their
rates), the outputs go from f_0 to f_0 + K a with a = (1 - exp(-(K + ridge) t)) (K + ridge)^-1 (y - f_0).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from foretrain.empirical.any_kernel import AnyKernel
from foretrain.empirical.kernel_analysis.arguments import (
    Array,
    Kernel,
    as_kernel,
    as_outputs,
    as_targets,
    positive,
)
from foretrain.empirical.kernel_analysis.matrix_functions import (
    conjugate_gradients,
    lanczos,
    nystrom_preconditioner,
)
from foretrain.empirical.tangent_kernel.written_kernel import TangentKernel
from foretrain.support.answers import Answer, Result, Table, labelled, picked
from foretrain.support.arguments import not_negative
from foretrain.support.errors import InputError
from foretrain.support.memory import available_bytes
from foretrain.support.user_warnings import warn_user

_TOLERANCE = 1e3  # in units of the products' rounding, at most 1e-10 for double precision
_STORED_TOLERANCE = 1e-8  # of stored kernels, whose products are in double precision
_SHOWN = 8  # samples and outputs of a table
_PRECONDITIONED = 512  # leading modes of a stored kernel, which conjugate gradients then need not find
_PRECONDITIONER_SHARE = 0.1  # of the available memory


@dataclass(frozen=True, repr=False, eq=False)
class KernelRegression(Result):
    """``predictions`` (samples, outputs) for the test samples, or for the training samples if there are none.

    ``coefficients`` a: predictions are initial outputs + K a. ``residual``: |y - f| / |y - f_0| on the training
    samples. ``rank``: modes in use, where they were counted.
    """

    predictions: Array
    train_predictions: Array
    coefficients: Array
    residual: float
    method: str
    rank: int | None
    iterations: int | None
    tolerance: float | None
    ridge: float
    time: float | None
    one_hot: bool
    test_error: float | None = None  # of the predictions, where what they should be is known: see ``tested``

    def tested(self, y: Any, outputs: Sequence[int] | None = None) -> KernelRegression:
        """The same with its ``test_error`` on targets (samples, outputs) or labels: see ``answer`` for its kind.

        ``outputs`` are the numbers of the model's outputs that the kernel has, if not all.
        """
        if self.one_hot:
            best = np.argmax(self.predictions, axis=1)
            wrong = (best if outputs is None else np.take(outputs, best)) != np.asarray(y)
            return replace(self, test_error=float(np.mean(wrong)))
        misfit = self.predictions - np.reshape(y, self.predictions.shape)
        return replace(self, test_error=float(np.mean(misfit**2)))

    def answer(self) -> Answer:
        """How much of the targets is left, and the first predictions."""
        used = "" if self.rank is None else f", rank {self.rank} of {self.coefficients.size}"
        if self.iterations is not None:
            used = f", {self.iterations} products to {self.tolerance:.1g}"
        when = "" if self.time is None else f", gradient flow at time {self.time:g}"
        statement = (
            f"Kernel regression with ridge {self.ridge:g} ({self.method}{used}){when} leaves {self.residual:.3g} of "
            "the targets."
        )
        if self.test_error is not None:
            kind = "share of wrong labels" if self.one_hot else "mean squared error"
            statement += f" On the test samples: {kind} {self.test_error:.4g}."
        data = labelled(
            {
                "prediction": ("input output", self.predictions),
                "train_prediction": ("train_input output", self.train_predictions),
                "coefficient": ("train_input output", self.coefficients),
            },
            picked(self, "method ridge residual one_hot")
            | {"time": np.inf if self.time is None else self.time},
        )
        record = picked(self, "ridge residual method iterations tolerance one_hot test_error")
        names = {"iterations": "products", "one_hot": "labels"}
        record = {names.get(name, name): value for name, value in record.items()}
        columns = {f"output {place}": column for place, column in enumerate(self.predictions.T[:_SHOWN])}
        table = Table.of({"sample": range(len(self.predictions)), **columns}, "Predictions")
        return Answer(statement, [table.thinned(_SHOWN)], data, record)


def regression(
    kernel: Kernel,
    y: Any,
    ridge: float = 0.0,
    test: Kernel | None = None,
    initial_outputs: Any = None,
    *,
    time: float | None = None,
    tolerance: float | None = None,
    iterations: int = 1000,
) -> KernelRegression:
    """Predictions f_0(test) + K(test, x) (K(x, x) + ridge)^-1 (y - f_0(x)), or those at a finite ``time``.

    Parameters
    ----------
    kernel
        ``ntk(model, x)``, ``ntk_operator(model, x)`` or a stored kernel. A trace kernel stands for the same kernel in
        each of its C outputs, and is divided by C.
    y
        (N,) for one output, (N, C), or whole-number labels (N,), which become one-hot vectors.
    ridge
        Added to all eigenvalues. Without it, a kernel that is singular in its precision is inverted on its range,
        which is what gradient flow does; ``.rank`` tells.
    test
        ``ntk(model, x_test, x)``, the operator or a stored kernel; without it, predictions are those of x.
    initial_outputs
        f_0 of x, or the pair (f_0 of x, f_0 of x_test) if there is a test; zero by default, which is a network from
        which its outputs at the start are subtracted.
    time
        Of gradient flow on half the sum of squares, in units in which the learning rate is 1; None for the end.
    tolerance, iterations
        For operators and stored kernels: relative residual of conjugate gradients (or of the flow's equation and
        change of Lanczos' result, if there is a time; 1e-8 by default for stored kernels), and the most products. A
        stored kernel is read
        ``.iterations`` + 1 times: conjugate gradients begin with one product with up to 512 columns, which rids them
        of the leading modes.

    Examples
    --------
    >>> import numpy as np
    >>> regression(np.diag([1.0, 2.0]), [1.0, 1.0], time=1.0).predictions.ravel().round(4).tolist()
    [0.6321, 0.8647]
    """
    ridge = not_negative("ridge", ridge)
    if time is not None and not (np.isfinite(time) and time >= 0):
        raise InputError(f"`time` is {time}, but it must be finite and not negative, or None for the end.")
    kernel, test = as_kernel(kernel), None if test is None else as_kernel(test)
    targets = as_targets(y, kernel)
    columns = targets.values.shape[1]
    if test is not None and (
        (test.samples[1], test.width, test.traced) != (kernel.samples[0], kernel.width, kernel.traced)
    ):
        rows, others = test.samples
        raise InputError(
            f"test is a kernel of {rows} x {others} samples with {test.width} outputs, but its columns must be the "
            f"{kernel.samples[0]} training samples with {kernel.width} outputs, traced like kernel: pass "
            "ntk(model, x_test, x)."
        )
    start, test_start = _initial(initial_outputs, kernel, test, columns)
    wanted = (targets.values - start).reshape(kernel.codomain.size, -1)
    job = _Job(ridge, time, tolerance, iterations)
    kernel.require_symmetric("regression")
    whole = kernel.matrix_in_memory("a regression")
    if whole is None:
        apply = _products(kernel)
        coefficients, method, rank, count, reached = _solve_by_products(apply, wanted, job, kernel)
    else:
        matrix = whole / _equal_outputs(kernel)
        apply = matrix.__matmul__
        coefficients, method, rank, count, reached = _solve(matrix, wanted, job, kernel)
    change = apply(coefficients)
    predictions = start + change.reshape(start.shape)
    if test is not None:
        predictions = test_start + _products(test)(coefficients).reshape(test_start.shape)
    size = float(np.linalg.norm(wanted))
    return KernelRegression(
        predictions=predictions,
        train_predictions=start + change.reshape(start.shape),
        coefficients=coefficients.reshape(start.shape),
        residual=float(np.linalg.norm(wanted - change)) / size if size > 0 else 0.0,
        method=method,
        rank=rank,
        iterations=count,
        tolerance=reached,
        ridge=ridge,
        time=time,
        one_hot=targets.one_hot,
    )


@dataclass(frozen=True)
class _Job:
    ridge: float
    time: float | None
    tolerance: float | None
    iterations: int

    def response(self, eigenvalues: Array, smallest: float) -> Array:
        """(1 - exp(-(k + ridge) t)) / (k + ridge); zero where the eigenvalue cannot be told from zero."""
        total = eigenvalues + self.ridge
        counts = total > smallest
        safe = np.where(counts, total, 1.0)
        moved = np.ones_like(safe) if self.time is None else -np.expm1(-safe * self.time)
        return np.where(counts, moved / safe, 0.0)


# Coefficients, method, rank, iterations and tolerance, the latter three where they are known.
_Solution: TypeAlias = tuple[Array, str, int | None, int | None, float | None]


def _solve(matrix: Array, wanted: Array, job: _Job, kernel: AnyKernel) -> _Solution:
    """By Cholesky where the end is wanted and the matrix is regular in its precision, else by eigenmodes."""
    from scipy.linalg import LinAlgError, cho_solve, cholesky, eigh
    from scipy.linalg.lapack import dpocon

    if job.time is None:
        shifted = matrix + job.ridge * np.eye(len(matrix))
        with suppress(LinAlgError):
            factor = np.asarray(cholesky(shifted, lower=True))
            reciprocal_condition, _ = dpocon(factor, float(np.abs(shifted).sum(axis=0).max()), uplo="L")
            if reciprocal_condition > kernel.resolves(1.0):
                return np.asarray(cho_solve((factor, True), wanted)), "Cholesky", len(factor), None, None
    values, modes = eigh(matrix)
    smallest = kernel.resolves(float(np.abs(values).max()) + job.ridge)
    response = job.response(positive(values, kernel), smallest)
    coefficients = modes @ (response[:, None] * (modes.T @ wanted))
    method = "pseudo-inverse of its eigenmodes" if job.time is None else "eigenmodes"
    return coefficients, method, int(np.sum(values + job.ridge > smallest)), None, None


def _solve_by_products(
    apply: Callable[[Array], Array], wanted: Array, job: _Job, kernel: AnyKernel
) -> _Solution:
    size, stored = kernel.size, kernel.streamed
    tolerance = job.tolerance
    if tolerance is None:
        tolerance = _STORED_TOLERANCE if stored else min(_TOLERANCE * kernel.precision, 0.1)
    if not 0 < tolerance < 1:
        raise InputError(f"`tolerance` is {tolerance}, but it must be between 0 and 1.")
    if job.time is None:
        method = "conjugate gradients"
        fitting = int(_PRECONDITIONER_SHARE * available_bytes() / (4 * 8.0 * size))
        rank, precondition = min(_PRECONDITIONED, size // 4, fitting), None
        if stored and rank >= 1:  # one reading with many columns saves many with one
            precondition = nystrom_preconditioner(apply, size, rank, job.ridge, kernel.precision, seed=0)
        found, count, error = conjugate_gradients(
            lambda v: apply(v) + job.ridge * v, wanted, tolerance, job.iterations, precondition
        )
        count += stored
    else:
        method = "Lanczos"
        found, count, error = lanczos(
            apply,
            wanted,
            lambda values: job.response(values, kernel.resolves(float(values.max()) + job.ridge)),
            tolerance,
            job.iterations,
        )
    if error > 10 * tolerance:
        warn_user(
            f"{method} reached {error:.2g} instead of the tolerance {tolerance:.2g} in {count} products: the kernel "
            "may be nearly singular; pass `ridge=` or `time=`, or more `iterations=`.",
        )
    return found, method, None, count, tolerance


def _products(kernel: AnyKernel) -> Callable[[Array], Array]:
    """Products with columns; a kernel in memory is brought to double precision once."""
    scale = _equal_outputs(kernel)
    multiply = kernel.matrix().__matmul__ if isinstance(kernel, TangentKernel) else kernel.multiply
    return multiply if scale == 1 else lambda columns: multiply(columns) / scale


def _equal_outputs(kernel: AnyKernel) -> int:
    """How many outputs a trace kernel is the sum of."""
    return len(kernel.outputs) if kernel.traced else 1


def _initial(given: Any, train: AnyKernel, test: AnyKernel | None, columns: int) -> tuple[Array, Array]:
    """Outputs before training on both sides; zero where nothing is given."""
    shapes = [(kernel.samples[0], columns) for kernel in (train, test) if kernel is not None]
    if given is None:
        parts = [np.zeros(shape) for shape in shapes]
    elif test is None:
        parts = [as_outputs(given, shapes[0], "initial_outputs")]
    elif isinstance(given, tuple | list) and len(given) == 2:
        parts = [
            as_outputs(part, shape, f"initial_outputs of {where}")
            for part, shape, where in zip(given, shapes, ("x", "the test samples"))
        ]
    else:
        raise InputError("with `test=`, initial_outputs must be the pair (outputs of x, outputs of x_test).")
    return parts[0], parts[-1]
