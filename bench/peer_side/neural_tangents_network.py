"""neural-tangents: the kernel of a deep fully connected network, from its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from neural_tangents import stax

from bench.peer_side.neural_tangents_pairs import layer


def network(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    """K of the last layer; the first call compiles."""
    dense = stax.Dense(1, W_std=float(np.sqrt(options["C_W"])), b_std=float(np.sqrt(options["C_b"])))
    layers = [dense]
    for _ in range(options["depth"] - 1):
        layers += [layer(options), dense]
    _, _, kernel_fn = stax.serial(*layers)
    inputs = jax.block_until_ready(jnp.asarray(arrays["X"]))
    compiled = jax.jit(lambda X: kernel_fn(X, None, "nngp"))

    def run() -> Mapping[str, Any]:
        return {"K": jax.block_until_ready(compiled(inputs))}

    return run
