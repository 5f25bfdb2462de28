"""Activations whose slope jumps: delta functions of their second derivative, and inputs that sit on a kink.

Those that integration by parts makes always stay. Those that stand in the forward equation (11.24) stay as well
(``"delta"``, the limit of smooth activations), or are left out (``"almost_everywhere"``, what automatic
differentiation of a network sees).

The tangent kernel of an input whose kernel is exactly zero, at a kink, is a convention.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from foretrain.activations import Activation
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, FloatArray

Kinks = Literal["delta", "almost_everywhere"]


def slope_jumps(activation: Activation) -> bool:
    """Whether the second derivative has delta functions; what is not known counts."""
    return any(kink.jump(order) != 0 for kink in activation.kinks for order in (0, 1))


def inputs_on_kinks(mlp: MLP, inputs: FloatArray) -> tuple[int, ...]:
    """Inputs with K = 0 in a hidden layer of an activation whose slope jumps at 0: theirs is a matter of convention.

    The tangent kernel then takes the limit K -> 0+ of <s' s'>, but networks the slope that they have at 0 itself.
    """
    at_zero = [jump for kink in mlp.activation.kinks if kink.location == 0 for jump in kink.jumps[:2]]
    if not any(jump != 0 for jump in at_zero):  # one that is not known, nan, counts
        return ()
    stays, found = float(mlp.activation(np.zeros(1))[0]) == 0, np.zeros(len(inputs), dtype=np.bool_)
    zero = mlp.C_b[0] + mlp.C_W[0] * (inputs**2).mean(axis=1) == 0
    for layer in mlp.layers[1:]:
        found |= zero & (layer.C_W != 0)
        fresh = (zero & stays) | (layer.C_W == 0)
        zero = fresh & (zero | (layer.gamma == 0)) & (layer.C_b == 0)
    return tuple(int(number) for number in np.flatnonzero(found))


def warn_of_kinks(mlp: MLP, numbers: Sequence[int], kind: str = "input") -> None:
    """One warning for inputs that :func:`inputs_on_kinks` found; ``kind`` names the set that numbers them."""
    if len(numbers):
        warn_user(
            f"the kernel of {kind} {', '.join(map(str, numbers))} is exactly zero, at the kink of "
            f"{mlp.activation.label}, where the tangent kernel is that of K -> 0+ and networks with the slope at 0 "
            "itself have another: leave the input out, or give C_b > 0."
        )
