"""What every layer and parameter group contributes to the tangent kernel of the output, and whether that is fair.

The infinite-width tangent kernel is a sum over layers and groups (9.28): biases of layer l give lambda_b P and its
weights lambda_W G P, with the signals G = <s s> of the layer before (x.x / n_0 at layer 1) and the growth
P = prod (gamma^2 + C_W <s' s'>) from layer l to the output, entry by entry in the inputs. The equivalence principle
asks that all of them be of the same order (section 9.4).

``shares``         the terms and their part of the whole
``equivalence``    how they scale with the layer, and a verdict
``gradients``      the factors of a gradient that may explode or vanish (9.87)-(9.93)
``diagonal``       G, P and both susceptibilities of each input with itself; ``contributions`` makes the terms of them
"""

from foretrain.theory.ntk_shares.fairness import Equivalence, GroupScaling, equivalence
from foretrain.theory.ntk_shares.terms import (
    GROUPS,
    Diagonal,
    Factors,
    contributions,
    diagonal,
    gradients,
    shares,
)

__all__ = [
    "GROUPS",
    "Diagonal",
    "Equivalence",
    "Factors",
    "GroupScaling",
    "contributions",
    "diagonal",
    "equivalence",
    "gradients",
    "shares",
]
