"""Plain torch networks with the parameters of an ensemble."""

from __future__ import annotations

import numpy as np

import foretrain as ft
from foretrain.compare.build import Network, build
from foretrain.compare.trained.networks import draw_networks


def loaded(mlp: ft.MLP, draws: int, seed: int, *, mirrored: bool = False) -> list[Network]:
    """The networks that ``train_ensemble`` and ``two_step_ensemble`` draw with a seed."""
    stack = draw_networks(mlp, range(draws), np.random.SeedSequence(seed, spawn_key=(0,)), mirrored=mirrored)
    found = []
    for place in range(draws):
        found.append(build(mlp))
        for linear, weights, biases in zip(found[-1].layers, stack.weights, stack.biases, strict=True):
            linear.load_state_dict({"weight": weights[place], "bias": biases[place, :, 0]})
    return found
