"""The network and the data of the reference's test values."""

from __future__ import annotations

import numpy as np

import foretrain as ft

X = 1.3 * np.array([(1, 0.2, -0.5), (-0.4, 1.1, 0.3), (0.1, -0.6, 1.2), (0.8, 0.7, 0.1), (-0.9, 0.3, 0.8)])
Y = np.array([(1, -0.5), (-0.7, 0.8), (0.4, 1.2)])
TANH = ft.MLP(
    "tanh",
    depth=3,
    width=100,
    n_out=2,
    C_b=[0.1, 0.1, 0.05],
    C_W=[1.2, 1.3, 1.0],
    lambda_b=[0.2, 0.3, 0.1],
    lambda_W=[0.6, 0.8, 0.5],
)
