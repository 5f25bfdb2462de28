from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.initial import compare_initial
from foretrain.report.comparison import comparison_figure

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
    titles = [panel.get_title() for panel in figure.axes]
    assert len(titles) == 5
    assert titles[3] == "V over theory, layer 4, against $1/n$"
    assert titles[4].endswith("independent z-scores")
    assert figure.axes[0].get_ylabel() == "tanh"


def test_points_and_lines_are_the_data(datasets: list) -> None:
    data = datasets[0]
    panel = comparison_figure([data]).axes[1]
    chosen = data.isel(entry=(data.observable.values == "V") & (data.inputs.values == "0 0 0 0"))
    line, points = panel.get_lines()[:2]
    np.testing.assert_allclose(np.asarray(line.get_ydata(), dtype=float), chosen.theory)
    np.testing.assert_allclose(np.asarray(points.get_ydata(), dtype=float), chosen.limit)


def test_the_quadratic_ends_at_the_limit(datasets: list) -> None:
    data = datasets[0]
    panel = comparison_figure([data]).axes[3]
    curves = [line for line in panel.get_lines() if len(line.get_xdata()) == 60]
    diamonds = [line for line in panel.get_lines() if line.get_marker() == "D"]
    assert len(curves) == len(diamonds) == 3
    for curve, diamond in zip(curves, diamonds, strict=True):
        assert curve.get_ydata()[0] == pytest.approx(diamond.get_ydata()[0], rel=1e-9)


def test_activations_with_different_observables_share_a_figure(datasets: list) -> None:
    figure = comparison_figure(datasets)
    assert len(figure.axes) == 2 * 6
    shown = [panel.axison for panel in figure.axes]
    assert shown == [True, True, True, False, True, True, True, True, False, True, True, True]
