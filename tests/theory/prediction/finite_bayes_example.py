"""The worked example of Bayesian learning at finite width: two observed inputs, one test input, two outputs."""

from __future__ import annotations

import numpy as np

import foretrain as ft

FIRST = np.array([[1, 0.5, -0.3], [0.5, 0.8, 0.2], [-0.3, 0.2, 1.2]])
INPUTS = np.linalg.cholesky((FIRST - 0.1) / 1.5) * np.sqrt(3)
TRAIN, TEST = INPUTS[:2], INPUTS[2:]
TARGETS = np.array([(0.7, -0.4), (0.2, 0.9)]).T
MLP = ft.MLP("tanh", depth=3, width=64, n_out=2, C_b=0.1, C_W=1.5)
UNEQUAL = ft.MLP("gelu", 4, [300, 150, 240], n_out=2, C_b=(0.1, 0.2, 0.05, 0.1), C_W=(1.2, 1.7, 1.9, 1.4))
"""A network in which every layer differs, for three observed inputs."""

LOG_EVIDENCE = -4.504691324, -3.672560350
MEAN = np.array([-0.461599479, 0.506881227]), np.array([0.352063599, 0.264170558])
WIRED_MEAN = np.array([0.526869897, -0.004178676])
COVARIANCE = 0.475737677, -1.494715315
WIRING = np.array([[1.839399705, -1.023924756], [-1.023924756, 1.071173719]])
SHIFT_3 = np.array([-0.327556928, -1.288818027, -0.434106173, -0.151413940, 0.438575871, 0.158907777])
SHIFT_2 = np.array([-0.202453209, -0.831383917, -0.261368879, -0.127155551, 0.340699438, 0.137712489])
"""Infinite width and coefficient of 1/n; shifts of entries 00, 01, 02, 11, 12, 22."""
