from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.trained import compare_trained
from foretrain.report.trained import draw_trained

MLP = ft.MLP("tanh", depth=2, width=16, C_b=0.2, C_W=1.5)


@pytest.fixture(scope="module")
def on_a_line() -> object:
    tests = np.linspace(-1.0, 1.5, 4)[::-1, None]
    return compare_trained(MLP, [[1.0], [-0.6]], [0.5, -0.3], tests, draws=100).to_dataset()


def test_a_function_of_one_variable_is_drawn_with_its_band(on_a_line) -> None:
    panels = draw_trained([on_a_line]).axes
    assert len(panels) == 3
    mean = panels[0].get_lines()[0]
    np.testing.assert_allclose(np.asarray(mean.get_xdata()), np.linspace(-1.0, 1.5, 4))
    np.testing.assert_allclose(np.asarray(mean.get_ydata()), on_a_line.predicted_mean.values[::-1, 0])
    assert panels[1].get_xscale() == "log"
    assert "agrees" in panels[2].get_title()


def test_scores_are_those_of_the_entries(on_a_line) -> None:
    panel = draw_trained([on_a_line]).axes[2]
    drawn = np.concatenate([np.asarray(line.get_ydata()) for line in panel.get_lines()[:2]])
    np.testing.assert_allclose(drawn, on_a_line.z.values)


def test_other_inputs_are_drawn_against_the_prediction(on_a_line) -> None:
    data = compare_trained(
        MLP.replace(n_out=2), np.eye(3)[:2], [[0.5, 1.0], [0.2, -0.3]], np.eye(3), draws=100, learner="bayes"
    ).to_dataset()
    figure = draw_trained([data, on_a_line])
    assert len(figure.axes) == 6
    assert figure.axes[0].get_title() == "outputs on 3 test inputs"
