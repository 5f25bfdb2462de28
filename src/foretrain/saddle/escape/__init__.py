"""Escape times: leading order, first correction, exact scalar flow, closed forms, the paper's own coefficients.

``entry``         escape_time, which chooses among the methods; ``table``  many of them, labelled
``leading``       quadrature (10); ``transit``  how it and the corrected one are computed
``closed_forms``  balanced layers (11), critical depth (12), shells (36)
``corrected``     first-order flow (24) and its balanced expansions; ``paper``  the printed coefficients (30)-(33)
``reduced``       the exact scalar flow
"""

from foretrain.saddle.escape.closed_forms import (
    ShellTime,
    balanced_time,
    critical_depth_time,
    leading_time,
    shell_time,
)
from foretrain.saddle.escape.corrected import (
    BalancedExpansion,
    balanced_coefficient,
    balanced_expansion,
    printed_expansion,
    printed_lambda,
)
from foretrain.saddle.escape.entry import escape_time
from foretrain.saddle.escape.table import EscapeTable, escape_table, escape_times

__all__ = [
    "BalancedExpansion",
    "EscapeTable",
    "ShellTime",
    "balanced_coefficient",
    "balanced_expansion",
    "balanced_time",
    "critical_depth_time",
    "escape_table",
    "escape_time",
    "escape_times",
    "leading_time",
    "printed_expansion",
    "printed_lambda",
    "shell_time",
]
