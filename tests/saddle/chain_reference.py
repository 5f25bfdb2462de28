"""The scalar flow and the network itself, written out plainly on dense Gauss-Hermite grids."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[Any], Any]

NODES, WEIGHTS = np.polynomial.hermite_e.hermegauss(150)
WEIGHTS = WEIGHTS / WEIGHTS.sum()


def plain_loss(X: Array, width: int, beta: float, sigma: Function) -> float:
    signal = X[0] * NODES
    for scale in X[1:]:
        signal = scale * sigma(signal)
    return float(WEIGHTS @ (np.sqrt(width) * signal - beta * sigma(NODES)) ** 2 / 2)


def plain_rates(X: Array, width: int, beta: float, sigma: Function, step: float = 1e-6) -> Array:
    """Minus the gradient of the loss, by central differences."""
    shifts = step * np.eye(len(X))
    return np.array(
        [
            (plain_loss(X - d, width, beta, sigma) - plain_loss(X + d, width, beta, sigma)) / (2 * step)
            for d in shifts
        ]
    )


def chain_rates(X: Array, width: int, beta: float, sigma: Function, slope: Function) -> Array:
    """Equation (5) with explicit loops over layers."""
    layers, c = len(X), [NODES, X[0] * NODES]
    for scale in X[1:]:
        c.append(scale * sigma(c[-1]))
    rates = np.empty(layers)
    for layer in range(1, layers + 1):
        term = NODES if layer == 1 else sigma(c[layer - 1])
        for m in range(layer + 1, layers + 1):
            term = term * slope(c[m - 1]) * X[m - 1]
        error = np.sqrt(width) * c[layers] - beta * sigma(NODES)
        rates[layer - 1] = -WEIGHTS @ (error * np.sqrt(width) * term)
    return rates


def runge_kutta_arrival(rates: Callable[[Array], Array], X: Array, threshold: float, step: float) -> float:
    """Reduced time at which X_1 passes the threshold: plain fourth-order steps, then linear interpolation."""
    time = 0.0
    while X[0] < threshold:
        before = X
        k1 = rates(X)
        k2 = rates(X + step / 2 * k1)
        k3 = rates(X + step / 2 * k2)
        k4 = rates(X + step * k3)
        X = X + step / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        time += step
    return time - step * float((X[0] - threshold) / (X[0] - before[0]))


def network_gradients(weights: list[Array], direction: Array, beta: float) -> list[Array]:
    """Population gradients of a tanh network on inputs in the plane, by a product grid."""
    x, w = np.polynomial.hermite_e.hermegauss(40)
    inputs = np.stack([np.repeat(x, len(x)), np.tile(x, len(x))])
    mass = np.outer(w, w).ravel() / w.sum() ** 2
    hidden, before = [inputs], []
    for matrix in weights[:-1]:
        before.append(matrix @ hidden[-1])
        hidden.append(np.tanh(before[-1]))
    error = (weights[-1] @ hidden[-1] - beta * np.tanh(direction @ inputs)) * mass
    gradients = []
    for layer in range(len(weights) - 1, -1, -1):
        gradients.append(error @ hidden[layer].T)
        if layer:
            error = weights[layer].T @ error * (1 - hidden[layer] ** 2)
    return gradients[::-1]
