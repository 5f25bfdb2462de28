from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.pictures import trained_figure
from foretrain.compare.trained import compare_trained, compare_trained_finite
from foretrain.support.answers.figure import Curve, Panel

MLP = ft.MLP("tanh", depth=2, width=16, C_b=0.2, C_W=1.5)


def curves(panel: Panel) -> list[Curve]:
    return [mark for mark in panel.marks if isinstance(mark, Curve)]


@pytest.fixture(scope="module")
def on_a_line() -> object:
    tests = np.linspace(-1.0, 1.5, 4)[::-1, None]
    return compare_trained(MLP, [[1.0], [-0.6]], [0.5, -0.3], tests, draws=100).to_dataset()


def test_a_function_of_one_variable_is_drawn_with_its_band(on_a_line) -> None:
    panels = trained_figure([on_a_line]).panels
    assert len(panels) == 3
    mean = curves(panels[0])[0]
    np.testing.assert_allclose(mean.x, np.linspace(-1.0, 1.5, 4))
    np.testing.assert_allclose(mean.y, on_a_line.predicted_mean.values[::-1, 0])
    assert panels[1].x.scale == "log"
    assert "agrees" in panels[2].title


def test_scores_are_those_of_the_entries(on_a_line) -> None:
    panel = trained_figure([on_a_line]).panels[2]
    np.testing.assert_allclose(np.concatenate([curve.y for curve in curves(panel)]), on_a_line.z.values)


def test_other_inputs_are_drawn_against_the_prediction(on_a_line) -> None:
    data = compare_trained(
        MLP.replace(n_out=2), np.eye(3)[:2], [[0.5, 1.0], [0.2, -0.3]], np.eye(3), draws=100, learner="bayes"
    ).to_dataset()
    figure = trained_figure([data, on_a_line])
    assert len(figure.panels) == 6
    assert figure.panels[0].title == "tanh: outputs on 3 test inputs"


def test_the_order_of_one_over_the_width_is_drawn_over_it() -> None:
    mlp = ft.MLP("sin", depth=2, width=16, C_b=0.1, C_W=1.3)
    tests = [[0.4, -0.3], [-1.0, 0.2]]
    found = compare_trained_finite(mlp, np.eye(2), [0.5, -0.3], tests, widths=(16, 32, 64), draws=800)
    widths, beside, scores = found.figure().panels
    labels = [curve.label for curve in curves(widths) if curve.label]
    assert len(labels) == len(found.observables)
    assert set(labels) <= set(found.to_dataset().entry.values)
    drawn = np.concatenate([curve.y for curve in curves(beside)[1:]])
    sizes = np.repeat(
        [np.abs(found.theory[found.of(name)]).max() for name in found.observables],
        [found.of(name).sum() for name in found.observables],
    )
    np.testing.assert_allclose(drawn, found.limit / sizes)
    shown = np.concatenate([curve.y for curve in curves(scores)])
    np.testing.assert_allclose(shown, found.z[np.isfinite(found.z)])
    assert len(found.plot().axes) == 3
