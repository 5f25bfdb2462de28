"""Stochastic Lanczos quadrature: what probes see of a spectrum (Golub & Meurant 1994; Ubaru, Chen & Saad 2017).

From a probe w, ``depth`` Lanczos steps give nodes and weights with w f(A) w = |w|² sum(weights f(nodes)), exactly for
polynomials up to degree 2 depth - 1. Lost orthogonality only splits nodes among close copies of themselves, which
leaves sums as they are (Greenbaum 1989), so that no basis is kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators.estimators.probes import dots, norms

Array: TypeAlias = NDArray[np.float64]
Product: TypeAlias = Callable[[Tensor], Tensor]

_INVARIANT = 10.0  # times the rounding: a remainder below this, relative to the norm so far, is none


@dataclass(frozen=True)
class Tridiagonal:
    """Lanczos coefficients of some probes, (probes, depth) each on the CPU; the last coupling leads outside."""

    diagonal: Tensor
    coupling: Tensor

    def quadrature(self, depth: int) -> tuple[Array, Array]:
        """Nodes and weights of the first ``depth`` steps, (probes, depth); weights of one probe sum to 1."""
        coupling = self.coupling[:, : depth - 1]
        matrix = torch.diag_embed(self.diagonal[:, :depth])
        matrix = matrix + torch.diag_embed(coupling, 1) + torch.diag_embed(coupling, -1)
        nodes, vectors = torch.linalg.eigh(matrix)
        return nodes.numpy(), vectors[:, 0].square().numpy()


def lanczos(apply: Product, probes: Tensor, depth: int) -> Tridiagonal:
    """Follow every probe for ``depth`` steps of its own, all probes together in one product."""
    current = probes / norms(probes).to(probes.dtype)[:, None]
    before = torch.zeros_like(current)
    diagonal = torch.zeros(len(probes), depth, dtype=torch.float64, device=probes.device)
    coupling = torch.zeros_like(diagonal)
    rounding = _INVARIANT * float(torch.finfo(probes.dtype).eps)
    for step in range(depth):
        image = apply(current)
        diagonal[:, step] = dots(current, image)
        image = image - diagonal[:, step].to(image)[:, None] * current
        if step:
            image = image - coupling[:, step - 1].to(image)[:, None] * before
        remainder = norms(image)
        scale = torch.maximum(diagonal.abs().amax(1), coupling.amax(1))
        remainder = torch.where(remainder <= rounding * scale, 0.0, remainder)
        coupling[:, step] = remainder
        inverse = torch.where(remainder > 0, 1 / remainder, 0.0)  # an ended chain goes on with zeros, unseen
        before, current = current, image * inverse.to(image)[:, None]
    return Tridiagonal(diagonal.cpu(), coupling.cpu())
