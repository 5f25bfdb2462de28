"""Figures 5.1 to 5.3: published numbers hold, curves are what they say, pictures draw."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.experiments import get
from foretrain.theory.criticality import susceptibility

NAMES = ("critical-lines", "ratio-without-criticality", "ratio-half-stable")


@pytest.mark.parametrize("name", NAMES)
def test_published_numbers_hold_and_the_picture_draws(name: str) -> None:
    result = get(name).run()
    assert all(row.agrees is True for row in result.table if not row.disputed)
    refuted = [row.quantity for row in result.table if row.agrees is False]
    footnote = ["gelu: trivial fixed point nearby, as in the footnote"]
    assert refuted == (footnote if name == "ratio-half-stable" else [])
    assert result.figure is not None
    result.plot()


def test_susceptibilities_are_one_on_their_lines() -> None:
    data = get("critical-lines").run().data
    middle = data.isel(K=len(data.K) // 2)
    K = float(middle.K)
    assert susceptibility("tanh", K, float(middle.C_W_perpendicular)).perpendicular == pytest.approx(
        1, abs=1e-12
    )
    assert susceptibility("tanh", K, float(middle.C_W_parallel)).parallel == pytest.approx(1, abs=1e-12)


def test_curves_cross_one_where_the_critical_points_are() -> None:
    data = get("ratio-half-stable").run().data
    for name, K_star in (("swish", 14.320173618), ("gelu", (3 + np.sqrt(17)) / 2)):
        excess = data.ratio.sel(activation=name) - 1
        below = excess.isel(kernel=np.searchsorted(data.kernel, K_star) - 1)
        above = excess.isel(kernel=np.searchsorted(data.kernel, K_star))
        assert float(below) * float(above) < 0
