"""Pictures of collective fields: what is drawn is what was computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

from foretrain.empirical.fields import FieldRecord, Fields, fields, record_fields
from foretrain.support.answers import Panel, Result
from foretrain.support.answers.figure import Curve, HeatMap, Region


def panels(result: Result) -> list[Panel]:
    (figure,) = result.answer().figures
    return figure.panels


def curves(panel: Panel) -> list[Curve]:
    return [mark for mark in panel.marks if isinstance(mark, Curve)]


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 1)).double()


@pytest.fixture(scope="module")
def x() -> torch.Tensor:
    return torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def found(model: nn.Module, x: torch.Tensor) -> Fields:
    return fields(model, x)


@pytest.fixture(scope="module")
def record(model: nn.Module, x: torch.Tensor) -> xr.Dataset:
    return record_fields(model, x, x[:, 0], 20, 0.05, every=5)


def test_training_has_four_panels_with_the_recorded_lines(record: xr.Dataset) -> None:
    loss, _, drives, alignment = panels(FieldRecord(record))
    np.testing.assert_allclose(curves(loss)[0].y, record["loss"])
    for layer, line in zip((1, 2, 3), curves(drives), strict=True):
        np.testing.assert_allclose(line.y, record["kernel_drive"].sel(layer=layer))
    thick = [line for line in curves(alignment) if line.label]
    for layer, line in zip((0, 1, 2), thick, strict=True):
        expected = record["metric_alignment"].sel(metric_layer=layer).mean("followed")
        np.testing.assert_allclose(line.y, expected)
    assert len(FieldRecord(record).plot().axes) == 4


def test_shares_fill_the_panel(record: xr.Dataset) -> None:
    regions = panels(FieldRecord(record))[1].marks
    traces = record["kernel_trace"]
    assert isinstance(regions[0], Region)
    assert isinstance(regions[-1], Region)
    np.testing.assert_allclose(regions[-1].high, 1.0)
    np.testing.assert_allclose(regions[0].high, traces.sel(layer=1) / traces.sum("layer"))


def test_inputs_without_a_gradient_are_left_out_of_the_mean(record: xr.Dataset) -> None:
    holes = record.copy(deep=True)
    holes["metric_alignment"].values[:, :, 0] = np.nan
    thick = [line for line in curves(panels(FieldRecord(holes))[3]) if line.label]
    expected = record["metric_alignment"].sel(metric_layer=1).isel(followed=slice(1, None)).mean("followed")
    np.testing.assert_allclose(thick[1].y, expected)


def test_coactivation_shows_layers_with_an_activation(
    model: nn.Module, found: Fields, x: torch.Tensor
) -> None:
    assert [panel.title for panel in panels(found)] == ["layer 1", "layer 2"]
    first, second = panels(found)[0].marks[0], panels(fields(model, x, normalized=True))[1].marks[0]
    assert isinstance(first, HeatMap)
    assert isinstance(second, HeatMap)
    np.testing.assert_allclose(first.values, found.coactivation(1) / 12)
    np.testing.assert_allclose(second.values, found.coactivation(2) / 9)


def test_a_step_report_is_drawn_against_eta(found: Fields, x: torch.Tensor) -> None:
    report = found.step_report([1e-3, 1e-2, 1e-1], x[:, 0])
    first, second, third = panels(report)
    assert [panel.title.split()[0] for panel in (first, second, third)] == [
        "residual",
        "activations",
        "conjugate",
    ]
    lines = {line.label: line.y for line in curves(first)}
    rms = report.data.sel(norm="rms", field="residual")
    np.testing.assert_allclose(lines["real change"], rms["change"])
    np.testing.assert_allclose(lines["error"], rms["error"])
    shown = {line.label: line.y for line in curves(third)}
    b = report.data.sel(norm="rms", field=["b_0", "b_1", "b_2"])
    np.testing.assert_allclose(shown["without mask flips"], b["frozen_error"].max("field"))


def test_the_dataset_holds_the_fields_by_layer(found: Fields) -> None:
    data = found.to_dataset()
    for layer in range(4):
        np.testing.assert_array_equal(data["overlap"].sel(activation_layer=layer), found.overlap(layer))
        np.testing.assert_array_equal(data[f"conjugate_{layer}"], found.conjugate(layer))
    for layer in (1, 2, 3):
        np.testing.assert_array_equal(data["coactivation"].sel(layer=layer), found.coactivation(layer))
    np.testing.assert_array_equal(data["kernel_by_layer"].sum("layer"), found.kernel_by_layer.sum("layer"))
    assert data["kernel_by_layer"].dims == ("layer", "input_1", "input_2", "output_1", "output_2")
    assert {"trace_share", "mean_slope", "outputs"} <= {*data}


def test_the_dataset_leaves_out_what_is_too_large(
    model: nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("foretrain.empirical.fields.collective._STORED", 10)
    data = fields(model, x).to_dataset()
    assert "conjugate_1" in data
    assert not {"overlap", "coactivation", "kernel_by_layer"} & {*data}
