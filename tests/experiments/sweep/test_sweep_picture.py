from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from foretrain.experiments.sweep.presentation import drawn_axes
from foretrain.experiments.sweep.presentation import sweep_figure as figure_of
from foretrain.support.answers.matplotlib_renderer import draw
from foretrain.support.errors import InputError


def sweep_figure(data: xr.Dataset, quantity: str | None = None) -> Any:
    return draw(figure_of(data, quantity))


GRID = {"C_b": np.linspace(0.0, 0.6, 7), "C_W": np.linspace(1.0, 4.0, 8)}


def swept(shape: dict[str, Any], values: Any = None, **more: Any) -> xr.Dataset:
    sizes = tuple(len(labels) for labels in shape.values())
    values = np.arange(1.0, 1 + np.prod(sizes)).reshape(sizes) if values is None else values
    data = {"value": (tuple(shape), values, more), "status": (tuple(shape), np.full(sizes, "done"))}
    return xr.Dataset(data, shape, {"title": "A sweep"})


def test_one_axis_is_a_line() -> None:
    figure = sweep_figure(swept({"epsilon": [0.01, 0.1, 1.0]}))
    (panel,) = figure.axes
    (line,) = panel.lines
    assert line.get_ydata().tolist() == [1, 2, 3]
    assert panel.get_xscale() == "log"
    assert panel.get_ylabel() == "value"


def test_two_axes_are_a_map_with_the_special_line() -> None:
    data = swept(GRID, special=6.0)
    panel, bar = sweep_figure(data).axes
    (mesh,) = [item for item in panel.collections if hasattr(item, "get_coordinates")]
    np.testing.assert_array_equal(np.asarray(mesh.get_array()), data["value"])
    assert panel.get_xlabel() == "C_W"
    assert bar.get_ylabel() == "value  (line: 6)"


@pytest.mark.parametrize("special", [0.5, 56.0, 80.0])
def test_a_level_that_is_not_crossed_has_no_line(special: float) -> None:
    data = swept(GRID, special=special)
    assert sweep_figure(data).axes[1].get_ylabel() == "value"


def test_names_are_lines_of_their_own() -> None:
    data = swept({"activation": ["tanh", "relu"], "depth": [2, 3, 5]})
    (panel,) = sweep_figure(data).axes
    labels = [text.get_text() for text in panel.get_legend().get_texts()]
    assert labels == ["activation = tanh", "activation = relu"]
    turned = data.transpose("depth", "activation")
    assert drawn_axes(turned) == ["activation", "depth"]


def test_repeats_are_averaged_with_their_error() -> None:
    values = np.array([[1.0, 3.0], [2.0, 2.0]])
    (panel,) = sweep_figure(swept({"gain": [0.5, 1.0], "repeat": [0, 1]}, values)).axes
    line, _, (bars,) = panel.containers[0]
    assert line.get_ydata().tolist() == [2, 2]
    np.testing.assert_allclose(bars.get_segments()[0][:, 1], [1, 3])  # std / sqrt(n - 1)


def test_labels_of_an_answer_are_panels() -> None:
    data = swept({"gain": [0.5, 1.0]})
    data["here"] = (("gain", "quantity"), np.ones((2, 2)))
    data = data.assign_coords(quantity=["slope", "rms z"])
    titles = [panel.get_ylabel() for panel in sweep_figure(data).axes if panel.get_visible()]
    assert titles == ["value", "here: slope", "here: rms z"]
    only = [panel.get_ylabel() for panel in sweep_figure(data, "here").axes]
    assert only == ["here: slope", "here: rms z"]


def test_missing_points_leave_gaps() -> None:
    data = swept(GRID)
    data["value"][2, 3] = np.nan
    mesh = sweep_figure(data).axes[0].collections[0]
    mask = np.ma.getmaskarray(np.ma.asarray(mesh.get_array()))
    assert np.argwhere(mask).tolist() == [[2, 3]]


def test_a_short_axis_is_a_family_of_lines() -> None:
    data = swept({"epsilon": np.geomspace(0.01, 1, 9), "depth": [3, 4, 5]})
    (panel,) = sweep_figure(data).axes
    assert [text.get_text() for text in panel.get_legend().get_texts()] == [
        "depth = 3",
        "depth = 4",
        "depth = 5",
    ]
    for place, container in enumerate(panel.containers):
        np.testing.assert_array_equal(container[0].get_ydata(), data["value"].isel(depth=place))


@pytest.mark.slow
def test_many_names_are_a_choice_of_lines() -> None:
    data = swept({"activation": [f"a{place}" for place in range(12)], "depth": [2, 3, 5]})
    labels = [text.get_text() for text in sweep_figure(data).axes[0].get_legend().get_texts()]
    assert len(labels) == 6
    assert (labels[0], labels[-1]) == ("activation = a0", "activation = a11")


def test_errors_are_bars_and_no_panel() -> None:
    data = swept({"gain": [0.5, 1.0]})
    data["value_error"] = ("gain", [0.25, 0.5])
    (panel,) = sweep_figure(data).axes
    bars = panel.containers[0][2][0]
    np.testing.assert_allclose([segment[:, 1] for segment in bars.get_segments()], [[0.75, 1.25], [1.5, 2.5]])
    (alone,) = sweep_figure(data, "value_error").axes
    assert alone.get_ylabel() == "value_error"


def test_what_cannot_be_drawn_is_refused() -> None:
    with pytest.raises(InputError, match="3 axes with several values"):
        sweep_figure(swept({"a": [1, 2], "b": [1, 2], "c": [1, 2]}))
    with pytest.raises(InputError, match="0 axes with several values"):
        sweep_figure(swept({"a": [1]}))
    with pytest.raises(InputError, match="unknown quantity"):
        sweep_figure(swept({"a": [1, 2]}), "valu")
