"""Dense forms of operators: a matrix, a labelled array, and the view scipy takes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from foretrain.operators.flat_blocks import basis_rows
from foretrain.operators.operator import Operator
from foretrain.operators.spaces import Space, SumSpace
from foretrain.support.memory import require_memory
from foretrain.support.progress import track

if TYPE_CHECKING:
    import scipy.sparse.linalg
    import xarray


def dense(operator: Operator) -> Tensor:
    """The matrix (codomain size, domain size), from products with the basis of the smaller side in blocks."""
    rows, columns = operator.matrix_shape
    by_rows = rows < columns and operator.has_adjoint
    count = rows if by_rows else columns
    block = min(operator.best_block, count) * (rows + columns)
    available = torch.cuda.mem_get_info(operator.device)[0] if operator.device.type == "cuda" else None
    require_memory(
        (rows * columns + block) * torch.finfo(operator.dtype).bits // 8,
        f"the dense form of {rows} × {columns} numbers",
        "use products, partial traces or top_modes, or restrict the operator first",
        available=available,
    )
    matrix = torch.empty(rows, columns, dtype=operator.dtype, device=operator.device)
    starts = range(0, count, operator.best_block)
    for start in track(starts, "products for the dense form"):
        stop = min(start + operator.best_block, count)
        basis = basis_rows(start, stop, count, dtype=operator.dtype, device=operator.device)
        if by_rows:
            matrix[start:stop] = operator.apply_adjoint(basis)
        else:
            matrix[:, start:stop] = operator.apply(basis).T
    return matrix


def to_xarray(operator: Operator) -> xarray.DataArray:
    """The dense form with the codomain's axes, then the domain's; a name met again gets a number: unit, unit_2.

    A direct sum is one dim ``entry`` with the coordinate ``member``.
    """
    import xarray

    dims: list[str] = []
    coordinates: dict[str, Any] = {}
    shape: list[int] = []
    for space in (operator.codomain, operator.domain):
        axes = space.axes if isinstance(space, Space) else [("entry", space.size)]
        names = [name for name, _ in axes]
        fresh = [_fresh_name(name, [*dims, *names[:i]]) for i, name in enumerate(names)]
        if isinstance(space, SumSpace):
            members = np.repeat(space.names, [member.size for member in space.members.values()])
            coordinates[_fresh_name("member", [*coordinates])] = (fresh[0], members)
        dims += fresh
        shape += [size for _, size in axes]
    values = dense(operator).cpu().numpy().reshape(shape)
    return xarray.DataArray(values, dims=dims, coords=coordinates)


def linear_operator(operator: Operator, dtype: Any = None) -> scipy.sparse.linalg.LinearOperator:
    """A scipy view on flat numpy vectors, in the operator's dtype or another; scipy's blocks have them as columns."""
    from scipy.sparse.linalg import LinearOperator

    kind = np.dtype(dtype or (np.float32 if operator.dtype == torch.float32 else np.float64))

    def on_columns(product: Any) -> Any:
        def columns(block: Any) -> Any:
            flat = torch.as_tensor(np.ascontiguousarray(np.atleast_2d(block.T)))
            result = product(flat.to(dtype=operator.dtype, device=operator.device))
            return result.to(torch.float64).cpu().numpy().astype(kind).T.reshape(-1, *block.shape[1:])

        return columns

    forward, backward = on_columns(operator.apply), on_columns(operator.apply_adjoint)
    return LinearOperator(
        shape=operator.matrix_shape,
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
