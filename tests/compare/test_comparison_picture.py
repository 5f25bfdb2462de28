from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.initial import compare_initial
from foretrain.compare.pictures import comparison_figure
from foretrain.support.answers import figure as marks

X = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])


@pytest.fixture(scope="module")
def datasets() -> list:
    plain = compare_initial(ft.MLP("tanh", depth=4, width=24), X, draws=1000, method="conditional")
    residual = compare_initial(
        ft.MLP("relu", depth=4, width=24, gamma=0.5), X, draws=1000, method="conditional"
    )
    return [plain.to_dataset(), residual.to_dataset()]


@pytest.mark.slow
def test_a_row_of_panels_for_each_activation(datasets: list) -> None:
    figure = comparison_figure(datasets[:1])
    titles = [panel.title for panel in figure.panels]
    assert len(titles) == 5
    assert titles[3] == "V over theory, layer 4, against $1/n$"
    assert titles[4].endswith("independent z-scores")
    assert figure.panels[0].y.label == "tanh"


def test_points_and_lines_are_the_data(datasets: list) -> None:
    data = datasets[0]
    panel = comparison_figure([data]).panels[1]
    chosen = data.isel(entry=(data.observable.values == "V") & (data.inputs.values == "0 0 0 0"))
    line, points = [mark for mark in panel.marks if isinstance(mark, marks.Curve)][:2]
    np.testing.assert_allclose(line.y, chosen.theory)
    np.testing.assert_allclose(points.y, chosen.limit)
    np.testing.assert_allclose(points.error, chosen.standard_error)


def test_the_quadratic_ends_at_the_limit(datasets: list) -> None:
    data = datasets[0]
    lines = [mark for mark in comparison_figure([data]).panels[3].marks if isinstance(mark, marks.Curve)]
    curves = [line for line in lines if len(line.x) == 60]
    diamonds = [line for line in lines if line.marker == "D"]
    assert len(curves) == len(diamonds) == 3
    for curve, diamond in zip(curves, diamonds, strict=True):
        assert curve.y[0] == pytest.approx(diamond.y[0], rel=1e-9)


def test_activations_with_different_observables_share_a_figure(datasets: list) -> None:
    figure = comparison_figure(datasets)
    assert figure.layout == "ABCDE FGHIJ"
    assert [panel.y.label for panel in figure.panels if panel.y.label] == ["tanh", "relu"]


def test_what_the_theory_says_is_zero_has_no_share_of_it() -> None:
    found = ft.compare(ft.MLP("relu", depth=3, width=16, C_W=2.0), X, ["P"], draws=2000, seed=1)
    titles = [panel.title for panel in found.figure().panels]
    assert not any("over theory" in title for title in titles)
    assert len(found.plot().axes) == 2
