"""Kernel, vertex and metric correction of one layer, which every prediction to order 1/n starts from."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Result
from foretrain.support.errors import NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import Flow, flow

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False)
class LayerStatistics(Result):
    """Kernel K (N, N), vertex V (N, N, N, N) and correction G1 (N, N) of one layer; n = ``fan_in``."""

    also = ("fluctuation",)
    layer: int
    fan_in: int
    K: Array
    V: Array
    G1: Array

    @property
    def fluctuation(self) -> float:
        """The largest V / (n K^2) of the inputs: what has to be small for an expansion in 1/n."""
        K, V = np.diagonal(self.K), np.einsum("aaaa->a", self.V)
        return float(np.max(np.where(K > 0, V / np.where(K > 0, K, 1.0) ** 2, 0.0))) / self.fan_in


def layer_statistics(mlp: MLP, X: ArrayLike, layer: int | None = None) -> LayerStatistics:
    """K, V and G1 of one layer (the output by default) over the rows of X."""
    inputs = mlp.check_inputs(X)
    number = mlp.check_layer(layer)
    refuse_residual(mlp, "the expansion of observables in 1/n")
    found = _whole_flow(mlp, tuple(map(tuple, inputs.tolist())))
    K, V, G1 = (found[name].sel(layer=number).values.copy() for name in ("K", "V", "G1"))
    return LayerStatistics(number, mlp.with_inputs(inputs).widths[number - 1], K, V, G1)


@lru_cache(maxsize=8)
def _whole_flow(mlp: MLP, rows: tuple[tuple[float, ...], ...]) -> Flow:
    """Kept, because one asks for many observables of the same network and inputs."""
    return flow(mlp, np.array(rows), ["K", "V", "G1"])


def refuse_residual(mlp: MLP, what: str) -> None:
    """An error that names what is not known for networks with skip connections."""
    if mlp.is_residual:  # odd moments of its neurons do not vanish, and K, V, G1 are not all there is
        raise NotSupportedError(
            f"{what} is known for networks without skip connections only: leave `gamma` out, or sample networks "
            "with foretrain.theory.ensembles."
        )
