"""What kpflow says of the global-state NTK of a GRU, with its defaults: 21 samples, in its order of axes.

Its code is read from the folder that the variable KPFLOW names, since it is on no package index.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(os.environ["KPFLOW"]) / "src"))
from kpflow.grad_op import HiddenNTKOperator  # type: ignore[import-not-found]

Run = Callable[[], Mapping[str, Any]]


class _States(nn.Module):
    """A GRU whose output is its states alone."""

    def __init__(self, layer: nn.GRU) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.layer(x)[0]
        return found


def trace(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Run:
    """By Hutch++; it states no error."""
    operator = _operator(arrays)
    return lambda: {"estimate": np.array([operator.trace(), np.nan])}


def rank(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Run:
    """The participation ratio of the whole operator; it states no error."""
    operator = _operator(arrays)
    return lambda: {"estimate": np.array([float(operator.effdim(grammian=False)), np.nan])}


def eigenpairs(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Run:
    """The largest ones; the tolerance is relative to the eigenvalue."""
    operator = _operator(arrays)

    def run() -> Mapping[str, Any]:
        values, vectors = operator.eigsh(options["count"], compute_vecs=True, tol=options["tolerance"])
        return {"values": values.copy(), "vectors": vectors.reshape(len(values), -1)}

    return run


def temporal(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Run:
    """The effective rank and the largest eigenvalues of its mean over the units, which sums over all their pairs."""
    operator = _operator(arrays)

    def run() -> Mapping[str, Any]:
        found = float(operator.effdim((0, 1), grammian=False))
        values, _ = operator.svd(
            options["count"], (0, 1), compute_vecs=True, grammian=False, tol=options["tolerance"]
        )
        return {"values": values.copy(), "rank": np.array([found])}

    return run


def _operator(arrays: Mapping[str, Any]) -> Any:
    torch.manual_seed(0)
    x = torch.as_tensor(arrays["X"])
    layer = nn.GRU(x.shape[2], arrays["weight_hh_l0"].shape[1], batch_first=True)
    layer.load_state_dict({name: torch.as_tensor(arrays[name]) for name in layer.state_dict()})
    model = _States(layer)
    return HiddenNTKOperator(model, x, model(x).detach())


CALLS = {
    "global-state trace": trace,
    "global-state rank": rank,
    "global-state eigenpairs": eigenpairs,
    "global-state temporal": temporal,
}
