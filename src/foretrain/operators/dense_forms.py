"""Dense forms of operators: a matrix, a labelled array, and the view scipy takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from foretrain.operators.flat_blocks import basis_rows
from foretrain.operators.linear_map import LinearMap
from foretrain.operators.spaces import Space, SumSpace
from foretrain.support.memory import require_memory
from foretrain.support.progress import track

if TYPE_CHECKING:
    import scipy.sparse.linalg
    import xarray


class DenseForms(LinearMap):
    """Dense forms of a linear map, each by its products."""

    scipy_dtype: Any = None  # of the scipy view, if not the map's own

    def dense(self) -> Tensor:
        """The matrix (codomain size, domain size), row-major in axis order, as the products give it.

        They are taken with the basis of the smaller side, in blocks. Symmetric operators are not symmetrised: in
        float32 the rounding of the products stays visible.
        """
        rows, columns = self.matrix_shape
        by_rows = rows < columns and self.has_adjoint
        count = rows if by_rows else columns
        block = min(self.best_block, count) * (rows + columns)
        available = torch.cuda.mem_get_info(self.device)[0] if self.device.type == "cuda" else None
        require_memory(
            (rows * columns + block) * torch.finfo(self.dtype).bits // 8,
            f"the dense form of {rows} × {columns} numbers",
            "use products, partial traces or top_modes, or restrict the operator first",
            available=available,
        )
        matrix = torch.empty(rows, columns, dtype=self.dtype, device=self.device)
        starts = range(0, count, self.best_block)
        for start in track(starts, "products for the dense form"):
            stop = min(start + self.best_block, count)
            basis = basis_rows(start, stop, count, dtype=self.dtype, device=self.device)
            if by_rows:
                matrix[start:stop] = self.apply_adjoint(basis)
            else:
                matrix[:, start:stop] = self.apply(basis).T
        return matrix

    def to_xarray(self) -> xarray.DataArray:
        """The dense form with labels: dims of the codomain, then of the domain (``unit``, ``unit_2``).

        A direct sum is one dim ``entry`` with the coordinate ``member``.
        """
        import xarray

        dims: list[str] = []
        coordinates: dict[str, Any] = {}
        shape: list[int] = []
        for space in (self.codomain, self.domain):
            axes = space.axes if isinstance(space, Space) else [("entry", space.size)]
            names = [name for name, _ in axes]
            fresh = [_fresh_name(name, [*dims, *names[:i]]) for i, name in enumerate(names)]
            if isinstance(space, SumSpace):
                members = np.repeat(space.names, [member.size for member in space.members.values()])
                coordinates[_fresh_name("member", [*coordinates])] = (fresh[0], members)
            dims += fresh
            shape += [size for _, size in axes]
        values = self.dense().cpu().numpy().reshape(shape)
        return xarray.DataArray(values, dims=dims, coords=coordinates)

    def linear_operator(self) -> scipy.sparse.linalg.LinearOperator:
        """A scipy view on flat numpy vectors; scipy's blocks have their vectors as columns."""
        from scipy.sparse.linalg import LinearOperator

        own = np.float32 if self.dtype == torch.float32 else np.float64
        kind = np.dtype(self.scipy_dtype or own)

        def on_columns(product: Any) -> Any:
            def columns(block: Any) -> Any:
                flat = torch.as_tensor(np.ascontiguousarray(np.atleast_2d(block.T)))
                result = product(flat.to(dtype=self.dtype, device=self.device))
                return result.to(torch.float64).cpu().numpy().astype(kind).T.reshape(-1, *block.shape[1:])

            return columns

        forward, backward = on_columns(self.apply), on_columns(self.apply_adjoint)
        return LinearOperator(
            shape=self.matrix_shape,
            matvec=forward,
            rmatvec=backward,
            matmat=forward,
            rmatmat=backward,
            dtype=kind,
        )


def _fresh_name(name: str, taken: list[str]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    return candidate
