"""neural-tangents: ⟨σσ⟩ and ⟨σ'σ'⟩ of all pairs from one covariance.

A layer's `kernel_fn` maps (nngp, ntk) to (⟨σσ⟩, ntk·⟨σ'σ'⟩); an input ntk of ones leaves ⟨σ'σ'⟩.
The Kernel object is built here, so no Gram matrix of inputs is inside the clock.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from neural_tangents import stax
from neural_tangents._src.utils.kernel import Kernel

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "tanh": jnp.tanh,
    "erf": jax.scipy.special.erf,
    "relu": jax.nn.relu,
    "gelu": lambda z: jax.nn.gelu(z, approximate=False),
    "mish": lambda z: z * jnp.tanh(jax.nn.softplus(z)),
}


def _erf_pair(covariance: Any, first: Any, second: Any) -> Any:
    ratio = 2 * covariance / jnp.sqrt((1 + 2 * first) * (1 + 2 * second))
    return jnp.arcsin(ratio) * 2 / np.pi


def layer(options: Mapping[str, Any]) -> Any:
    """The layer that `options` names: route "closed", "autodiff" or "numerical", and an activation."""
    name = options["activation"]
    if options["route"] == "closed":
        return {"erf": stax.Erf, "relu": stax.Relu, "gelu": stax.Gelu}[name]()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if options["route"] == "autodiff":
            return stax.Elementwise(FUNCTIONS[name], {"erf": _erf_pair}[name])
        return stax.ElementwiseNumerical(FUNCTIONS[name], deg=options["degree"])


def _kernel(K: Any) -> Any:
    shape = (K.shape[0], 1)
    return Kernel(
        nngp=K,
        ntk=jnp.ones_like(K),
        cov1=jnp.diag(K),
        cov2=None,
        x1_is_x2=jnp.array(True),
        is_gaussian=True,
        is_reversed=False,
        is_input=False,
        diagonal_batch=True,
        diagonal_spatial=False,
        shape1=shape,
        shape2=shape,
        batch_axis=0,
        channel_axis=1,
    )


def pairs(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    """Both kernels of one activation; the first call compiles."""
    _, _, kernel_fn = layer(options)
    given = jax.block_until_ready(_kernel(jnp.asarray(arrays["K"])))

    def both(kernel: Any) -> dict[str, Any]:
        out = kernel_fn(kernel)
        return {"value": out.nngp, "derivative": out.ntk}

    compiled = jax.jit(both)

    def run() -> Mapping[str, Any]:
        done: Mapping[str, Any] = jax.block_until_ready(compiled(given))
        return done

    return run
