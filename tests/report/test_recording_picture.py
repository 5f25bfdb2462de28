"""Pictures of a recording: what is drawn is what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from torch import nn

from foretrain.report.recording import recording_figure
from foretrain.support.errors import InputError
from foretrain.training.recorder import Recorder, read

SHARES = np.array([[0.2, 0.8], [0.5, 0.5], [0.7, 0.3]])


def dataset(**attributes: Any) -> xr.Dataset:
    """As ``read`` gives it: the loss has three records, the rank, which was skipped once, two."""
    recorded = xr.DataArray(
        [[True] * 3, [True, False, True]], {"observable": ["loss", "rank"]}, ["observable", "step"]
    )
    return xr.Dataset(
        {
            "loss": ("step", [100.0, 1.0, 0.1], {"observable": "loss"}),
            "rank": (("step", "view"), [[3.0, 1.0], [np.nan, np.nan], [2.0, 1.5]], {"observable": "rank"}),
            "rank_error": (
                ("step", "view"),
                [[0.1, 0.0], [np.nan, np.nan], [0.2, 0.0]],
                {"observable": "rank"},
            ),
            "shares": (("step", "parameter"), SHARES, {"picture": "shares"}),
            "spectra": (
                ("step", "matrix", "rank_of"),
                np.array([[[3.0, 2.0], [1.0, np.nan]]] * 3),
                {"picture": "spectra"},
            ),
            "many": (("step", "unit"), np.arange(60.0).reshape(3, 20)),
            "recorded": recorded,
        },
        {
            "step": [0, 10, 100],
            "view": ["total", "temporal"],
            "parameter": ["w", "b"],
            "matrix": ["first", "second"],
        },
        attributes,
    )


def test_every_variable_has_its_panel() -> None:
    figure = recording_figure(dataset(schedule="log, 10 steps per decade"), "A run")
    panels = {axis.get_title(loc="left"): axis for axis in figure.axes if axis.get_title(loc="left")}
    assert list(panels) == ["loss", "rank", "shares", "spectra: first", "spectra: second", "many"]
    loss = panels["loss"]
    np.testing.assert_array_equal(loss.get_lines()[0].get_xydata(), [[0, 100], [10, 1], [100, 0.1]])
    assert (loss.get_xscale(), loss.get_yscale()) == ("symlog", "log")
    ranks = panels["rank"]
    np.testing.assert_array_equal(ranks.get_lines()[0].get_xydata(), [[0, 3], [100, 2]])  # none where skipped
    assert [text.get_text() for text in ranks.get_legend().get_texts()] == ["total", "temporal"]
    assert len(ranks.collections) == 1  # a band where there is an error
    top = panels["shares"].collections[0].get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(0.7)
    assert len(panels["spectra: first"].get_lines()) == 3  # two values, and the mark of step 1
    assert len(panels["spectra: second"].get_lines()) == 2
    assert len(panels["many"].get_lines()) == 21


def test_steps_are_linear_unless_the_schedule_was_not() -> None:
    figure = recording_figure(dataset(schedule="every 10 steps")[["loss"]])
    (axis,) = figure.axes
    assert axis.get_xscale() == "linear"
    assert axis.get_xlim() == (0, 100)


def test_no_tick_stands_between_two_steps() -> None:
    (axis,) = recording_figure(dataset(schedule="every step")[["loss"]].assign_coords(step=[0, 1, 2])).axes
    assert all(tick == round(tick) for tick in axis.get_xticks())


def test_of_many_parts_the_largest_have_names() -> None:
    shares = np.full((2, 20), 0.01)
    shares[:, [4, 11]] = 0.5, 0.32
    names = [f"layer {place}" for place in range(20)]
    many = xr.Dataset(
        {"shares": (("step", "layer"), shares, {"picture": "shares"})}, {"step": [0, 1], "layer": names}
    )
    (axis,) = recording_figure(many).axes
    shown = [text.get_text() for text in axis.get_legend().get_texts()]
    assert {"layer 4", "layer 11", "13 others"} < set(shown)
    assert len(shown) == 8
    heights = [collection.get_paths()[0].vertices[:, 1].max() for collection in axis.collections]
    assert max(heights) == pytest.approx(1.0)


def test_spectra_without_a_panel_are_mentioned() -> None:
    many = xr.Dataset(
        {"spectra": (("step", "matrix", "rank"), np.ones((2, 9, 3)), {"picture": "spectra"})},
        {"step": [0, 1], "matrix": list("abcdefghi")},
    )
    titles = [axis.get_title(loc="left") for axis in recording_figure(many).axes]
    assert titles[-2:] == ["spectra: e", "spectra: f (3 more not drawn)"]


def test_numbers_name_their_axis() -> None:
    modes = xr.Dataset(
        {"alignment": (("step", "target_mode"), [[0.1, 0.2, np.nan]] * 2)},
        {"step": [0, 1], "target_mode": [1, 2, 3]},
    )
    (axis,) = recording_figure(modes).axes
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["target mode 1", "target mode 2"]


def test_a_recording_is_drawn_as_it_is_read(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", nn.Linear(2, 2), "weight_spectra", every=1, budget=None) as recorder:
        recorder.step(mine=1.0)
    whole = read(tmp_path / "run")
    titles = [axis.get_title(loc="left") for axis in recording_figure(whole).axes]
    assert titles == ["weight spectra: weight", "mine"]
    assert len(recording_figure(read(tmp_path / "run", only="weight_spectra")).axes) == 1


def test_nothing_has_no_picture() -> None:
    with pytest.raises(InputError, match="nothing was recorded"):
        recording_figure(dataset()[["recorded"]])
