"""The kernel with its labels, the routes it was found by, and what is asked of a kernel."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from foretrain.empirical.tangent_kernel.routes import Route
from foretrain.support.memory import human_bytes

if TYPE_CHECKING:
    import xarray as xr

    from foretrain.empirical.kernel_analysis import KernelAlignment, KernelRegression, KernelSpectrum


@dataclass(frozen=True, repr=False, eq=False)
class TangentKernel:
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

    def spectrum(self, top: int | None = None) -> KernelSpectrum:
        """Eigenvalues, and the modes of the largest."""
        from foretrain.empirical.kernel_analysis import spectrum

        return spectrum(self, top)

    def condition_number(self, ridge: float = 0.0) -> float:
        """Largest over smallest eigenvalue."""
        from foretrain.empirical.kernel_analysis import condition_number

        return condition_number(self, ridge)

    def alignment(self, y: Any, top: int | None = None) -> KernelAlignment:
        """How targets lie in the kernel."""
        from foretrain.empirical.kernel_analysis import alignment

        return alignment(self, y, top)

    def regression(
        self,
        y: Any,
        ridge: float = 0.0,
        test: TangentKernel | None = None,
        initial_outputs: Any = None,
        *,
        time: float | None = None,
    ) -> KernelRegression:
        """Where gradient flow of the linearised model ends, or is at a time."""
        from foretrain.empirical.kernel_analysis import regression

        return regression(self, y, ridge, test, initial_outputs, time=time)

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

    def to_dataset(self) -> xr.Dataset:
        """What ``ft.save`` writes."""
        return self.to_xarray().to_dataset()

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in zip(self.dims, self.shape))
        ways = Counter(route.way for route in self.routes.values())
        taken = ", ".join(f"{count} by {way}" for way, count in ways.items())
        return (
            f"TangentKernel({sizes}; {str(self.values.dtype).removeprefix('torch.')}; parameters: {taken}; "
            f"working memory {human_bytes(self.working_bytes)})"
        )
