"""Differentials of the tangent kernel with their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, repr=False, eq=False)
class Differential:
    """``values``: one axis of samples for every index, then one axis of outputs for every index.

    ``np.asarray(found)`` gives an array; ``found.route`` says how it was computed, ``found.notes`` what to know.
    """

    name: str
    values: Tensor
    samples: tuple[int, ...]
    outputs: tuple[int, ...]
    first_index: int
    route: str
    notes: tuple[str, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes."""
        return tuple(self.values.shape)

    @property
    def dims(self) -> tuple[str, ...]:
        """Names of the axes, numbered as the source numbers the indices."""
        numbers = range(self.first_index, self.first_index + self.values.ndim // 2)
        return (*(f"input_{i}" for i in numbers), *(f"output_{i}" for i in numbers))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray[Any, Any]:
        return np.array(self.values.detach().cpu().numpy(), dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, key: Any) -> Tensor:
        return self.values[key]

    def joint(self) -> Tensor:
        """One axis of (sample, output) for every index, as the update equations contract them."""
        order = self.values.ndim // 2
        pairs = [axis for i in range(order) for axis in (i, order + i)]
        legs = len(self.samples) * len(self.outputs)
        return self.values.permute(pairs).reshape((legs,) * order)

    def to_xarray(self) -> xr.DataArray:
        """A labelled array that can be saved."""
        import xarray as xr

        coordinates = {
            dim: list(self.samples if dim.startswith("input") else self.outputs) for dim in self.dims
        }
        attributes = {"route": self.route, "notes": " ".join(self.notes)}
        return xr.DataArray(
            np.asarray(self), dims=self.dims, coords=coordinates, name=self.name, attrs=attributes
        )

    def to_dataset(self) -> xr.Dataset:
        """What ``ft.save`` writes."""
        return self.to_xarray().to_dataset()

    def __repr__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in zip(self.dims, self.shape))
        kind = str(self.values.dtype).removeprefix("torch.")
        notes = "".join(f"\n  {note}" for note in self.notes)
        return f"Differential({self.name}: {sizes}; {kind}; {self.route}){notes}"


@dataclass(frozen=True, repr=False, eq=False)
class SecondDifferentials:
    """Both second differentials: ``dd_I`` = D³z_0[g_1, g_2, g_3] (∞.5) and ``dd_II`` = u_13 · λ u_24 (∞.7).

    In dd_I index 0 is the output that is differentiated three times. In dd_II outputs 1 and 2 are differentiated
    twice and share a parameter; the gradient of 3 is contracted with 1, that of 4 with 2.
    """

    dd_I: Differential
    dd_II: Differential

    def to_dataset(self) -> xr.Dataset:
        """What ``ft.save`` writes."""
        import xarray as xr

        return xr.Dataset({"dd_I": self.dd_I.to_xarray(), "dd_II": self.dd_II.to_xarray()})

    def __repr__(self) -> str:
        return f"{self.dd_I!r}\n{self.dd_II!r}"


def by_index(joint: Tensor, samples: int, outputs: int) -> Tensor:
    """Axes (sample, output) of every index apart, all samples first."""
    order = joint.ndim
    split = joint.reshape((samples, outputs) * order)
    return split.permute([*range(0, 2 * order, 2), *range(1, 2 * order, 2)]).contiguous()
