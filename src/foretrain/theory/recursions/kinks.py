"""Activations whose slope jumps, so that their second derivative has delta functions.

Those that integration by parts makes always stay. Those that stand in the forward equation (11.24) stay as well
(``"delta"``, the limit of smooth activations), or are left out (``"almost_everywhere"``, what automatic
differentiation of a network sees).
"""

from __future__ import annotations

from typing import Literal

from foretrain.activations import Activation

Kinks = Literal["delta", "almost_everywhere"]


def slope_jumps(activation: Activation) -> bool:
    """Whether the second derivative has delta functions; what is not known counts."""
    return any(kink.jump(order) != 0 for kink in activation.kinks for order in (0, 1))
