from __future__ import annotations

import numpy as np
import pytest
import xarray

from foretrain.compare.plateau.answer import plateau_figure
from foretrain.support.answers.figure import Curve, Note


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
    losses, layers = plateau_figure(_found(advice=True), _trained()).panels
    curves = [mark for mark in losses.marks if isinstance(mark, Curve)]
    assert list(dict.fromkeys(curve.label for curve in curves)) == [
        "given: predicted",
        "given: real descent",
        "rescaled: predicted",
        "rescaled: real descent",
    ]
    assert curves[0].x[0] >= 1  # the axis is logarithmic
    assert curves[0].y[-1] == pytest.approx(0.5)
    points = [curve for curve in curves if curve.marker == "o"]
    assert [curve.x.tolist() for curve in points] == [[40, 80, 120]] * 2 + [[1]] * 2
    assert [mark.text for mark in layers.marks if isinstance(mark, Note)] == ["× 10", "× 5"]


def test_without_advice_and_training_only_the_flow_is_drawn() -> None:
    losses, layers = plateau_figure(_found(advice=False)).panels
    assert "rescaled: predicted" not in [getattr(mark, "label", "") for mark in losses.marks]
    assert layers.title == "weight matrices"
    assert not [mark for mark in layers.marks if isinstance(mark, Note)]
