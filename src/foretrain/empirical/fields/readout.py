"""How outputs are read from the last layer: Y = scale * B u_L, a fixed matrix or all units as they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.support.errors import InputError, unknown_name

ReadoutLike: TypeAlias = str | Tensor | NDArray[np.floating] | None


@dataclass(frozen=True, eq=False)
class Readout:
    """The matrix B (C, n_L), whose rows are b_L, and the factor in front: B = 1 and 1/N in the note (9)."""

    matrix: Tensor
    scale: float
    label: str
    is_identity: bool = False

    @property
    def outputs(self) -> int:
        """The number C of outputs."""
        return len(self.matrix)

    def __call__(self, u: Tensor) -> Tensor:
        """Outputs (M, C) of last-layer activations (M, n_L)."""
        return u if self.is_identity else self.scale * (u @ self.matrix.T)


def make_readout(readout: ReadoutLike, like: Tensor) -> Readout:
    """From what the user says; ``like`` are activations (M, n_L) of the last layer."""
    width = like.shape[1]
    if readout is None:
        eye = torch.eye(width, dtype=like.dtype, device=like.device)
        return Readout(eye, 1.0, f"the {width} unit{'s' * (width > 1)} of the last layer", is_identity=True)
    if isinstance(readout, str):
        if readout != "mean":
            raise unknown_name("readout", readout, ["mean"])
        return Readout(like.new_ones(1, width), 1.0 / width, "the mean of the last layer")
    given = torch.as_tensor(readout).detach().to(like)
    matrix = given[None, :] if given.ndim == 1 else given
    if matrix.ndim != 2 or matrix.shape[1] != width or len(matrix) == 0 or not torch.isfinite(matrix).all():
        raise InputError(
            f"the readout has shape {tuple(matrix.shape)}: give finite numbers, ({width},) or (outputs, {width}), "
            f"since the last layer has {width} units."
        )
    return Readout(matrix.clone(), 1.0, f"a fixed {len(matrix)} x {width} matrix")
