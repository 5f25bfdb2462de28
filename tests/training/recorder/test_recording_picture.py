"""Pictures of a recording: what is drawn is what was recorded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from torch import nn

from foretrain.support.answers.figure import Curve, Panel
from foretrain.support.errors import InputError
from foretrain.training.recorder import Recorder, Recording, read, recording

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


def panels(data: xr.Dataset) -> dict[str, Panel]:
    return {panel.title: panel for panel in Recording(data).figure().panels}


def curves(panel: Panel) -> list[Curve]:
    return [mark for mark in panel.marks if isinstance(mark, Curve)]


def test_every_variable_has_its_panel() -> None:
    drawn = panels(dataset(schedule="log, 10 steps per decade"))
    assert list(drawn) == ["loss", "rank", "shares", "spectra: first", "spectra: second", "many"]
    loss = drawn["loss"]
    (curve,) = curves(loss)
    assert (curve.x.tolist(), curve.y.tolist()) == ([0, 10, 100], [100, 1, 0.1])
    assert (loss.x.scale, loss.y.scale) == ("symlog", "log")
    total, temporal = curves(drawn["rank"])
    assert (total.x.tolist(), total.y.tolist()) == ([0, 100], [3, 2])  # none where it was skipped
    assert [total.label, temporal.label] == ["total", "temporal"]
    np.testing.assert_allclose(total.band, [[2.9, 1.8], [3.1, 2.2]])
    assert temporal.band is None  # no band where the error is zero
    regions = {mark.label: mark for mark in drawn["shares"].marks}
    np.testing.assert_allclose(regions["w"].high, SHARES[:, 0])
    np.testing.assert_allclose(regions["b"].high, 1.0)
    assert [len(curves(drawn[name])) for name in ("spectra: first", "spectra: second", "many")] == [2, 1, 20]


def test_steps_are_linear_unless_the_schedule_was_not() -> None:
    (panel,) = panels(dataset(schedule="every 10 steps")[["loss"]]).values()
    assert (panel.x.scale, panel.x.low, panel.x.high) == ("linear", 0, 100)
    assert panel.x.whole  # no tick stands between two steps


def test_of_many_parts_the_largest_have_names() -> None:
    shares = np.full((2, 20), 0.01)
    shares[:, [4, 11]] = 0.5, 0.32
    names = [f"layer {place}" for place in range(20)]
    many = xr.Dataset(
        {"shares": (("step", "layer"), shares, {"picture": "shares"})}, {"step": [0, 1], "layer": names}
    )
    (panel,) = panels(many).values()
    shown = {mark.label: mark for mark in panel.marks}
    assert {"layer 4", "layer 11", "13 others"} < set(shown)
    assert len(shown) == 8
    assert max(mark.high.max() for mark in shown.values()) == pytest.approx(1.0)


def test_spectra_without_a_panel_are_mentioned() -> None:
    many = xr.Dataset(
        {"spectra": (("step", "matrix", "rank"), np.ones((2, 9, 3)), {"picture": "spectra"})},
        {"step": [0, 1], "matrix": list("abcdefghi")},
    )
    assert list(panels(many))[-2:] == ["spectra: e", "spectra: f (3 more not drawn)"]


def test_numbers_name_their_axis() -> None:
    modes = xr.Dataset(
        {"alignment": (("step", "target_mode"), [[0.1, 0.2, np.nan]] * 2)},
        {"step": [0, 1], "target_mode": [1, 2, 3]},
    )
    (panel,) = panels(modes).values()
    assert [curve.label for curve in curves(panel)] == ["target mode 1", "target mode 2"]


def test_a_recording_is_drawn_as_it_is_read(tmp_path: Path) -> None:
    with Recorder(tmp_path / "run", nn.Linear(2, 2), "weight_spectra", every=1, budget=None) as recorder:
        recorder.step(mine=1.0)
    whole = recording(tmp_path / "run")
    assert [panel.title for panel in whole.figure().panels] == ["weight spectra: weight", "mine"]
    assert "2 records from step 0 to 1 of weight_spectra, mine" in repr(whole)
    assert len(recording(tmp_path / "run", only="weight_spectra").plot().axes) == 1
    xr.testing.assert_identical(whole.to_dataset(), read(tmp_path / "run"))


def test_nothing_has_no_picture() -> None:
    with pytest.raises(InputError, match="nothing was recorded"):
        Recording(dataset()[["recorded"]]).plot()
