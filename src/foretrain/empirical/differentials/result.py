"""Differentials of the tangent kernel with their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from foretrain.support.answers import Answer, Result

if TYPE_CHECKING:
    import xarray as xr


@dataclass(frozen=True, repr=False, eq=False)
class Differential(Result):
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

    def answer(self) -> Answer:
        """Its sizes, how large its entries are, and how it was found."""
        sizes = ", ".join(f"{name} {size}" for name, size in zip(self.dims, self.shape))
        kind = str(self.values.dtype).removeprefix("torch.")
        rms, largest = float(self.values.square().mean().sqrt()), float(self.values.abs().max())
        entries = f"Entries have the root mean square {rms:.4g} and are up to {largest:.4g} in size."
        statement = f"Differential({self.name}: {sizes}; {kind}; {self.route})"
        record = {"name": self.name, "sizes": sizes, "root_mean_square": rms, "largest": largest}
        return Answer(statement, [entries, *self.notes], self.to_xarray, record)


@dataclass(frozen=True, repr=False, eq=False)
class SecondDifferentials(Result):
    """Both second differentials: ``dd_I`` = D³z_0[g_1, g_2, g_3] (∞.5) and ``dd_II`` = u_13 · λ u_24 (∞.7).

    In dd_I index 0 is the output that is differentiated three times. In dd_II outputs 1 and 2 are differentiated
    twice and share a parameter; the gradient of 3 is contracted with 1, that of 4 with 2.
    """

    dd_I: Differential
    dd_II: Differential

    def answer(self) -> Answer:
        """Both, one after the other."""
        import xarray as xr

        both = {"dd_I": self.dd_I, "dd_II": self.dd_II}
        parts = {name: found.answer() for name, found in both.items()}
        return Answer(
            "Both second differentials of the tangent kernel.",
            list(parts.values()),
            lambda: xr.Dataset({name: one.to_xarray() for name, one in both.items()}),
            {
                f"{name}_{key}": value
                for name, part in parts.items()
                for key, value in part.document().items()
            },
        )


def by_index(joint: Tensor, samples: int, outputs: int) -> Tensor:
    """Axes (sample, output) of every index apart, all samples first."""
    order = joint.ndim
    split = joint.reshape((samples, outputs) * order)
    return split.permute([*range(0, 2 * order, 2), *range(1, 2 * order, 2)]).contiguous()
