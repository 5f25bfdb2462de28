"""Sine and cosine, the activations all of whose Gaussian integrals are elementary."""

from __future__ import annotations

from functools import partial

import numpy as np

from foretrain.activations._activation import Activation, Array


def sinusoid(z: Array, order: int, quarter_turns: int) -> Array:
    """sin(z + quarter_turns pi/2) and its derivatives, each one quarter turn further."""
    turns = (order + quarter_turns) % 4
    wave = np.sin(z) if turns % 2 == 0 else np.cos(z)
    return wave if turns < 2 else -wave


def sin() -> Activation:
    """(2.12)."""
    return Activation(
        "sin", "sin(z)", partial(sinusoid, quarter_turns=0), ("sin",), parity="odd", closed_form="sine"
    )


def cos() -> Activation:
    """The even partner of the sine."""
    return Activation(
        "cos", "cos(z)", partial(sinusoid, quarter_turns=1), ("cos",), parity="even", closed_form="sine"
    )
