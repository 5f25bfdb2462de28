"""Kernels of all kinds as one thing: a float64 matrix over (sample, output), or products with columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.empirical.kernel_operator.operator import NTKOperator, as_tensor
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.empirical.tangent_kernel import TangentKernel
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory

Array: TypeAlias = NDArray[np.float64]
Written: TypeAlias = TangentKernel | Tensor | NDArray[Any]
ByProducts: TypeAlias = NTKOperator | StoredKernel  # known by products with columns, never as a whole
Kernel: TypeAlias = Written | ByProducts


@dataclass(frozen=True, eq=False)
class MatrixLayout:
    """What the rows and columns of a kernel stand for: samples, each with ``width`` outputs (1 for a trace)."""

    samples: tuple[int, int]
    width: int
    outputs: tuple[int, ...] | None  # numbers of the model's outputs, where they are known
    trace: bool
    precision: float  # relative rounding of the numbers that the kernel came in

    @property
    def size(self) -> int:
        """Rows of the matrix."""
        return self.samples[0] * self.width

    def resolves(self, largest: float) -> float:
        """Eigenvalues below this are rounding."""
        return self.size * self.precision * largest


def positive(eigenvalues: Array, layout: MatrixLayout) -> Array:
    """Eigenvalues of a kernel without the negative ones that are rounding; others are refused."""
    lowest, largest = float(eigenvalues.min()), float(np.abs(eigenvalues).max())
    if lowest < -layout.resolves(largest):
        raise InputError(
            f"the kernel has the negative eigenvalue {lowest:.3g}, which no tangent kernel has: check its origin."
        )
    return np.maximum(eigenvalues, 0.0)


@dataclass(frozen=True, eq=False)
class KernelMatrix:
    """The matrix (N * width, N2 * width) with its layout."""

    matrix: Array
    layout: MatrixLayout


def layout_of(kernel: Kernel) -> MatrixLayout:
    """Read off a kernel what it is; arrays are (N, N2) or (N, N2, C, C)."""
    if isinstance(kernel, StoredKernel):
        precision = float(np.finfo(kernel.dtype).eps)
        return MatrixLayout(kernel.samples, kernel.width, kernel.outputs, kernel.trace, precision)
    if isinstance(kernel, NTKOperator):
        return MatrixLayout(
            kernel.samples, len(kernel.outputs), kernel.outputs, False, _precision(kernel.dtype)
        )
    if isinstance(kernel, TangentKernel):
        values = kernel.values if kernel.by is None else kernel.values[0]
        width = 1 if kernel.trace else len(kernel.outputs)
        samples = (values.shape[0], values.shape[1])
        return MatrixLayout(samples, width, kernel.outputs, kernel.trace, _precision(values.dtype))
    array = as_tensor(kernel)
    shape = tuple(array.shape)
    if len(shape) not in (2, 4) or shape[2:3] != shape[3:] or 0 in shape or not array.is_floating_point():
        raise InputError(
            f"the kernel is an array of shape {shape} and {array.dtype}, but it must hold real numbers of shape "
            "(N, N2) or (N, N2, C, C): pass what ntk(...) or ntk_operator(...) gives."
        )
    width = shape[2] if len(shape) == 4 else 1
    return MatrixLayout((shape[0], shape[1]), width, None, len(shape) == 2, _precision(array.dtype))


def _precision(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).eps)


def as_matrix(kernel: Written) -> KernelMatrix:
    """In float64, contributions of layers summed."""
    layout = layout_of(kernel)
    rows, columns = (count * layout.width for count in layout.samples)
    require_memory(
        2 * 8.0 * rows * columns,
        f"a kernel of {rows} x {columns} entries in double precision",
        "use `ntk_operator(...), ntk(..., store=)|-o OUT.zarr`, or fewer samples",
    )
    values = kernel.total() if isinstance(kernel, TangentKernel) else as_tensor(kernel)
    values = values.detach().to(torch.float64).cpu()
    if values.ndim == 4:
        values = values.permute(0, 2, 1, 3)
    matrix = values.reshape(rows, columns).numpy()
    if not np.isfinite(matrix).all():
        raise InputError("the kernel has entries that are not finite: mend the model or its inputs first.")
    return KernelMatrix(matrix, layout)


def products_of(kernel: ByProducts) -> Callable[[Array], Array]:
    """K V for columns (size, many)."""
    if isinstance(kernel, StoredKernel):
        return kernel.matmat
    apply: Callable[[Array], Array] = kernel.linear_operator().matmat
    return apply


@dataclass(frozen=True, eq=False)
class ExactProducts:
    """A symmetric kernel by its products with columns, with exact trace and sum of squares."""

    apply: Callable[[Array], Array]
    layout: MatrixLayout
    trace: float
    squares: float


def exact_products(kernel: Written | StoredKernel, what: str) -> ExactProducts:
    """Of kernels on disk or in memory."""
    if isinstance(kernel, StoredKernel):
        kernel.require_symmetric(what)
        return ExactProducts(kernel.matmat, layout_of(kernel), *kernel.norms)
    found = square(kernel, f"a {what}")
    matrix = found.matrix
    return ExactProducts(
        matrix.__matmul__, found.layout, float(np.trace(matrix)), float(np.vdot(matrix, matrix))
    )


def square(kernel: Written, what: str) -> KernelMatrix:
    """A kernel of samples with themselves, exactly symmetric."""
    if isinstance(kernel, TangentKernel) and not kernel.symmetric:
        raise InputError(f"{what} needs the kernel of x with itself: leave `x2` out.")
    found = as_matrix(kernel)
    matrix = found.matrix
    tolerance = found.layout.precision**0.5 * float(np.abs(matrix).max())
    if matrix.shape[0] != matrix.shape[1] or float(np.abs(matrix - matrix.T).max()) > tolerance:
        raise InputError(
            f"{what} needs a symmetric kernel, of x with itself, but this one is not: its shape is "
            f"{found.layout.samples[0]} x {found.layout.samples[1]} samples; leave `x2` out."
        )
    return KernelMatrix((matrix + matrix.T) / 2, found.layout)


def written_out(operator: NTKOperator) -> Tensor:
    """The kernel (N, N2, C, C) of an operator, for small ones."""
    rows, columns = operator.samples
    width = len(operator.outputs)
    return operator.dense().reshape(rows, width, columns, width).transpose(1, 2)
