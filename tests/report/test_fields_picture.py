"""Pictures of collective fields: what is drawn is what was computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import xarray as xr
from torch import nn

from foretrain.empirical.fields import Fields, fields, record_fields
from foretrain.report.fields import (
    alignment_figure,
    coactivation_figure,
    layer_contributions_figure,
    step_report_figure,
    training_figure,
)


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
    figure = training_figure(record)
    loss, shares, drives, alignment = figure.axes
    np.testing.assert_allclose(loss.get_lines()[0].get_ydata(), record["loss"])
    assert len(shares.collections) == 3
    for layer, line in zip((1, 2, 3), drives.get_lines(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), record["kernel_drive"].sel(layer=layer))
    thick = [line for line in alignment.get_lines() if line.get_linewidth() == 2.0]
    for layer, line in zip((0, 1, 2), thick, strict=True):
        expected = record["metric_alignment"].sel(metric_layer=layer).mean("followed")
        np.testing.assert_allclose(line.get_ydata(), expected)


@pytest.mark.slow
def test_shares_fill_the_panel(record: xr.Dataset) -> None:
    (axis,) = layer_contributions_figure(record).axes
    top = axis.collections[-1].get_paths()[0].vertices[:, 1].max()
    assert top == pytest.approx(1.0)
    first = axis.collections[0].get_paths()[0].vertices[:, 1].max()
    traces = record["kernel_trace"]
    assert first == pytest.approx(float((traces.sel(layer=1) / traces.sum("layer")).max()))


def test_inputs_without_a_gradient_are_left_out_of_the_mean(record: xr.Dataset) -> None:
    holes = record.copy(deep=True)
    holes["metric_alignment"].values[:, :, 0] = np.nan
    (axis,) = alignment_figure(holes).axes
    thick = [line for line in axis.get_lines() if line.get_linewidth() == 2.0]
    expected = record["metric_alignment"].sel(metric_layer=1).isel(followed=slice(1, None)).mean("followed")
    np.testing.assert_allclose(thick[1].get_ydata(), expected)


def test_coactivation_shows_layers_with_an_activation(
    model: nn.Module, found: Fields, x: torch.Tensor
) -> None:
    panels = [axis for axis in coactivation_figure(found).axes if axis.get_images()]
    assert [axis.get_title(loc="left") for axis in panels] == ["layer 1", "layer 2"]
    np.testing.assert_allclose(panels[0].get_images()[0].get_array(), found.coactivation(1) / 12)
    same = [axis for axis in coactivation_figure(fields(model, x, normalized=True)).axes if axis.get_images()]
    np.testing.assert_allclose(same[1].get_images()[0].get_array(), found.coactivation(2) / 9)


def test_a_step_report_is_drawn_against_eta(found: Fields, x: torch.Tensor) -> None:
    report = found.step_report([1e-3, 1e-2, 1e-1], x[:, 0])
    figure = step_report_figure(report)
    assert [axis.get_title(loc="left").split()[0] for axis in figure.axes] == [
        "residual",
        "activations",
        "conjugate",
    ]
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    rms = report.data.sel(norm="rms", field="residual")
    np.testing.assert_allclose(lines["real change"], rms["change"])
    np.testing.assert_allclose(lines["error"], rms["error"])
    shown = {line.get_label(): line.get_ydata() for line in figure.axes[2].get_lines()}
    b = report.data.sel(norm="rms", field=["b_0", "b_1", "b_2"])
    np.testing.assert_allclose(shown["without mask flips"], b["frozen_error"].max("field"))
