"""neural-tangents: the empirical tangent kernel of the networks of `torch_networks`, on the same weights.

The networks are plain jax functions. How weights enter them decides what structured derivatives make of them: a
matrix that enters a product directly is contracted by Grams, one that is transposed first by its per-sample
gradients. Each network has what is faster for it: the perceptron's matrices are handed over transposed, those shared
over positions are transposed inside the function.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial, reduce
from typing import Any

import jax
import jax.numpy as jnp
import neural_tangents as nt

Weights = Mapping[str, Any]


def _linear(weights: Weights, name: str, x: Any) -> Any:
    return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]


def perceptron(weights: Weights, x: Any, *, widths: list[int]) -> Any:
    """Takes its matrices transposed."""
    last = 2 * (len(widths) - 2)  # every second module of the sequence is a ReLU
    for index in range(0, last + 1, 2):
        x = x @ weights[f"{index}.weight"] + weights[f"{index}.bias"]
        x = jax.nn.relu(x) if index < last else x
    return x


def convolutional(weights: Weights, x: Any, *, channels: list[int], strides: list[int], outputs: int) -> Any:
    for index, stride in enumerate(strides):
        kernel, bias = weights[f"{2 * index}.weight"], weights[f"{2 * index}.bias"]
        x = jax.lax.conv_general_dilated(x, kernel, (stride, stride), [(1, 1), (1, 1)])
        x = jax.nn.relu(x + bias[:, None, None])
    return _linear(weights, str(2 * len(strides) + 2), x.mean((2, 3)))


def attention(weights: Weights, x: Any, *, width: int, heads: int, hidden: int, outputs: int) -> Any:
    def split(name: str, tokens: Any) -> Any:
        projected = _linear(weights, name, tokens)
        return projected.reshape(*projected.shape[:2], heads, width // heads).transpose(0, 2, 1, 3)

    normed = _layer_norm(weights, "attention_norm", x)
    query, key, value = (split(name, normed) for name in ("query", "key", "value"))
    scores = query @ key.transpose(0, 1, 3, 2) / (width // heads) ** 0.5
    attended = (jax.nn.softmax(scores) @ value).transpose(0, 2, 1, 3).reshape(x.shape)
    x = x + _linear(weights, "out", attended)
    expanded = _linear(weights, "expand", _layer_norm(weights, "feed_forward_norm", x))
    x = x + _linear(weights, "contract", jax.nn.gelu(expanded, approximate=False))
    return _linear(weights, "head", x.mean(1))


def _layer_norm(weights: Weights, name: str, x: Any, epsilon: float = 1e-5) -> Any:
    centred = x - x.mean(-1, keepdims=True)
    normed = centred / jnp.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return normed * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def recurrent(weights: Weights, x: Any, *, inputs: int, hidden: int, outputs: int) -> Any:
    """Steps in a compiled loop."""
    from_inputs, step = _steps(weights, x)
    state, _ = jax.lax.scan(lambda state, now: (step(state, now), None), _start(x, hidden), from_inputs)
    return _linear(weights, "head", state)


def unrolled_recurrent(weights: Weights, x: Any, *, inputs: int, hidden: int, outputs: int) -> Any:
    """Steps written out, because structured derivatives do not follow compiled loops."""
    from_inputs, step = _steps(weights, x)
    return _linear(weights, "head", reduce(step, list(from_inputs), _start(x, hidden)))


def _start(x: Any, hidden: int) -> Any:
    return jnp.zeros((x.shape[0], hidden), x.dtype)


def _steps(weights: Weights, x: Any) -> tuple[Any, Callable[[Any, Any], Any]]:
    """What the inputs give to each step, (T, N, 3 hidden), and the step itself."""
    from_inputs = x @ weights["gru.weight_ih_l0"].T + weights["gru.bias_ih_l0"]
    # Outside the step: a transposition at every step would take minutes to compile.
    matrix, bias = weights["gru.weight_hh_l0"].T, weights["gru.bias_hh_l0"][None]

    def step(state: Any, now: Any) -> Any:
        reset_x, update_x, new_x = jnp.split(now, 3, 1)
        reset_h, update_h, new_h = jnp.split(state @ matrix + bias, 3, 1)
        update = jax.nn.sigmoid(update_x + update_h)
        new = jnp.tanh(new_x + jax.nn.sigmoid(reset_x + reset_h) * new_h)
        return new + update * (state - new)

    return from_inputs.transpose(1, 0, 2), step


NETWORKS: dict[str, Callable[..., Any]] = {
    "perceptron": perceptron,
    "convolutional": convolutional,
    "attention": attention,
    "recurrent": recurrent,
}
FOR_STRUCTURED_DERIVATIVES = NETWORKS | {"recurrent": unrolled_recurrent}


def _handed_over(network: str, name: str, weight: Any) -> Any:
    transposed = network == "perceptron" and name.endswith(".weight")
    return jnp.asarray(weight.T.copy() if transposed else weight)


def tangent_kernel(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    """Θ of all pairs of inputs: (N, N, C, C), or (N, N) if its trace is asked for; the first call compiles.

    neural-tangents divides a trace by the number of outputs; the factor takes that back.
    """
    network = options["network"]
    weights = {name: _handed_over(network, name, value) for name, value in arrays.items() if name != "X"}
    inputs = jnp.asarray(arrays["X"])
    implementation = nt.NtkImplementation[options["implementation"]]
    structured = implementation is nt.NtkImplementation.STRUCTURED_DERIVATIVES
    networks = FOR_STRUCTURED_DERIVATIVES if structured else NETWORKS
    apply = partial(networks[network], **options["sizes"])
    trace = options["outputs"] == "trace"
    kernel = nt.empirical_ntk_fn(
        apply,
        trace_axes=(-1,) if trace else (),
        vmap_axes=0,
        implementation=implementation,
    )
    factor = jax.eval_shape(apply, weights, inputs).shape[-1] if trace else 1
    compiled = jax.jit(lambda x, w: kernel(x, None, w) * factor)

    def run() -> Mapping[str, Any]:
        return {"ntk": jax.block_until_ready(compiled(inputs, weights))}

    return run
