"""Pictures of predictions: what is drawn, for every kind of data."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure

from foretrain.report.prediction import prediction_figure


def data(components: int, outputs: int, given: bool = True, tests: int = 7) -> xr.Dataset:
    rng = np.random.default_rng(0)
    arrays = {
        "mean": (("test", "output"), rng.normal(size=(tests, outputs))),
        "variance": (("test",), rng.uniform(0.1, 1, size=tests)),
        "x": (("train", "component"), rng.normal(size=(4, components))),
        "x_test": (("test", "component"), rng.normal(size=(tests, components))),
        "y": (("train", "output"), rng.normal(size=(4, outputs))),
    }
    if given:
        arrays["y_test"] = (("test", "output"), rng.normal(size=(tests, outputs)))
    return xr.Dataset(arrays, attrs={"network": "tanh, depth 3", "statement": "at the end"})


def legends(figure: Figure) -> list[str]:
    return [text.get_text() for axis in figure.axes for text in axis.get_legend().get_texts()]


def test_one_input_is_a_curve_with_bands() -> None:
    found = data(1, 1)
    figure = prediction_figure(found)
    (axis,) = figure.axes
    assert len(axis.collections) == 2  # bands of one and two deviations
    curve = next(line for line in axis.lines if line.get_label() == "mean")
    order = np.argsort(found["x_test"].values[:, 0])
    np.testing.assert_array_equal(curve.get_ydata(), found["mean"].values[order, 0])
    points = next(line for line in axis.lines if line.get_label() == "training targets")
    np.testing.assert_array_equal(points.get_xdata(), found["x"].values[:, 0])
    assert "tanh, depth 3" in figure.get_suptitle()


def test_a_constant_component_does_not_count() -> None:
    found = data(2, 1, given=False)
    found["x"][:, 0] = 1.0
    found["x_test"][:, 0] = 1.0
    figure = prediction_figure(found)
    assert figure.axes[0].get_xlabel() == "component 1 of the input"
    assert "given on test inputs" not in legends(figure)


@pytest.mark.parametrize("outputs", [1, 2])
def test_finite_width_has_panels_of_what_it_adds(outputs: int) -> None:
    found = data(1, outputs)
    term = found["mean"] * 0 + 0.1
    figure = prediction_figure(found.assign(infinite_mean=found["mean"] - 0.1, term_dntk=term))
    assert len(figure.axes) == 2 * outputs
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[outputs].lines}
    np.testing.assert_allclose(lines["dntk"], 0.1)
    np.testing.assert_allclose(lines["in all"], 0.1)


@pytest.mark.parametrize("outputs", [1, 3, 6])
def test_given_targets_are_beside_predicted_ones(outputs: int) -> None:
    found = data(5, outputs)
    figure = prediction_figure(found)
    assert len(figure.axes) == min(outputs, 4)
    axis = figure.axes[0]
    np.testing.assert_array_equal(axis.containers[0].lines[0].get_xdata(), found["y_test"].values[:, 0])
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("given", "predicted")
    assert "root mean square error" in axis.texts[0].get_text()


def test_unknown_targets_leave_the_tests_in_order() -> None:
    figure = prediction_figure(data(5, 1, given=False).drop_vars("variance"))
    heights = figure.axes[0].containers[0].lines[0].get_ydata()
    assert (np.diff(heights) >= 0).all()
    assert legends(figure) == ["mean"]


@pytest.mark.parametrize("components", [1, 4])
@pytest.mark.parametrize("given", [True, False])
def test_classes_add_up_to_one(components: int, given: bool) -> None:
    found = data(components, 3, given=False, tests=80)
    chances = np.random.default_rng(1).dirichlet(np.ones(3), size=80)
    found = found.assign(probabilities=(("test", "output"), chances), y=("train", [0, 1, 2, 0]))
    if given:
        found = found.assign(y_test=("test", chances.argmax(axis=1)))
    figure = prediction_figure(found)
    assert {"class 0", "class 1", "class 2"} <= set(legends(figure))
    (axis,) = figure.axes
    if components > 1:
        tops = [bar.get_y() + bar.get_height() for bar in axis.containers[2]]
        np.testing.assert_allclose(tops, 1.0)
    assert any("given class" in text.get_text() for text in axis.texts) == given
