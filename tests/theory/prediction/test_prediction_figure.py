"""Pictures of predictions: what is drawn, for every kind of data."""

from __future__ import annotations

import numpy as np
import pytest
import xarray as xr

import foretrain as ft
from foretrain.support.answers.figure import Bars, Curve, Figure, Note, Region
from foretrain.theory.prediction.predicted_outputs import prediction_figure


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


def curves(figure: Figure, panel: int = 0) -> dict[str, Curve]:
    return {mark.label: mark for mark in figure.panels[panel].marks if isinstance(mark, Curve)}


def test_one_input_is_a_curve_with_bands() -> None:
    found = data(1, 1)
    figure = prediction_figure(found)
    (panel,) = figure.panels
    assert sum(isinstance(mark, Region) for mark in panel.marks) == 2  # of one and two deviations
    order = np.argsort(found["x_test"].values[:, 0])
    np.testing.assert_array_equal(curves(figure)["mean"].y, found["mean"].values[order, 0])
    np.testing.assert_array_equal(curves(figure)["training targets"].x, found["x"].values[:, 0])
    assert "tanh, depth 3" in figure.title


def test_a_constant_component_does_not_count() -> None:
    found = data(2, 1, given=False)
    found["x"][:, 0] = 1.0
    found["x_test"][:, 0] = 1.0
    figure = prediction_figure(found)
    assert figure.panels[0].x.label == "component 1 of the input"
    assert "given on test inputs" not in curves(figure)


@pytest.mark.parametrize("outputs", [1, 2])
def test_finite_width_has_panels_of_what_it_adds(outputs: int) -> None:
    found = data(1, outputs)
    term = found["mean"] * 0 + 0.1
    figure = prediction_figure(found.assign(infinite_mean=found["mean"] - 0.1, term_dntk=term))
    assert len(figure.panels) == 2 * outputs
    np.testing.assert_allclose(curves(figure, outputs)["dntk"].y, 0.1)
    np.testing.assert_allclose(curves(figure, outputs)["in all"].y, 0.1)


@pytest.mark.parametrize("outputs", [1, 3, 6])
def test_given_targets_are_beside_predicted_ones(outputs: int) -> None:
    found = data(5, outputs)
    figure = prediction_figure(found)
    assert len(figure.panels) == min(outputs, 4)
    panel = figure.panels[0]
    points = curves(figure)["mean ± standard deviation"]
    np.testing.assert_array_equal(points.x, found["y_test"].values[:, 0])
    assert (panel.x.label, panel.y.label) == ("given", "predicted")
    assert any("root mean square error" in mark.text for mark in panel.marks if isinstance(mark, Note))


def test_unknown_targets_leave_the_tests_in_order() -> None:
    figure = prediction_figure(data(5, 1, given=False).drop_vars("variance"))
    assert list(curves(figure)) == ["mean"]
    assert (np.diff(curves(figure)["mean"].y) >= 0).all()


@pytest.mark.parametrize("components", [1, 4])
@pytest.mark.parametrize("given", [True, False])
def test_classes_add_up_to_one(components: int, given: bool) -> None:
    found = data(components, 3, given=False, tests=80)
    chances = np.random.default_rng(1).dirichlet(np.ones(3), size=80)
    found = found.assign(probabilities=(("test", "output"), chances), y=("train", [0, 1, 2, 0]))
    if given:
        found = found.assign(y_test=("test", chances.argmax(axis=1)))
    (panel,) = prediction_figure(found).panels
    shares = [mark for mark in panel.marks if isinstance(mark, Bars | Region)]
    assert [mark.label for mark in shares] == ["class 0", "class 1", "class 2"]
    last = shares[-1]
    tops = last.base + last.values if isinstance(last, Bars) else last.high
    np.testing.assert_allclose(tops, 1.0)
    assert ("given class" in {mark.label for mark in panel.marks}) == given


def test_every_prediction_draws_and_prints_itself() -> None:
    """With the inputs it was made for, and with targets where they are told."""
    mlp = ft.MLP("relu", depth=3, width=100, C_W=2.0)
    found = ft.predict(mlp, [[1.0], [-1.0]], [1.0, 0.0], [[2.0], [0.5]])
    assert {"mean", "training targets"} <= {*curves(found.answer().figures[0])}
    assert len(found.plot().axes) == 1
    assert {"x", "x_test", "y", "covariance"} <= {*found.to_dataset()}
    assert found.to_dict()["test_loss"] is None
    told = found.about(
        np.array([[1.0], [-1.0]]), np.array([1.0, 0.0]), np.array([[2.0], [0.5]]), np.ones((2, 1))
    )
    assert "Loss on the 2 test inputs" in repr(told)
    assert told.to_dict()["test_loss"]["bias"] > 0
