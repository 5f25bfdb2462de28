"""The function :func:`advise`."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.activations import Activation
from foretrain.activations import activation as find_activation
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory.advice.depths import check_loss, perturbative_depths, stable_step
from foretrain.theory.advice.result import Advice
from foretrain.theory.architecture import MLP
from foretrain.theory.criticality import Criticality, CriticalPoint, criticality
from foretrain.theory.criticality.critical_initialisation import critical_side
from foretrain.theory.information import next_coefficient, turning_point
from foretrain.theory.residual_networks import fluctuation_rate, optimal_skip

_DEEPEST = 100_000  # layers of the network that is handed back, each with its rates


def advise(
    activation: Any,
    width: int,
    *,
    n_out: int = 1,
    n_in: int | None = None,
    gamma: float | None = None,
    depth: int | None = None,
    X: ArrayLike | None = None,
    loss: str = "squared_error",
) -> Advice:
    """What the effective theory recommends for networks with this activation and width.

    Depth: how deep the expansion in 1/n reaches, and r* = L/n at which the truncated information between the two
    halves of the output peaks. Initialisation: critical C_b and C_W. Training: learning rates by layer.

    Parameters
    ----------
    gamma
        Skip connections of all hidden layers but the first.
    depth
        A depth to judge; without it the network is as deep as r* says.
    X
        Typical inputs, a few hundred at most: fluctuations are then those of the one of median size, rates are
        balanced for them where the class has no law, and there is a largest stable step for the ``loss``.
    loss
        That the largest stable step on X is for: ``squared_error``, half the SUM of squares as in ``predict``,
        ``mse``, the mean over inputs and outputs as torch has it, or ``cross_entropy``, the mean over inputs.

    Examples
    --------
    >>> found = advise("tanh", 256, n_out=10)
    >>> found.best_depth, found.depths.small, found.depths.large
    (30, 40, 118)
    """
    act = find_activation(activation)
    if isinstance(width, bool) or not isinstance(width, int | np.integer):
        raise InputError(f"`width` is {width!r}: give one whole number, the width of all hidden layers.")
    check_loss(loss, n_out)
    plain = MLP.critical(act, 2, int(width), n_in=n_in, n_out=n_out)  # refuses what cannot be a network
    if X is not None:
        plain = plain.with_inputs(X)
    if gamma is not None and (isinstance(gamma, bool) or not isinstance(gamma, int | float | np.number)):
        raise InputError(f"`gamma` is {gamma!r}: give one number between -1 and 1.")
    skip = float(gamma or 0.0)
    found = criticality(act, skip)
    point = found.point
    assert point is not None  # or the network had been refused
    nu, nu_printed = _growth(act, point, skip)
    start = _first_kernel(plain, point, X)
    depths = perturbative_depths(act, int(width), start, nu, skip)
    half = n_out / 2
    best = turning_point(half, half) / nu
    complete = None
    if point.kind != "half-stable":
        complete = turning_point(half, half, next_coefficient(point.kind)) / nu
    chosen = _chosen_depth(depth, best, width, skip)
    network = _network(act, chosen, plain, width, skip, X)
    return Advice(
        criticality=criticality(act),
        width=int(width),
        n_out=n_out,
        gamma=skip,
        nu=nu,
        nu_printed=nu_printed,
        best_ratio=best,
        complete_ratio=complete,
        depths=depths,
        first_kernel=start,
        depth=depth,
        skip=_skip(act, depth, width, n_out),
        network=network,
        step=None if X is None else stable_step(network, X, loss),
        notes=_notes(found, point, plain, X, n_out, best * width),
    )


def _growth(act: Activation, point: CriticalPoint, gamma: float) -> tuple[float, float]:
    """nu of V / (n K^2) = nu L/n, complete and as printed; at a half-stable K* that of a signal at K*."""
    if point.kind == "half-stable":
        return point.coefficients["nu"], point.coefficients["nu"]
    return fluctuation_rate(act, gamma), fluctuation_rate(act, gamma, "book")


def _first_kernel(plain: MLP, point: CriticalPoint, X: ArrayLike | None) -> float:
    """Of the input of median size; without inputs K*, or one where K* is 0 or anything."""
    if X is not None:
        kernels = np.sort(np.diag(plain.first_kernel(X)))
        kernel = float(kernels[len(kernels) // 2])
        if kernel <= 0:
            raise InputError(
                "most inputs are zero, and with C_b = 0 they give no signal: leave those out of X."
            )
        return kernel
    return point.K_star or 1.0


def _chosen_depth(depth: int | None, best: float, width: int, gamma: float) -> int:
    least = 3 if gamma else 2
    if depth is None:
        there = max(least, math.floor(best * width))
        if there > _DEEPEST:
            raise InputError(
                f"r* is depth {there:,} at width {width:,}, more layers than can be written down: ask about a depth "
                f"of at most {_DEEPEST:,}."
            )
        return there
    if isinstance(depth, bool) or not isinstance(depth, int | np.integer) or depth < least:
        raise InputError(f"`depth` is {depth!r}: give a whole number of layers, at least {least}.")
    if depth > _DEEPEST:
        raise InputError(f"`depth` is {depth}: ask about at most {_DEEPEST:,} layers.")
    return int(depth)


def _network(act: Activation, depth: int, plain: MLP, width: int, gamma: float, X: ArrayLike | None) -> MLP:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", AccuracyWarning)  # the notes say which side of K* inputs are on
        return MLP.critical(act, depth, width, n_in=plain.n_in, n_out=plain.n_out, gamma=gamma or None, X=X)


def _skip(act: Activation, depth: int | None, width: int, n_out: int) -> float | None:
    """gamma* of the depth that is asked about; None where none is known or asked for."""
    if depth is None:
        return None
    try:
        return optimal_skip(act, depth / width, n_out=n_out)
    except NotSupportedError:
        return None


def _notes(
    found: Criticality, point: CriticalPoint, plain: MLP, X: ArrayLike | None, n_out: int, best: float
) -> tuple[str, ...]:
    notes = [
        "r* is a property of the truncated series: the exact information grows with depth without a maximum, and is "
        "larger than the truncated one at r* (about twice in deep scale-invariant networks)."
    ]
    if point.kind == "half-stable":
        notes.append(
            f"{found.activation.label} is critical at K* = {point.K_star:.6g} only and attracts from one side: nu is "
            "that of signals at K*, and falls to a fifth of it for those that come from far away."
        )
        assert point.K_star is not None
        square = (point.K_star - plain.C_b[0]) / plain.C_W[0]
        scaling = f"scale inputs to a mean square of {square:.6g} (per component), so that they start at K*."
        notes.append(scaling if X is None else critical_side(plain, X).sentence)
    if found.gamma and point.kind == "half-stable":
        notes.append("nu with skip connections is the printed kind here, without what neurons remember.")
    if n_out == 1:
        notes.append("one output has no halves: r* is (A.73) at its word.")
    if best < 2:
        notes.append(
            f"r* allows no hidden layer at width {plain.hidden_widths[0]}: that takes width "
            f"{math.ceil(2 * plain.hidden_widths[0] / best)}."
        )
    return tuple(notes)
