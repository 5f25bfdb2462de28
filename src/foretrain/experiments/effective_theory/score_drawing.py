"""How z-scores are shown: their histogram beside the standard normal law."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.judging.agreement import largest_score_allowed
from foretrain.support.drawing import INK, SKY

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_scores(panel: Axes, scores: NDArray[np.float64], title: str, note: str = "") -> None:
    """All scores, those beyond the 1 % bound at its place, and a few words in the corner."""
    bound = largest_score_allowed(scores.size)
    edges, grid = np.linspace(-bound, bound, 27), np.linspace(-bound, bound, 201)
    panel.hist(np.clip(scores, -bound, bound), list(edges), density=True, color=SKY, edgecolor="white")
    panel.plot(grid, np.exp(-0.5 * grid**2) / np.sqrt(2 * np.pi), color=INK, linewidth=1.8, label="N(0, 1)")
    panel.text(0.03, 0.97, note, transform=panel.transAxes, va="top", fontsize=9)
    panel.set(xlabel="z: (measured − theory) / standard error", ylabel="density")
    panel.set_title(title, fontsize=11)
    panel.legend(frameon=False, fontsize=9, loc="upper right")
