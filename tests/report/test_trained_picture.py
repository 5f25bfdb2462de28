from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.trained import compare_trained, compare_trained_finite
from foretrain.report.trained import finite_figure, trained_figure

MLP = ft.MLP("tanh", depth=2, width=16, C_b=0.2, C_W=1.5)


@pytest.fixture(scope="module")
def on_a_line() -> object:
    tests = np.linspace(-1.0, 1.5, 4)[::-1, None]
    return compare_trained(MLP, [[1.0], [-0.6]], [0.5, -0.3], tests, draws=100).to_dataset()


def test_a_function_of_one_variable_is_drawn_with_its_band(on_a_line) -> None:
    panels = trained_figure([on_a_line]).axes
    assert len(panels) == 3
    mean = panels[0].get_lines()[0]
    np.testing.assert_allclose(np.asarray(mean.get_xdata()), np.linspace(-1.0, 1.5, 4))
    np.testing.assert_allclose(np.asarray(mean.get_ydata()), on_a_line.predicted_mean.values[::-1, 0])
    assert panels[1].get_xscale() == "log"
    assert "agrees" in panels[2].get_title()


def test_scores_are_those_of_the_entries(on_a_line) -> None:
    panel = trained_figure([on_a_line]).axes[2]
    drawn = np.concatenate([np.asarray(line.get_ydata()) for line in panel.get_lines()[:2]])
    np.testing.assert_allclose(drawn, on_a_line.z.values)


def test_other_inputs_are_drawn_against_the_prediction(on_a_line) -> None:
    data = compare_trained(
        MLP.replace(n_out=2), np.eye(3)[:2], [[0.5, 1.0], [0.2, -0.3]], np.eye(3), draws=100, learner="bayes"
    ).to_dataset()
    figure = trained_figure([data, on_a_line])
    assert len(figure.axes) == 6
    assert figure.axes[0].get_title() == "outputs on 3 test inputs"


@pytest.mark.slow
def test_the_order_of_one_over_the_width_is_drawn_over_it() -> None:
    mlp = ft.MLP("sin", depth=2, width=16, C_b=0.1, C_W=1.3)
    tests = [[0.4, -0.3], [-1.0, 0.2]]
    found = compare_trained_finite(mlp, np.eye(2), [0.5, -0.3], tests, widths=(16, 32, 64), draws=800)
    data = found.to_dataset()
    widths, beside, scores = finite_figure([data]).axes
    labels = widths.get_legend_handles_labels()[1]
    assert len(labels) == len(found.observables) + 1
    assert all(label in data.entry.values for label in labels if label != "theory")
    drawn = np.concatenate([np.asarray(lines[0].get_ydata()) for lines in beside.containers])
    sizes = np.repeat(
        [np.abs(found.theory[found.of(name)]).max() for name in found.observables],
        [found.of(name).sum() for name in found.observables],
    )
    np.testing.assert_allclose(drawn, found.limit / sizes)
    shown = np.concatenate(
        [np.asarray(line.get_ydata()) for line in scores.get_lines()[: len(found.observables)]]
    )
    np.testing.assert_allclose(shown, found.z[np.isfinite(found.z)])
