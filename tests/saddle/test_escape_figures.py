"""Pictures of escape times and of the way there."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.saddle import escape_times, reduced_flow
from foretrain.saddle.escape import escape_figure
from foretrain.saddle.reduced_flow import trajectory_figure
from foretrain.support.answers.figure import Curve


@pytest.fixture(scope="module")
def table():  # type: ignore[no-untyped-def]
    return escape_times(
        "tanh", [0.03, 0.1], depth=[3, 4], bottleneck=[3, 4], threshold=0.3, formula=["leading", "corrected"]
    )


def test_the_curves_are_the_numbers_of_the_table(table) -> None:  # type: ignore[no-untyped-def]
    (panel,) = escape_figure(table).panels
    drawn = [mark.y for mark in panel.marks if len(mark.x)]
    assert len(drawn) == 3 * 2  # (3, 3), (4, 3), (4, 4); three layers cannot have four small ones
    np.testing.assert_allclose(drawn[0], table.sel(depth=3, bottleneck=3, formula="leading"))
    assert "L = 4, 4 small: ~ $ε^{-2}$" in {mark.label for mark in panel.marks}
    assert "learning rate × steps" in panel.y.label


def test_with_a_learning_rate_the_axis_counts_steps(table) -> None:  # type: ignore[no-untyped-def]
    (panel,) = escape_figure(table, 0.1).panels
    first = next(mark for mark in panel.marks if len(mark.x))
    np.testing.assert_allclose(first.y, table.sel(depth=3, bottleneck=3, formula="leading") / 0.1)
    assert "steps" in panel.y.label


def test_a_trajectory_shows_every_layer_up_to_the_threshold() -> None:
    (panel,) = trajectory_figure(reduced_flow("tanh", [0.1, 0.2, 0.3], threshold=0.4), 0.4).panels
    curves = [mark for mark in panel.marks if isinstance(mark, Curve)]
    assert len(curves) == 3
    assert curves[0].y[-1] == pytest.approx(0.4, rel=1e-6)
