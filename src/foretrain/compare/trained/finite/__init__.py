"""The order 1/n beside trained networks: what finite width does to predictions, measured and from theory.

``entry``        ``compare_trained_finite``: several widths, everything times n, extrapolated to 1/n = 0
``goal``         the prediction to order 1/n and the training that it is about; ``posterior`` the same of inference
``statistics``   what trained networks say, in batches; ``two_step`` networks trained in two updates
``comparison``   what is found; ``entries`` the numbers that are compared
"""

from foretrain.compare.trained.finite.comparison import FiniteComparison
from foretrain.compare.trained.finite.entry import compare_trained_finite

__all__ = ["FiniteComparison", "compare_trained_finite"]
