"""The scales X_1 .. X_L of a torch network, as escape times from the saddle want them (Rawal & DeWeese, Def. 3).

On the symmetric manifold rows of W_1 are X_1 v, entries of middle matrices X_l / N and of the last one X_L / √N, and
all readings below give X_l exactly. Away from it they differ, and each answers its own question:

``norm``      ‖W_1‖ / √N and ‖W_l‖ (Frobenius): how large the layer is
``spectral``  ‖W_1‖ / √N and ‖W_l‖ (operator norm): the most it can pass on
``signal``    ‖A_1‖ / √N and ‖A_l‖ / ‖A_{l-1}‖ with A_l = W_l A_{l-1}, A_0 = v: what it passes on of a direction v
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.support.answers import Answer, Result, dataset_figure, dataset_table, labelled, picked
from foretrain.support.errors import InputError, NotSupportedError

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False, eq=False)
class LayerScales(Result):
    """Scales of every layer in three readings (signal: nan without a direction), in layer order."""

    layers: tuple[str, ...]
    width: int
    norm: Array
    spectral: Array
    signal: Array

    def answer(self) -> Answer:
        """All readings, by layer."""
        variables = {name: ("layer", values) for name, values in picked(self, "norm spectral signal").items()}
        data = labelled(variables, {"width": self.width}, ["layer"], name=("layer", list(self.layers)))
        statement = f"Scales of {len(self.layers)} layers of width {self.width}."
        return Answer(statement, [dataset_table(data, "layer"), partial(dataset_figure, data)], data)


def layer_scales(model: nn.Module, direction: Any = None) -> LayerScales:
    """Read the scales off a torch network whose linear layers follow one another.

    ``direction`` is the teacher's v in the space of inputs (any length), for the reading ``signal``. The hidden
    layers must have one width. Biases are left out of account; the theory has none.

    >>> network = nn.Sequential(nn.Linear(3, 8, bias=False), nn.Tanh(), nn.Linear(8, 1, bias=False))
    >>> layer_scales(network).norm.shape
    (2,)
    """
    named = [
        (name or "linear", module) for name, module in model.named_modules() if isinstance(module, nn.Linear)
    ]
    if len(named) < 2:
        raise NotSupportedError(
            f"{type(model).__name__} has {len(named)} linear layers: scales are for networks with two or more."
        )
    names = [name for name, _ in named]
    matrices = [module.weight.detach().double() for _, module in named]
    for before, name, earlier, matrix in zip(names, names[1:], matrices, matrices[1:]):
        if matrix.shape[1] != len(earlier):
            raise NotSupportedError(
                f"{name} takes {matrix.shape[1]} inputs, but {before} before it has {len(earlier)} outputs: "
                "scales are for networks whose linear layers follow one another."
            )
    if not all(bool(torch.isfinite(matrix).all()) for matrix in matrices):
        raise InputError("the network has weights that are nan or infinite: initialise it again.")
    widths = {len(matrix) for matrix in matrices[:-1]}
    if len(widths) > 1:
        told = ", ".join(map(str, sorted(widths)))
        raise NotSupportedError(
            f"the hidden layers have several widths ({told}): the theory's scales are defined for one."
        )
    width = widths.pop()
    root = np.sqrt(width)
    norms = np.array([float(torch.linalg.norm(matrix)) for matrix in matrices])
    spectral = np.array([float(torch.linalg.matrix_norm(matrix, 2)) for matrix in matrices])
    first = np.array([1 / root] + [1.0] * (len(matrices) - 1))
    signal = first * _signal(matrices, direction)
    return LayerScales(tuple(names), width, first * norms, first * spectral, signal)


def _signal(matrices: list[Tensor], direction: Any) -> Array:
    """By how much each layer, taken as linear, stretches what the layers before made of a direction."""
    if direction is None:
        return np.full(len(matrices), np.nan)
    vector = torch.as_tensor(np.asarray(direction, dtype=float)).to(matrices[0])
    if vector.shape != matrices[0].shape[1:] or not float(vector.norm()) > 0:
        raise InputError(
            f"direction has shape {tuple(vector.shape)}: give {matrices[0].shape[1]} numbers, not all zero."
        )
    found = []
    for matrix in matrices:
        passed = matrix @ vector
        before, after = float(vector.norm()), float(passed.norm())
        found.append(after / before if before else 0.0)
        vector = passed
    return np.array(found)
