from __future__ import annotations

import numpy as np
import pytest

from foretrain.report.escape import escape_figure, trajectory_figure
from foretrain.saddle import escape_times, reduced_flow


@pytest.fixture(scope="module")
def table():  # type: ignore[no-untyped-def]
    return escape_times(
        "tanh", [0.03, 0.1], depth=[3, 4], bottleneck=[3, 4], threshold=0.3, formula=["leading", "corrected"]
    )


def test_the_curves_are_the_numbers_of_the_table(table) -> None:  # type: ignore[no-untyped-def]
    panel = escape_figure(table).axes[0]
    drawn = [line.get_ydata() for line in panel.lines if len(line.get_xdata())]
    assert len(drawn) == 3 * 2  # (3, 3), (4, 3), (4, 4); three layers cannot have four small ones
    np.testing.assert_allclose(drawn[0], table.sel(depth=3, bottleneck=3, formula="leading"))
    labels = panel.get_legend_handles_labels()[1]
    assert "L = 4, 4 small: ~ $ε^{-2}$" in labels
    assert "learning rate × steps" in panel.get_ylabel()


def test_with_a_learning_rate_the_axis_counts_steps(table) -> None:  # type: ignore[no-untyped-def]
    panel = escape_figure(table, 0.1).axes[0]
    np.testing.assert_allclose(
        panel.lines[0].get_ydata(), table.sel(depth=3, bottleneck=3, formula="leading") / 0.1
    )
    assert "steps" in panel.get_ylabel()


def test_a_trajectory_shows_every_layer_up_to_the_threshold() -> None:
    flow = reduced_flow("tanh", [0.1, 0.2, 0.3], threshold=0.4)
    panel = trajectory_figure(flow, 0.4).axes[0]
    assert len(panel.lines) == 4
    assert panel.lines[0].get_ydata()[-1] == pytest.approx(0.4, rel=1e-6)
