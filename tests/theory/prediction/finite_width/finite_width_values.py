"""The data and the values of the reference: n times each term at the test input, by network and algorithm."""

from __future__ import annotations

import numpy as np

import foretrain as ft
from foretrain.theory.prediction.finite_width import FiniteWidth

X_TRAIN = np.array([(-0.1, -0.7), (2.1, 0.25)])
X_TEST = np.array([(-1.2, -0.95)])
Y = np.array([(-0.3,), (1.6,)])
Y_TWO = np.array([(-0.3, 0.8), (1.6, -0.5)])
RATES = {("sin", 2): 0.40263690, ("tanh", 3): 0.40939094}
INFINITE = {("sin", 2): -0.59940318, ("tanh", 3): -0.75247537}
VARIANCE = {("sin", 2): -0.31863683, ("tanh", 3): -0.33250362}
TERMS = {
    ("sin", 2, "gradient_descent"): (-0.22567594, -0.33243439, 0.15626180),
    ("sin", 2, "flow"): (-0.19586554, -0.32290333, 0.70180121),
    ("sin", 2, "two_step"): (-0.23129760, -0.25516035, 0.0),
    ("tanh", 3, "gradient_descent"): (-0.45028956, -1.8092364, 1.3995916),
    ("tanh", 3, "flow"): (-0.51335444, -1.8947719, 2.1214481),
    ("tanh", 3, "two_step"): (-0.31995696, -1.6013108, 0.0),
}
INTERACTION = ("dntk", "ddntk_1", "ddntk_2")
WIDTH = 100


def network(activation: str = "sin", depth: int = 2, width: int = WIDTH, outputs: int = 1) -> ft.MLP:
    return ft.MLP(activation, depth, width, n_out=outputs, C_b=0.1, C_W=1.3, lambda_b=0.5, lambda_W=1.0)


def ensemble(activation: str = "sin", depth: int = 2, width: int = WIDTH) -> FiniteWidth:
    return FiniteWidth.of(network(activation, depth, width), X_TRAIN, Y, X_TEST)
