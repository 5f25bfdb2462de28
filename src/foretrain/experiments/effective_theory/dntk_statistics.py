"""The differentials of the tangent kernel of random networks (sections 11.2, ∞.1), and their growth with depth.

P and Q of the dNTK and R, S, T, U of the ddNTKs of two inputs are extrapolated from three widths and put beside the
recursions; the ratios (11.62), (∞.21) of one input are followed to great depth. Of activations whose slope jumps the
ddNTKs are left out.
"""

from __future__ import annotations

from foretrain.experiments.effective_theory.tensor_statistics import Plan, statistics
from foretrain.experiments.registry import Result, plans
from foretrain.theory.asymptotics import dntk_laws

_ALL, _FIRST = ("P", "Q", "R", "S", "T", "U"), ("P", "Q")
_CLASSES = ("relu", "linear", "tanh", "sin")
PLANS = plans(
    quick=Plan({"relu": _FIRST, "tanh": _ALL, "gelu": _ALL}, 3, 32, 3_000, 3_000),
    paper=Plan({"relu": _FIRST, **dict.fromkeys(("tanh", "sin", "gelu"), _ALL)}, 4, 48, 20_000, 10_000),
)
_TITLE = "Differentials of the tangent kernel: random networks, and growth with depth"


def dntk_statistics(plan: Plan, seed: int) -> Result:
    """P, Q and R to U against random networks, and depth laws of their ratios."""
    return statistics("P, Q and R to U", _TITLE, plan, seed, dntk_laws, _CLASSES)
