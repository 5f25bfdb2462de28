"""The picture of trained ensembles beside predictions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from foretrain.compare.trained.pictures import add_bands, add_outputs, add_sizes, means_of, positions
from foretrain.support.answers import INK, SKY, Figure

if TYPE_CHECKING:
    import xarray


def draw(data: xarray.Dataset) -> Figure:
    """One row of panels for the function and one for the digits."""
    figure = Figure("Really trained networks beside the prediction at infinite width", columns=3)
    line, digits = (task_of(data, name) for name in ("function", "digits"))
    for add in (add_bands, _add_scaled, add_sizes):
        add(figure, line, "Function of an angle: ")
    for add in (add_outputs, _add_histogram, add_sizes):
        add(figure, digits, "Digits 3 and 8: ")
    return figure


def task_of(data: xarray.Dataset, name: str) -> xarray.Dataset:
    """The numbers of one task, by their own names."""
    start = f"{name}_"
    chosen = data[[str(key) for key in data.data_vars if str(key).startswith(start)]]
    chosen = chosen.drop_vars([key for key in chosen.coords if not str(key).startswith(start)])
    names = {str(key): str(key).removeprefix(start) for key in (*chosen.variables, *chosen.dims)}
    attributes = {
        str(key).removeprefix(start): value for key, value in data.attrs.items() if str(key).startswith(start)
    }
    return chosen.rename(names).drop_attrs(deep=False).assign_attrs(attributes)


def _add_scaled(figure: Figure, data: xarray.Dataset, heading: str) -> None:
    """n times the deviation of the mean over the input: one curve for all widths if it falls as 1/n."""
    label, trained, x, order = positions(data)
    panel = figure.panel(
        f"{heading}the deviation, times the width",
        x=label,
        y="n × (mean of networks − prediction)",
        legend_columns=3,
    )
    panel.level(y=0)
    scaled, errors = (means_of(data, f"scaled_deviation{end}")[:, order] for end in ("", "_error"))
    for width, values, error in zip(data.width.values, scaled, errors, strict=True):
        panel.curve(x, values, "o-", f"n = {width}", error=error, size=3, width=1)
    panel.curve(trained, np.zeros_like(trained), "s", color=INK, size=6)


def _add_histogram(figure: Figure, data: xarray.Dataset, heading: str) -> None:
    """Outputs of single networks in units of the predicted spread around the predicted mean."""
    outputs = data.network_output.values
    spread = np.sqrt(np.diagonal(data.predicted_covariance.values))
    scores = ((outputs - data.predicted_mean.values[:, 0]) / spread).ravel()
    axes = {"x": "(output − predicted mean) / predicted σ", "y": "density", "legend": "upper right"}
    panel = figure.panel(f"{heading}spread over networks", **axes)
    density, edges = np.histogram(np.clip(scores, -4, 4), np.linspace(-4, 4, 41), density=True)
    label = f"networks of width {data.attrs['shown_width']}"
    panel.bars((edges[1:] + edges[:-1]) / 2, density, label, SKY, width=0.19)
    grid = np.linspace(-4, 4, 201)
    panel.curve(grid, np.exp(-(grid**2) / 2) / np.sqrt(2 * np.pi), "-", "Gaussian", INK)
    right = float(np.mean(outputs * data.network_target.values > 0))
    note = f"mean {scores.mean():+.3f}\nσ {scores.std():.3f}\naccuracy {right:.1%}"
    panel.note(0.03, 0.97, note, above=False, fraction=True)
