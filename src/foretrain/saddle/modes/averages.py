"""Closure coefficients of odd activations as products of one-dimensional averages, and the paper's (62), (64).

On the diagonal manifold the drive of entry (k, m) of A_l is E[df_k/dh_m] E[(y_m - f_m) h_m], h_m what layer l gets
from mode m. It contains the teacher's beta_m and is of the same order in the scales as their own growth. The printed
drives hold no beta_m: D_k U_m^q E[z^q sigma'] in (62), which vanishes by symmetry for odd q, and D_k D_m times an
open scalar in (64), of higher order in the scales. They can apply only to a mode m that is already fitted, where
E[(y_m - f_m) h_m] is small. The printed damping of rotations is right at leading order, that of off-block entries
has D_k U_m where the exact one has its square.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import activation as find_activation
from foretrain.saddle.chain_field import ChainField
from foretrain.saddle.classes import classify
from foretrain.saddle.gaussian_rule import gaussian_rule
from foretrain.saddle.parameters import Array, check_width
from foretrain.support.errors import InputError, NotSupportedError


@dataclass(frozen=True)
class DriveAndDamping:
    """o' = drive - damping o of every entry (k, m) between modes, per matrix time s; (k, k) is nan."""

    drive: Array
    damping: Array


def product_coefficients(
    activation: Any, scales: ArrayLike, betas: ArrayLike, block_width: int, layer: int
) -> DriveAndDamping:
    """The drive of the off-diagonal entries of A_layer, and E[(df/do)^2], their damping at a small misfit."""
    X, strengths = np.asarray(scales, dtype=float), np.asarray(betas, dtype=float)
    act = find_activation(activation)
    if act.parity != "odd":
        raise NotSupportedError(f"{act.label} is not odd: take coefficients(), which needs no symmetry.")
    if X.ndim != 2 or X.shape[1:] != strengths.shape or not 1 <= layer < len(X):
        raise InputError(
            f"scales have shape {X.shape}, betas {strengths.shape}, and layer is {layer}: give (layers, modes), "
            "(modes) and a layer below the last."
        )
    width = check_width(block_width)
    chains = [ChainField(act, width, float(beta), refinement=1) for beta in strengths]
    ways = [chain.passage(X[:, mode]) for mode, chain in enumerate(chains)]
    weights = chains[0].rule.weights
    above = np.stack([way.above[layer - 1] for way in ways])
    below = np.stack([way.outputs[layer - 1] for way in ways])
    misfit = np.stack([-way.residual for way in ways])
    drive = np.outer(above @ weights, (misfit * below) @ weights)
    damping = np.outer(above**2 @ weights, below**2 @ weights)
    return DriveAndDamping(_between(drive / width), _between(damping / width))


def printed_damping(activation: Any, scales: ArrayLike, layer: int) -> Array:
    """The paper's damping of entries (k, m) per matrix time: of rotations (64) for layer 1, of C (62) for layer 2."""
    X, act, alpha = np.asarray(scales, dtype=float), find_activation(activation), classify(activation).alpha
    if layer not in (1, 2) or X.ndim != 2 or len(X) < 3:
        raise InputError(f"layer is {layer}: the paper has dampings for layers 1 and 2 of three or more.")
    rule, (depth, modes) = gaussian_rule(act, refinement=1), X.shape
    squares = np.array([act.derivative(u * rule.points, 1) ** 2 @ rule.weights for u in X[0]])
    if layer == 1:
        own = (alpha ** (depth - 2) * X[1:].prod(axis=0)) ** 2 * squares
        return _between(np.outer(own, np.ones(modes)))
    return _between(np.outer(X[2:].prod(axis=0), alpha**2 / modes * squares * X[0]))


def _between(values: Array) -> Array:
    return np.asarray(np.where(np.eye(len(values), dtype=bool), np.nan, values))
