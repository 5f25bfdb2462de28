"""The evidence of a network, log p(y_A), at infinite width, and what it says about hypotheses (6.29)-(6.48)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp

from foretrain.support.answers import labelled
from foretrain.support.arguments import real_array
from foretrain.support.errors import InputError
from foretrain.support.progress import track
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.bayes.posterior import log_density, targets_for
from foretrain.theory.prediction.cholesky import factorise
from foretrain.theory.prediction.kernels import kernel
from foretrain.theory.two_inputs.nearby import components

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


def log_evidence(mlp: MLP, X: ArrayLike, Y: ArrayLike, *, noise: float = 0.0) -> float:
    """log p(y_A) of a network before training (6.34); ``noise`` is a variance on the diagonal.

    Examples
    --------
    >>> import foretrain as ft
    >>> round(log_evidence(ft.MLP("relu", depth=20, width=100, C_W=2.0), [[1.0]], [1.0]), 6)
    -1.515512
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    return log_density(factorise(kernel(mlp, inputs), noise), check_targets(Y, len(inputs), mlp.n_out, "Y"))


def log_evidence_of_kernel(K: ArrayLike, Y: ArrayLike, *, noise: float = 0.0) -> float:
    """The same for any kernel (N, N) and targets (N, outputs)."""
    training = factorise(K, noise)
    return log_density(training, targets_for(Y, len(training.lower)))


def two_input_log_evidence(K: ArrayLike, Y: ArrayLike) -> float:
    """Two inputs, written in the components K_[0], K_[1], K_[2] of kernel and targets (6.48)."""
    targets = targets_for(Y, 2)
    K0, K1, K2 = (float(part) for part in components(K))
    Y0, Y1, Y2 = (float(part) for part in components(targets @ targets.T))
    determinant = 4 * K0 * K2 - K1**2
    if not determinant > 0:
        raise InputError(f"the determinant of the kernel is {determinant:.3g}: give a positive definite one.")
    square = (4 * K0 * Y2 + 4 * K2 * Y0 - 2 * K1 * Y1) / determinant
    return -0.5 * (int(targets.shape[1]) * math.log(4 * math.pi**2 * determinant) + square)


def best_kernel(Y: ArrayLike) -> Array:
    """The kernel that maximises the evidence among all kernels, sum_i y_i y_i^T / n_L ((6.36), (6.45)): (N, N).

    With fewer outputs than inputs it is singular, and the evidence has no maximum.
    """
    targets = real_array("targets", Y)
    if targets.ndim != 2:
        raise InputError(f"targets have shape {targets.shape}: give (inputs, outputs).")
    return np.asarray(targets @ targets.T / targets.shape[1])


def bayes_factor(first: MLP, second: MLP, X: ArrayLike, Y: ArrayLike, *, noise: float = 0.0) -> float:
    """log of the Bayes factor p(y | first) / p(y | second) (6.30): positive if the data favour the first."""
    return log_evidence(first, X, Y, noise=noise) - log_evidence(second, X, Y, noise=noise)


def compare_hypotheses(
    hypotheses: Mapping[str, MLP],
    X: ArrayLike,
    Y: ArrayLike,
    *,
    noise: float = 0.0,
    prior: Mapping[str, float] | None = None,
) -> xr.Dataset:
    """``log_evidence`` and ``probability`` of every hypothesis given the data (6.29), the flat prior by default.

    ``log_bayes_factor`` is against the best of them; the attribute ``log_evidence`` sums over the prior, as a
    hierarchical model has it.
    """
    if not hypotheses:
        raise InputError("no hypotheses are given: give a mapping of names to networks.")
    names = list(hypotheses)
    weights = dict.fromkeys(names, 1.0) if prior is None else dict(prior)
    if weights.keys() != hypotheses.keys() or not all(weight >= 0 for weight in weights.values()):
        raise InputError(f"prior must give a number that is not negative for each of: {', '.join(names)}.")
    total = sum(weights.values())
    if not (total > 0 and np.isfinite(total)):
        raise InputError("prior must have a positive and finite sum.")
    found = np.array(
        [log_evidence(hypotheses[name], X, Y, noise=noise) for name in track(names, "hypotheses")]
    )
    with np.errstate(divide="ignore"):
        joint = found + np.log([weights[name] / total for name in names])
    summed = float(logsumexp(joint))
    return labelled(
        {
            "log_evidence": ("hypothesis", found),
            "log_bayes_factor": ("hypothesis", found - found.max()),
            "probability": ("hypothesis", np.exp(joint - summed)),
        },
        {"best": names[int(np.argmax(joint))], "log_evidence": summed, "noise": float(noise)},
        hypothesis=names,
    )
