"""The kernel with its labels and the routes it was found by, an array and an operator at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.empirical.any_kernel import WrittenKernel, is_array, kernel_parts, routes_taken
from foretrain.empirical.tangent_kernel.planning import Route
from foretrain.support.answers import Answer
from foretrain.support.errors import InputError
from foretrain.support.memory import human_bytes, require_memory

if TYPE_CHECKING:
    import xarray as xr


class TangentKernel(WrittenKernel):
    """``values``: (N, N2, C, C), or (N, N2) for the trace, with ``labels`` first if contributions are apart.

    ``np.asarray(kernel)`` gives an array; ``kernel.routes`` says which way each parameter took.
    """

    path = None  # on disk
    seconds = float("nan")  # of work, which only stores note

    def __init__(
        self,
        values: Tensor,
        traced: bool,
        outputs: tuple[int, ...],
        labels: tuple[str, ...] | None = None,
        by: str | None = None,
        routes: Mapping[str, Route] | None = None,
        symmetric: bool = True,
        working_bytes: float = 0.0,
    ) -> None:
        self.values, self.labels, self.by, self.working_bytes = values, labels, by, working_bytes
        self.routes = routes or {}
        rows, columns = values.shape[:2] if by is None else values.shape[1:3]
        kind: dict[str, Any] = {"dtype": values.dtype, "device": values.device, "best_block": 64}
        super().__init__((rows, columns), outputs, traced=traced, symmetric=symmetric, **kind)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.values.shape)

    @property
    def entry_type(self) -> str:
        """The name of the entries' dtype."""
        return str(self.values.dtype).removeprefix("torch.")

    @property
    def nbytes(self) -> int:
        """Of all entries."""
        return self.values.nbytes

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = self.values.detach().cpu().numpy()
        return np.array(array, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.values)

    def __mul__(self, factor: Any) -> Any:
        """In other units it is a kernel still; a negative one is an operator, and beside numpy's it is an array."""
        if is_array(factor) or not (isinstance(factor, int | float) and factor > 0):
            return super().__mul__(factor)
        return self._with_values(factor * self.values)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Any:
        if is_array(divisor) or not (isinstance(divisor, int | float) and divisor > 0):
            return super().__truediv__(divisor)
        return self._with_values(self.values / divisor)

    def __add__(self, other: Any) -> Any:
        """The sum of two kernels over the same samples and outputs is a kernel."""
        alike = isinstance(other, TangentKernel) and (self.dims, self.shape, self.outputs, self.labels) == (
            other.dims,
            other.shape,
            other.outputs,
            other.labels,
        )
        if not alike or self.symmetric != other.symmetric:
            return super().__add__(other)
        return self._with_values(self.values + other.values)

    def _with_values(self, values: Tensor) -> TangentKernel:
        rest = (self.traced, self.outputs, self.labels, self.by, self.routes, self.symmetric)
        return TangentKernel(values, *rest, working_bytes=self.working_bytes)

    def __getitem__(self, key: Any) -> Tensor:
        if isinstance(key, str):
            if self.labels is None or key not in self.labels:
                known = "none: ask for by='layer' or by='parameter'" if self.labels is None else self.labels
                raise KeyError(f"{key!r} is no label of this kernel; labels: {known}")
            return self.values[self.labels.index(key)]
        return self.values[key]

    def total(self) -> Tensor:
        """The kernel summed over layers or parameters."""
        return self.values if self.by is None else self.values.sum(0)

    def dense(self) -> Tensor:
        """The matrix (N*C, N2*C), or (N, N2) for a trace."""
        values = self.total().detach()
        values = values if self.traced else values.transpose(1, 2)
        return values.reshape(self.matrix_shape)

    def _apply(self, flat: Tensor) -> Tensor:
        return flat @ self.dense().T

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return flat @ self.dense()

    def matrix(self) -> NDArray[np.float64]:
        """The matrix in double precision, contributions summed."""
        rows, columns = self.matrix_shape
        require_memory(
            2 * 8.0 * rows * columns,
            f"a kernel of {rows} x {columns} entries in double precision",
            "use `ntk_operator(...), ntk(..., store=)|-o OUT.zarr`, or fewer samples",
        )
        matrix: NDArray[np.float64] = self.dense().to(torch.float64).cpu().numpy()
        if not np.isfinite(matrix).all():
            raise InputError(
                "the kernel has entries that are not finite: mend the model or its inputs first."
            )
        return matrix

    def matrix_in_memory(self, what: str = "an exact answer") -> NDArray[np.float64]:
        """The matrix of samples with themselves, exactly symmetric."""
        if not self.symmetric:
            raise InputError(f"{what} needs a symmetric kernel, of x with itself: leave `x2` out.")
        matrix = self.matrix()
        tolerance = self.precision**0.5 * float(np.abs(matrix).max())
        if float(np.abs(matrix - matrix.T).max()) > tolerance:
            raise InputError(
                f"{what} needs a symmetric kernel, of x with itself, but this one is not: its shape is "
                f"{self.samples[0]} x {self.samples[1]} samples; leave `x2` out."
            )
        return (matrix + matrix.T) / 2

    def exact_norms(self) -> tuple[float, float]:
        """Trace and sum of squares of the matrix."""
        matrix = self.matrix_in_memory("a trace")
        return float(np.trace(matrix)), float(np.vdot(matrix, matrix))

    def contribution_traces(self) -> dict[str, float]:
        """The trace of each contribution by its label."""
        diagonals = self.values.detach().double().diagonal(dim1=1, dim2=2)
        if not self.traced:
            diagonals = diagonals.diagonal(dim1=1, dim2=2)
        return dict(zip(self.labels or (), diagonals.flatten(1).sum(1).tolist(), strict=True))

    @property
    def layer_shares(self) -> dict[str, float]:
        """Each layer's share of the trace, where layers are apart."""
        return shares_of(self.contribution_traces()) if self.by == "layer" else {}

    def to_xarray(self) -> xr.DataArray:
        """A labelled array that can be saved."""
        import xarray as xr

        coordinates: dict[str, Any] = {} if self.by is None else {self.by: list(self.labels or ())}
        if not self.traced:
            coordinates |= {"output_1": list(self.outputs), "output_2": list(self.outputs)}
        routes = {name: str(route) for name, route in self.routes.items()}
        return xr.DataArray(
            np.asarray(self), dims=self.dims, coords=coordinates, name="ntk", attrs={"routes": str(routes)}
        )

    def answer(self) -> Answer:
        """Its sizes and the way it was found, and of a kernel that is not large its eigenvalues."""
        sizes = ", ".join(f"{name} {size}" for name, size in zip(self.dims, self.shape))
        statement = (
            f"TangentKernel({sizes}; {self.entry_type}; parameters: {routes_taken(self.routes)}; working memory "
            f"{human_bytes(self.working_bytes)})"
        )
        whole = self.total().detach().cpu()
        return Answer(statement, kernel_parts(self, whole, self.matrix_shape[0]), self.to_xarray)


def shares_of(parts: Mapping[str, float]) -> dict[str, float]:
    """Parts of a positive whole; none if it is zero."""
    whole = sum(parts.values())
    return {label: part / whole for label, part in parts.items()} if whole > 0 else {}
