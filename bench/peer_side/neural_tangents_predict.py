"""neural-tangents: the trained ensemble of a deep fully connected network on test inputs, from its inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any

import jax
import jax.numpy as jnp
import neural_tangents as nt
import numpy as np
from jax.experimental import enable_x64
from neural_tangents import stax

from bench.peer_side.neural_tangents_pairs import layer


def prediction(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    """Mean and covariance on test inputs at the end of training (get="ntk") or of the posterior (get="nngp").

    Everything from the kernels on is in one compiled function; the first call compiles.
    """
    dense = stax.Dense(1, W_std=float(np.sqrt(options["C_W"])), b_std=float(np.sqrt(options["C_b"])))
    layers = [dense]
    for _ in range(options["depth"] - 1):
        layers += [layer(options), dense]
    _, _, kernel_fn = stax.serial(*layers)

    def whole(x_train: Any, y_train: Any, x_test: Any) -> Any:
        ensemble = nt.predict.gradient_descent_mse_ensemble(kernel_fn, x_train, y_train, diag_reg=0.0)
        return ensemble(x_test=x_test, get=options["get"], compute_cov=True)

    compiled = jax.jit(whole)
    precise = np.dtype(options["dtype"]) == np.float64

    def run() -> Mapping[str, Any]:
        with enable_x64() if precise else nullcontext():
            given = [jnp.asarray(arrays[name], options["dtype"]) for name in ("x_train", "y_train", "x_test")]
            found = jax.block_until_ready(compiled(*given))
            return {"mean": np.asarray(found.mean), "covariance": np.asarray(found.covariance)}

    return run
