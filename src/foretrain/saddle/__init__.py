"""Escape from the saddle at small initialization (Rawal & DeWeese): how long is the plateau?

Around zero weights, gradient flow of a deep network on a teacher beta sigma(v . x) is so slow that training looks
stuck. On the symmetric manifold it reduces to one amplitude X_l for each layer, and

``classify``       the class of an activation (A linear, B odd, C quadratic, D not centred) and its numbers
``coupling``       K, the rate constant of the plateau, in matrix time s or reduced time t = s / N
``escape_time``    when X_1 reaches a threshold: leading order, first correction, or the exact scalar flow
``escape_times``   a labelled array over epsilon, depth, bottleneck and method; ``escape_table``  the same as a result
``reduced_flow``   trajectories of the exact scalar flow
``collapse``       K t of several activations beside each other

``modes``          several teacher directions at once: laws, the exact block flow, closures, homotopy

Closed forms: ``balanced_time`` (11), ``critical_depth_time`` (12), ``shell_time`` (36), ``balanced_expansion``.
The paper's own coefficients: ``escape_time(..., method="corrected", source="paper")``, ``printed_expansion``.
"""

from foretrain.saddle import modes
from foretrain.saddle.classes import SaddleClass, centred, classify, coupling
from foretrain.saddle.corrected import (
    BalancedExpansion,
    balanced_coefficient,
    balanced_expansion,
    normal_form,
    printed_expansion,
    printed_lambda,
    square_differences,
)
from foretrain.saddle.escape import EscapeTable, collapse, escape_table, escape_time, escape_times
from foretrain.saddle.leading import ShellTime, balanced_time, critical_depth_time, leading_time, shell_time
from foretrain.saddle.parameters import bottleneck_scales
from foretrain.saddle.reduced_flow import reduced_flow
from foretrain.saddle.scalar_flow import ChainField

__all__ = [
    "BalancedExpansion",
    "ChainField",
    "EscapeTable",
    "SaddleClass",
    "ShellTime",
    "balanced_coefficient",
    "balanced_expansion",
    "balanced_time",
    "bottleneck_scales",
    "centred",
    "classify",
    "collapse",
    "coupling",
    "critical_depth_time",
    "escape_table",
    "escape_time",
    "escape_times",
    "leading_time",
    "modes",
    "normal_form",
    "printed_expansion",
    "printed_lambda",
    "reduced_flow",
    "shell_time",
    "square_differences",
]
