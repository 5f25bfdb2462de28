"""Mean, shift and fluctuations of the tangent kernel of random networks and their depth laws (chapters 8, 9).

Theta, H1, D, F, A and B of two inputs in critical networks of three widths are extrapolated to infinite width and put
beside the recursions; the ratios (9.23)-(9.25) of one input are followed to great depth, class by class.
"""

from __future__ import annotations

from foretrain.experiments.effective_theory.tensor_statistics import Plan, statistics
from foretrain.experiments.registry import Result, plans
from foretrain.theory.asymptotics import ntk_laws

_NAMES = ("Theta", "H1", "D", "F", "A", "B")
_CLASSES = ("linear", "relu", "tanh", "sin")
PLANS = plans(
    quick=Plan(dict.fromkeys(("relu", "tanh", "gelu"), _NAMES), 4, 32, 7_000, 3_000),
    paper=Plan(dict.fromkeys(("relu", "tanh", "sin", "gelu", "swish"), _NAMES), 5, 48, 60_000, 10_000),
)
_TITLE = "The tangent kernel of random networks: mean, shift, fluctuations, and their growth with depth"


def ntk_statistics(plan: Plan, seed: int) -> Result:
    """Theta, H1, D, F, A, B against random networks, and depth laws of their ratios."""
    return statistics("Θ, H1, D, F, A and B", _TITLE, plan, seed, ntk_laws, _CLASSES)
