"""What a flow hands back: labelled tensors by name, at every layer."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import Answer, Result
from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.architecture import MLP

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

MEANINGS = {
    "K": "kernel: covariance of a preactivation over inputs, at infinite width",
    "V": "four-point vertex: n_{l-1} times the covariance of z_1 z_2 of one neuron and z_3 z_4 of another",
    "G1": "next-to-leading metric: n_{l-1} times the shift of the mean metric from the kernel",
    "norm_covariance": "entries (aa)(bb) of the four-point vertex V",
    "entry_variance": "entries (ab)(ab) of the four-point vertex V: n_{l-1} times the variance of the metric",
    "Theta": "tangent kernel: the mean of the NTK at infinite width",
    "H1": "next-to-leading tangent kernel: n_{l-1} times the shift of the mean NTK from Theta",
    "D": "n_{l-1} times the covariance of z_1 z_2 of one neuron and H_34 of another, indices 1234",
    "F": "n_{l-1} times the mean of z_i;1 z_k;2 H_ik;34 of two neurons, indices stored as 1324",
    "A": "n_{l-1} times the covariance of H_12 of one neuron and H_34 of another, indices 1234",
    "B": "n_{l-1} times the mean of H_ik;12 H_ik;34 of two neurons, indices stored as 1324",
    "P": "n_{l-1} times the mean of dH_ikk;012 z_i;3 of two neurons: how the tangent kernel of i moves with z_i",
    "Q": "n_{l-1} times the mean of dH_iik;012 z_k;3 of two neurons: how the tangent kernel of i, k moves with z_k",
    "R": "n_{l-1} times the mean of the first second differential of the NTK, ddH_iikk;0123 of two neurons",
    "S": "n_{l-1} times the mean of the second one, ddH_iikk;1234 of two neurons, indices 1234",
    "T": "n_{l-1} times the mean of the second one, ddH_ikik;1234 of two neurons, indices stored as 1342",
    "U": "n_{l-1} times the mean of the second one, ddH_ikki;1234 of two neurons, indices stored as 1423",
    "three_point": "n_{l-1} E[z_i;1 z_j;2 z_j;3] of two neurons: what skip connections remember",
    "six_point": "n_{l-1}^2 times the third cumulant of the metric's entry of one input",
}
INDICES = {
    **dict.fromkeys(("K", "G1", "norm_covariance", "entry_variance", "Theta", "H1"), 2),
    **dict.fromkeys("VDFABPQRSTU", 4),
    "three_point": 3,
    "six_point": 1,
}


class Flow(Result, Mapping[str, "xr.DataArray"]):
    """Tensors by name, each with dimension ``layer`` = 1..L and one dimension for each input index."""

    def __init__(self, mlp: MLP, tensors: Mapping[str, xr.DataArray], inputs: Array) -> None:
        self.mlp = mlp
        self.inputs = inputs
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> xr.DataArray:
        if isinstance(name, str) and name in self._tensors:
            return self._tensors[name]
        if isinstance(name, str) and name in MEANINGS:
            raise InputError(
                f"{name} was not computed: add it to `observables=` of flow, which had {', '.join(self._tensors)}."
            )
        raise unknown_name("observable of this flow", str(name), self._tensors)

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor, or the default if it was not computed."""
        return self._tensors.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @cached_property
    def summary(self) -> xr.Dataset:
        """What people look at, by layer, with the laws of input 0: see ``presentation.layer_summary``."""
        from foretrain.theory.flow.presentation import layer_summary

        return layer_summary(self)

    def answer(self) -> Answer:
        """Numbers by layer beside their laws, how large fluctuations are, and the picture."""
        from foretrain.theory.flow.presentation import flow_answer

        return flow_answer(self)


def tensor(name: str, values: Array) -> xr.DataArray:
    """Values (layers, inputs, ...) with one dimension for each input index."""
    dims = tuple(f"input_{i}" for i in range(1, INDICES[name] + 1))
    return _labelled(name, values, dims, {})


def on_quadruples(name: str, values: Array, quadruples: Indices) -> xr.DataArray:
    """Values (layers, Q) with the input indices of every quadruple as coordinates."""
    return _labelled(name, values, ("quadruple",), legs(quadruples))


def legs(quadruples: Indices) -> dict[str, tuple[str, Indices]]:
    """The input indices of quadruples as coordinates ``leg_1`` to ``leg_4``."""
    return {f"leg_{i + 1}": ("quadruple", quadruples[:, i]) for i in range(4)}


def contracted(name: str, values: Array, standard_errors: Array, *, single: bool) -> xr.DataArray:
    """Values (layers, C) of contractions, with standard errors as a coordinate; one pair has no dimension."""
    if single:
        return _labelled(name, values[:, 0], (), {"standard_error": ("layer", standard_errors[:, 0])})
    errors = {"standard_error": (("layer", "contraction"), standard_errors)}
    return _labelled(name, values, ("contraction",), errors)


def _labelled(
    name: str, values: Array, dims: tuple[str, ...], coordinates: Mapping[str, object]
) -> xr.DataArray:
    import xarray as xr

    layers = np.arange(1, len(values) + 1)
    return xr.DataArray(
        values,
        dims=("layer", *dims),
        coords={"layer": layers, **coordinates},
        name=name,
        attrs={"meaning": MEANINGS[name]},
    )
