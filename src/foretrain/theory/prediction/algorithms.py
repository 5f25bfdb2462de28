"""Names of the algorithms that train networks, and which of them are known where."""

from __future__ import annotations

from typing import Literal

Descent = Literal["gradient_descent", "flow"]
"""In steps or in continuous time: what has a rate, and may be stopped before its end."""
InfiniteAlgorithm = Literal[Descent, "newton"]
"""Of squared errors at infinite width."""
FiniteAlgorithm = Literal[Descent, "two_step"]
"""Of squared errors at finite width, where the end depends on the algorithm."""
Algorithm = Literal[Descent, "two_step", "newton"]
"""All of them."""
