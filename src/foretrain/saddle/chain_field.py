"""The exact scalar flow on the symmetric manifold: one amplitude X_l for each layer, one Gaussian direction g.

f = sqrt(N) X_L sigma(X_{L-1} sigma(... sigma(X_1 g))) (3), y = beta sigma(g), dX_l/dt = -E[(f - y) df/dX_l] (4), (5).
All rates here are per unit of reduced time t; the matrix flow's time is s = N t.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from foretrain.activations import Activation
from foretrain.gaussian.nodes import legendre_panels
from foretrain.saddle.parameters import Array
from foretrain.support.errors import NotSupportedError

_COARSEST_STEP = 0.3
_DIGITS = 38.0  # log of the accuracy that the first step aims at for the teacher, exp(-2 pi strip / step)
_PANEL, _PANEL_NODES = 0.5, 10


@dataclass(frozen=True)
class GaussianRule:
    """E[F(g)] = weights . F(points); for odd activations F is even, and the points are the positive half."""

    points: Array
    weights: Array


def gaussian_rule(act: Activation, refinement: int) -> GaussianRule:
    """A rule for functions made of sigma(g) and sigma(X g); each refinement halves the step and goes further out.

    Smooth activations: the midpoint rule, exponentially accurate in the width of the strip of analyticity.
    With kinks: Gauss-Legendre panels that end at the kinks of the teacher and at 0.
    """
    radius = 9.5 + 2.0 * refinement
    if act.kinks:
        points, weights = _panels(act, radius, refinement)
    else:
        step = min(_COARSEST_STEP, 2 * math.pi * act.strip / _DIGITS) / 2**refinement
        count = math.ceil(radius / step)
        points, weights = step * (np.arange(count) + 0.5), np.full(count, step)
    weights = weights * np.exp(-0.5 * points**2) / math.sqrt(2 * math.pi)
    if act.parity != "odd":
        points, weights = np.concatenate([-points[::-1], points]), np.concatenate([weights[::-1], weights])
    else:
        weights = 2 * weights
    return GaussianRule(points, weights)


def _panels(act: Activation, radius: float, refinement: int) -> tuple[Array, Array]:
    regular = np.linspace(0.0, radius, math.ceil(radius / _PANEL) * 2**refinement + 1)
    kinks = [abs(kink.location) for kink in act.kinks if 0 < abs(kink.location) < radius]
    edges = np.union1d(regular, kinks)
    return legendre_panels(edges, _PANEL_NODES)


_LARGEST_INPUT = 1e20
_FEW = 256


class Passage(NamedTuple):
    """One pass through the chain at every point g, for states X (..., L)."""

    inputs: Array  # c_1..c_{L-1}, the preactivations that enter an activation: (..., L-1, points)
    outputs: Array  # sigma(c_0) := g, sigma(c_1), ..., sigma(c_{L-1}): (..., L, points)
    above: Array  # sqrt(N) prod_{m>l} sigma'(c_{m-1}) X_m for l = 1..L: (..., L, points)
    residual: Array  # f - y: (..., points)


@dataclass(frozen=True)
class ChainField:
    """The right side of the flow (4) for any activation, on a fixed Gaussian rule."""

    activation: Activation
    width: int
    beta: float
    refinement: int = 0

    @cached_property
    def rule(self) -> GaussianRule:
        """Points and weights of the averages."""
        return gaussian_rule(self.activation, self.refinement)

    @cached_property
    def teacher(self) -> Array:
        """Y = beta sigma(g) at the points."""
        return np.asarray(self.beta * self.activation.value(self.rule.points))

    def refined(self) -> ChainField:
        """The same flow on a finer rule that also reaches further out."""
        return ChainField(self.activation, self.width, self.beta, self.refinement + 1)

    def passage(self, X: Array) -> Passage:
        """Everything that the flow, the loss and the imbalances are averages of."""
        layers = X.shape[-1]
        points = self.rule.points
        inputs = np.empty((*X.shape[:-1], layers - 1, len(points)))
        outputs = np.empty((*X.shape[:-1], layers, len(points)))
        outputs[..., 0, :] = points
        for layer in range(layers - 1):
            inputs[..., layer, :] = X[..., layer, None] * outputs[..., layer, :]
            if not np.abs(inputs[..., layer, :]).max() < _LARGEST_INPUT:
                raise NotSupportedError(
                    f"the Gaussian averages of the flow of {self.activation.label} overflow: through so many layers "
                    "a growing polynomial is dominated by inputs that never occur; use a bounded activation or less "
                    "depth."
                )
            outputs[..., layer + 1, :] = self.activation.value(inputs[..., layer, :])
        slopes = self._slopes(inputs)
        above = np.empty_like(outputs)
        above[..., -1, :] = math.sqrt(self.width)
        for layer in range(layers - 1, 0, -1):
            above[..., layer - 1, :] = above[..., layer, :] * X[..., layer, None] * slopes[..., layer - 1, :]
        f = math.sqrt(self.width) * X[..., -1, None] * outputs[..., -1, :]
        return Passage(inputs, outputs, above, f - self.teacher)

    def rates(self, X: Array) -> Array:
        """dX/dt per reduced time (4), for states (..., L)."""
        way = self.passage(X)
        return self._correlate(-way.residual, way.outputs * way.above)

    def drive(self, X: Array) -> Array:
        """E[y df/dX_l], the part of the rates that the teacher drives: the measure of their rounding errors."""
        way = self.passage(X)
        return self._correlate(np.broadcast_to(self.teacher, way.residual.shape), way.outputs * way.above)

    def loss(self, X: Array) -> Array:
        """E[(f - y)^2] / 2."""
        return np.asarray(0.5 * self.passage(X).residual ** 2 @ self.rule.weights)

    def imbalance_rates(self, X: Array) -> Array:
        """d(X_{l+1}^2 - X_l^2)/dt, l = 1..L-1, by the identity (2): 2 E[(f - y) above_{l+1} X_{l+1} phi(c_l)]."""
        way = self.passage(X)
        phi = way.inputs * self._slopes(way.inputs) - way.outputs[..., 1:, :]
        return 2 * X[..., 1:] * self._correlate(way.residual, way.above[..., 1:, :] * phi)

    def quadrature_error(self, X: Array) -> float:
        """How far the rates are from those on a finer rule, relative to what drives them."""
        finer = self.refined()
        wrong = np.abs(self.rates(X) - finer.rates(X))
        size = np.abs(finer.drive(X)) + np.abs(finer.rates(X))
        moving = size > 1e-14 * size.max(axis=-1, keepdims=True)
        return float(np.max(np.where(moving, wrong / np.maximum(size, np.finfo(float).tiny), 0.0)))

    def _slopes(self, inputs: Array) -> Array:
        """sigma' at the inputs; a user's function is differentiated much faster at more than 256 points."""
        copies = 1 + _FEW // inputs.size if self.activation.strip_is_measured else 1
        return np.asarray(self.activation.derivative(np.broadcast_to(inputs, (copies, *inputs.shape)), 1)[0])

    def _correlate(self, error: Array, slopes: Array) -> Array:
        return np.asarray((slopes * error[..., None, :]) @ self.rule.weights)
