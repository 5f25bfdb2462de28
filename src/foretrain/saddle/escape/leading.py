"""Leading order in small scales: X_i^2 - X_j^2 are conserved, and time is the quadrature (10)."""

from __future__ import annotations

from numpy.typing import ArrayLike

from foretrain.saddle.escape.transit import transit_time
from foretrain.saddle.parameters import check_positive, check_scales, check_threshold


def leading_time(K: float, scales: ArrayLike, threshold: float = 1.0) -> float:
    """int dU / (K sqrt(prod_{l>=2} (U^2 + D_l))) from X_1(0) to the threshold (10), in the unit of 1/K.

    D_l = X_l(0)^2 - X_1(0)^2 may have any sign. One scale may be zero; with two the time is infinite.

    >>> round(leading_time(0.5, [0.1, 0.1, 0.1]), 10)
    18.0
    """
    checked = check_scales(scales)
    return transit_time(check_positive(K, "K"), checked, check_threshold(threshold, checked))
