from __future__ import annotations

import numpy as np
import pytest
import xarray

from foretrain.report.plateau import plateau_figure


def _found(*, advice: bool) -> xarray.Dataset:
    networks = ["given", "rescaled"][: 1 + advice]
    steps = {f"{name}_step": np.linspace(0, 100 / (1 + 9 * k), 30) for k, name in enumerate(networks)}
    return xarray.Dataset(
        {
            "relative_scale": ("layer", [0.1, 0.2, 1.0]),
            "at_bottleneck": ("layer", [True, True, False]),
            "factor": ("layer", [10.0, 5.0, 1.0] if advice else [1.0] * 3),
            "escape": ("network", [100.0, 10.0][: 1 + advice]),
            **{f"{name}_loss": (f"{name}_step", np.linspace(1, 0.5, 30)) for name in networks},
        },
        coords={"layer": ["a", "b", "c"], "network": networks, **steps},
        attrs={"level": 1.0, "threshold": 0.5, "loss": "mean squared error"},
    )


def _trained() -> xarray.Dataset:
    steps = np.array([[0.0, 40.0, 80.0, 120.0], [0.0, 1.0, np.nan, np.nan]])
    return xarray.Dataset(
        {"loss": (("network", "run", "look"), np.ones((2, 2, 4)))},
        coords={"network": ["given", "rescaled"], "step": (("network", "look"), steps)},
    )


def test_flows_and_descents_of_both_networks_are_drawn() -> None:
    figure = plateau_figure(_found(advice=True), _trained())
    losses, layers = figure.axes
    labels = losses.get_legend_handles_labels()[1]
    assert labels[:4] == [
        "given: predicted",
        "given: real descent",
        "rescaled: predicted",
        "rescaled: real descent",
    ]
    predicted = losses.lines[0]
    assert predicted.get_xdata()[0] >= 1  # the axis is logarithmic
    assert predicted.get_ydata()[-1] == pytest.approx(0.5)
    points = [line for line in losses.lines if line.get_marker() == "o"]
    assert [list(line.get_xdata()) for line in points] == [[40, 80, 120]] * 2 + [[1]] * 2
    told = [text.get_text() for text in layers.texts]
    assert [text for text in told if text] == ["× 10", "× 5"]
    figure.canvas.draw()


def test_without_advice_and_training_only_the_flow_is_drawn() -> None:
    losses, layers = plateau_figure(_found(advice=False)).axes
    assert "rescaled: predicted" not in losses.get_legend_handles_labels()[1]
    assert layers.get_title() == "weight matrices"
    assert not layers.texts
