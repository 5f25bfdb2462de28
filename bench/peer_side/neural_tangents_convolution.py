"""neural-tangents: NNGP and NTK of convolutional networks, from images to the two matrices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import enable_x64
from neural_tangents import stax


def convolutional(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    """Kernels of images (N, rows, columns, channels) by a plain or residual network; the first call compiles."""
    scale = {"W_std": float(np.sqrt(options["C_W"])), "b_std": float(np.sqrt(options["C_b"]))}

    def conv(stride: int = 1) -> Any:
        return stax.Conv(1, (3, 3), (stride, stride), padding="SAME", **scale)

    if options["residual"]:
        layers = [conv()]
        for _ in range(options["depth"]):
            branch = stax.serial(stax.Relu(), conv(), stax.Relu(), conv())
            layers.append(
                stax.serial(stax.FanOut(2), stax.parallel(stax.Identity(), branch), stax.FanInSum())
            )
        layers.append(stax.Relu())
    else:
        layers = [layer for _ in range(options["depth"]) for layer in (conv(), stax.Relu())]
    head = stax.GlobalAvgPool() if options["head"] == "pooling" else stax.Flatten()
    _, _, kernel_fn = stax.serial(*layers, head, stax.Dense(1, **scale))
    compiled = jax.jit(lambda x: tuple(kernel_fn(x, None, ("nngp", "ntk"))))

    def run() -> Mapping[str, Any]:
        with enable_x64():
            nngp, ntk = jax.block_until_ready(compiled(jnp.asarray(arrays["x"], "float64")))
            return {"nngp": np.asarray(nngp), "ntk": np.asarray(ntk)}

    return run
