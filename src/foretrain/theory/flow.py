"""Drives the layer-to-layer recursions: a network and inputs in, every requested tensor at every layer out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.theory.architecture import MLP
from foretrain.theory.pairs import Pairs
from foretrain.theory.recursions.preactivation import (
    PairExpectations,
    next_kernel,
    next_metric_correction,
    next_vertex,
)
from foretrain.theory.recursions.quadruples import QuadrupleVertices
from foretrain.theory.recursions.single_input import single_input_flow, width_ratio

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]

MEANINGS = {
    "K": "kernel: covariance of a preactivation over inputs, at infinite width",
    "V": "four-point vertex: n_{l-1} times the covariance of two entries of the metric",
    "G1": "next-to-leading metric: n_{l-1} times the shift of the mean metric from the kernel",
}
_INDICES = {"K": 2, "V": 4, "G1": 2}


class Flow(Mapping[str, "xr.DataArray"]):
    """Tensors by name, each with dimension ``layer`` = 1..L and one dimension for each input index."""

    def __init__(self, mlp: MLP, tensors: dict[str, xr.DataArray]) -> None:
        self.mlp = mlp
        self._tensors = tensors

    def __getitem__(self, name: str) -> xr.DataArray:
        if name not in self._tensors:
            raise unknown_name("observable of this flow", name, self._tensors)
        return self._tensors[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def to_dataset(self) -> xr.Dataset:
        """All tensors in one dataset, for saving."""
        import xarray as xr

        return xr.Dataset(dict(self._tensors), attrs={"network": repr(self.mlp)})

    def __repr__(self) -> str:
        head = f"Flow of {self.mlp.activation.label}, depth {self.mlp.depth}"
        rows = [f"  {name:<3} {dict(zip(t.dims, t.shape))}: {t.attrs['meaning']}" for name, t in self.items()]
        return "\n".join([head, *rows])


def flow(
    mlp: MLP,
    X: ArrayLike,
    observables: Sequence[str] = ("K",),
    *,
    quadruples: ArrayLike | None = None,
    tolerance: float = 1e-10,
) -> Flow:
    """Statistics of the preactivations of random networks at every layer, at leading order in 1/width.

    Parameters
    ----------
    X
        Inputs (N, n_in).
    observables
        Any of ``K``, ``V``, ``G1``. No 1/n is inside: the physical correction at layer l is value / n_{l-1}.
    quadruples
        Index sets (Q, 4): V then has the dimension ``quadruple`` instead of four input indices, at a cost that does
        not depend on N.

    Examples
    --------
    >>> import foretrain as ft
    >>> deep = ft.flow(ft.MLP("relu", depth=5, width=100, C_W=2.0), [[1.0, 2.0], [2.0, -1.0]])
    >>> deep["K"].sel(layer=5).values.round(4)
    array([[5.    , 3.4048],
           [3.4048, 5.    ]])
    """
    wanted = _check_observables(observables)
    inputs = mlp.check_inputs(X)
    mlp = mlp.with_inputs(inputs)
    K = mlp.first_kernel(inputs)
    if mlp.is_residual and wanted != ["K"]:
        raise NotSupportedError("V and G1 are not offered for residual networks: ask for observables=['K'].")
    chosen = None if quadruples is None else _check_quadruples(quadruples, len(inputs))
    if len(inputs) == 1:
        found = {
            name: values for name, values in single_input_flow(mlp, float(K[0, 0])).items() if name in wanted
        }
        return Flow(mlp, {name: _one_input(name, values, chosen) for name, values in found.items()})
    return Flow(mlp, _several_inputs(mlp, K, wanted, chosen, tolerance))


def _check_observables(observables: Sequence[str]) -> list[str]:
    names = [observables] if isinstance(observables, str) else list(observables)
    for name in names:
        if name not in MEANINGS:
            raise unknown_name("observable", str(name), MEANINGS)
    if not names:
        raise InputError(f"ask for at least one observable of: {', '.join(MEANINGS)}.")
    return names


def _check_quadruples(quadruples: ArrayLike, inputs: int) -> NDArray[np.intp]:
    chosen = np.asarray(quadruples)
    if chosen.dtype.kind not in "iu" or chosen.ndim != 2 or chosen.shape[1] != 4:
        raise InputError(f"quadruples must be integers of shape (Q, 4), but have shape {chosen.shape}.")
    if chosen.size and (chosen.min() < 0 or chosen.max() >= inputs):
        raise InputError(f"quadruples name inputs {chosen.min()} to {chosen.max()}, but there are {inputs}.")
    return chosen.astype(np.intp)


def _several_inputs(
    mlp: MLP, K: Array, wanted: list[str], chosen: NDArray[np.intp] | None, tolerance: float
) -> dict[str, xr.DataArray]:
    """All layers: first the tensors of the next layer from the old kernel, then the kernel itself."""
    pairs = Pairs(len(K))
    needs_vertex = "G1" in wanted or ("V" in wanted and chosen is None)
    _guard(mlp.depth, len(K), wanted, chosen, needs_vertex)
    vertex = np.zeros((len(pairs), len(pairs))) if needs_vertex else np.zeros((0, 0))
    correction = np.zeros(len(pairs))
    blocks = QuadrupleVertices(chosen) if chosen is not None and "V" in wanted else None
    kept: dict[str, list[Array]] = {name: [] for name in wanted}
    for index, layer in enumerate(track(mlp.layers, "layers")):
        if index:
            expectations = PairExpectations(mlp.activation, K, tolerance)
            ratio = width_ratio(mlp, index)
            if "G1" in wanted:
                correction = next_metric_correction(expectations, correction, vertex, layer.C_W, ratio)
            if needs_vertex:
                vertex = next_vertex(expectations, vertex, layer.C_W, ratio)
            if blocks is not None:
                blocks.step(expectations, layer.C_W, ratio)
            K = next_kernel(expectations, layer.C_b, layer.C_W) + layer.gamma**2 * K
        for name in wanted:
            full_vertex = blocks.values.copy() if blocks is not None else vertex
            kept[name].append({"K": K, "V": full_vertex, "G1": correction}[name])
    return {name: _labelled(name, np.stack(values), pairs, chosen) for name, values in kept.items()}


def _guard(
    depth: int, size: int, wanted: list[str], chosen: NDArray[np.intp] | None, needs_vertex: bool
) -> None:
    entries = depth * size**2 * len(wanted)
    if needs_vertex:
        entries += 4 * (size * (size + 1) // 2) ** 2
    if "V" in wanted and chosen is None:
        entries += depth * size**4
    require_memory(
        8 * entries,
        f"{', '.join(wanted)} of {size} inputs at {depth} layers",
        "ask for V on chosen quadruples=, or for fewer inputs",
    )


def _labelled(name: str, values: Array, pairs: Pairs, chosen: NDArray[np.intp] | None) -> xr.DataArray:
    import xarray as xr

    coordinates: dict[str, object] = {"layer": np.arange(1, len(values) + 1)}
    if name == "V" and chosen is not None:
        coordinates |= {f"input_{i + 1}": ("quadruple", chosen[:, i]) for i in range(4)}
        dims: tuple[str, ...] = ("layer", "quadruple")
    else:
        dims = ("layer", *(f"input_{i}" for i in range(1, _INDICES[name] + 1)))
        if name == "V":
            values = np.stack([pairs.tensor(matrix) for matrix in values])
        elif name == "G1":
            values = np.stack([pairs.matrix(vector) for vector in values])
    return xr.DataArray(values, dims=dims, coords=coordinates, name=name, attrs={"meaning": MEANINGS[name]})


def _one_input(name: str, values: Array, chosen: NDArray[np.intp] | None) -> xr.DataArray:
    if name == "V" and chosen is not None:
        return _labelled(name, np.repeat(values[:, None], len(chosen), axis=1), Pairs(1), chosen)
    shape = {"K": (1, 1), "V": (1, 1), "G1": (1,)}[name]
    return _labelled(name, values.reshape(-1, *shape), Pairs(1), None)
