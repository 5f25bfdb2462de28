"""The kernel with its labels, the routes it was found by, and what is asked of a kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from foretrain.empirical.any_kernel import AnyKernel, kernel_parts, routes_taken
from foretrain.empirical.tangent_kernel.planning import Route
from foretrain.support.answers import Answer
from foretrain.support.memory import human_bytes

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, repr=False, eq=False)
class TangentKernel(AnyKernel):
    """``values``: (N, N2, C, C), or (N, N2) for the trace, with ``labels`` first if contributions are apart.

    ``np.asarray(kernel)`` gives an array; ``kernel.routes`` says which way each parameter took.
    """

    values: Tensor
    trace: bool
    outputs: tuple[int, ...]
    labels: tuple[str, ...] | None
    by: str | None
    routes: Mapping[str, Route]
    symmetric: bool
    working_bytes: float

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.values.shape)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes."""
        first = () if self.by is None else (self.by,)
        last = () if self.trace else ("output_1", "output_2")
        return (*first, "input_1", "input_2", *last)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        array = self.values.detach().cpu().numpy()
        return np.array(array, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.values)

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

    def to_xarray(self) -> xr.DataArray:
        """A labelled array that can be saved."""
        import xarray as xr

        coordinates: dict[str, Any] = {} if self.by is None else {self.by: list(self.labels or ())}
        if not self.trace:
            coordinates |= {"output_1": list(self.outputs), "output_2": list(self.outputs)}
        routes = {name: str(route) for name, route in self.routes.items()}
        return xr.DataArray(
            np.asarray(self), dims=self.dims, coords=coordinates, name="ntk", attrs={"routes": str(routes)}
        )

    def answer(self) -> Answer:
        """Its sizes and the way it was found, and of a kernel that is not large its eigenvalues."""
        sizes = ", ".join(f"{name} {size}" for name, size in zip(self.dims, self.shape))
        statement = (
            f"TangentKernel({sizes}; {str(self.values.dtype).removeprefix('torch.')}; parameters: "
            f"{routes_taken(self.routes)}; working memory {human_bytes(self.working_bytes)})"
        )
        whole = self.total().detach().cpu()
        rows = len(whole) * (1 if self.trace else len(self.outputs))
        return Answer(statement, kernel_parts(self, whole, rows), self.to_xarray)
