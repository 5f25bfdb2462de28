"""What a flow prints and draws is what was computed."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.answers import Figure
from foretrain.support.answers.figure import Curve
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import Flow, flow
from foretrain.theory.tensors import TENSORS

TWO_INPUTS = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])
PYRAMID = MLP("tanh", depth=4, width=[12, 24, 16], n_in=3, C_b=0.15, C_W=1.6)


def test_the_summary_divides_by_the_fan_in() -> None:
    # Reference values of layer 4: K, V and G1 of the first input, fan-in 16.
    summary = flow(PYRAMID, TWO_INPUTS, ["K", "V", "G1"]).summary.sel(layer=4)
    assert float(summary["kernel"][0]) == pytest.approx(0.688616018, abs=1e-9)
    assert float(summary["fluctuation"][0]) == pytest.approx(0.241676967 / 16 / 0.688616018**2, abs=1e-9)
    assert float(summary["correction"][1]) == pytest.approx(-0.072124273 / 16, abs=1e-10)
    assert float(summary["correlation"][0, 1]) == pytest.approx(
        0.286341544 / np.sqrt(0.688616018 * 0.679525608), abs=1e-8
    )


def test_quadruples_with_each_input_alone_are_enough() -> None:
    full = flow(PYRAMID, TWO_INPUTS, ["K", "V"]).summary
    some = flow(PYRAMID, TWO_INPUTS, ["K", "V"], quadruples=[[0, 1, 0, 1], [0] * 4, [1] * 4]).summary
    np.testing.assert_allclose(some["fluctuation"], full["fluctuation"], atol=1e-12)


def test_laws_stand_beside_the_exact_numbers() -> None:
    deep = MLP("tanh", depth=400, width=1000, n_in=1)
    summary = flow(deep, [[1.0]], ["K", "V", "G1"]).summary
    last = summary.sel(layer=400).isel(input=0)
    assert float(last["kernel_law"]) == pytest.approx(float(last["kernel"]), rel=1e-3)
    assert float(last["fluctuation_law"]) == pytest.approx(float(last["fluctuation"]), rel=0.02)
    assert float(last["correction_law"]) == pytest.approx(-1 / 6 / 1000)
    assert "5.94" in summary["kernel_law"].attrs["equation"]


def test_where_no_law_is_known_it_says_why() -> None:
    summary = flow(PYRAMID, TWO_INPUTS).summary
    assert "widths differ" in summary.attrs["statement"]
    assert not [name for name in summary if str(name).endswith("_law")]
    gelu = MLP("gelu", depth=3, width=50, n_in=1, C_b=0.1729223907688603, C_W=1.9830582573928064)
    far = flow(gelu, [[0.5]]).summary
    assert far.attrs["universality_class"] == "half-stable"
    assert "too far off" in far.attrs["statement"]


@pytest.mark.parametrize(
    ("names", "rows", "panels"),
    [(["K", "V", "G1"], 2, 4), (["K", "V", "G1"], 1, 3), (["K", "V"], 1, 2), (["K"], 1, 1), (["K"], 7, 2)],
)
def test_there_is_a_panel_for_everything_that_is_known(names: list[str], rows: int, panels: int) -> None:
    net = MLP("relu", depth=60, width=100, n_in=7, C_W=2.0)
    found = flow(net, np.eye(7)[:rows] + 0.3, names)
    figure = picture(found)
    assert len(figure.panels) == panels
    drawn = np.array([mark.y for mark in figure.panels[0].marks[:rows]]).T
    np.testing.assert_array_equal(drawn, found.summary["kernel"].values)
    assert figure.panels[0].x.scale == "log"
    assert len(found.plot().axes) == panels


@pytest.mark.parametrize("first", [[], ["K"], ["K", "G1"]])
def test_tensors_without_a_panel_of_their_own_share_one_by_order(first: list[str]) -> None:
    names = ["Theta", "H1", *"DFABPQRSTU"]
    found = flow(MLP.critical("tanh", depth=3, width=10, n_in=3), TWO_INPUTS, [*first, *names])
    shared = picture(found).panels[2 if first else 0 :]
    groups = [["Theta"], [*first[1:], "H1"], [*"DFAB"], [*"PQ"], [*"RSTU"]]
    assert [[mark.label for mark in panel.marks] for panel in shared] == groups
    for mark in (mark for panel in shared for mark in panel.marks):
        np.testing.assert_array_equal(mark.y, found[mark.label].values.reshape(3, -1)[:, 0])
    assert all(panel.title.endswith("of input 0") for panel in shared)
    assert len(found.plot().axes) == len(picture(found).panels)


def test_every_tensor_has_a_family() -> None:
    assert [name for name, tensor in TENSORS.items() if not tensor.family] == ["K"]


def test_entries_that_were_asked_for_are_drawn_by_their_inputs() -> None:
    some = flow(PYRAMID, TWO_INPUTS, ["V"], quadruples=[[0, 1, 0, 1], [1, 1, 1, 1]])
    (panel,) = picture(some).panels
    assert [mark.label for mark in panel.marks] == ["V_0,1,0,1", "V_1,1,1,1"]
    assert "of input 0" not in panel.title


def test_axes_are_logarithmic_where_signs_and_sizes_suit() -> None:
    deep = MLP.critical("tanh", depth=60, width=200, n_in=1)
    panels = picture(flow(deep, [[1.0]], ["A", "B", "D", "P", "Q"])).panels
    assert [panel.y.scale for panel in panels] == ["symlog", "linear"]
    (positive,) = picture(flow(deep, [[1.0]], ["A", "B"])).panels
    assert positive.y.scale == "log"
    assert np.isnan(positive.marks[0].y[0])  # layer 1 does not fluctuate


def test_many_inputs_are_a_band_with_a_few_lines() -> None:
    inputs = np.random.default_rng(0).standard_normal((40, 3))
    found = flow(PYRAMID, inputs)
    for panel, count in zip(picture(found).panels, (40, 780), strict=True):
        lines = [mark for mark in panel.marks if isinstance(mark, Curve)]
        assert len(lines) == 5  # four of them and the median
        assert f"{count} " in panel.caption
    kernel, (band, *_, median) = found.summary["kernel"].values, picture(found).panels[0].marks
    np.testing.assert_array_equal(band.low, kernel.min(axis=1))
    np.testing.assert_array_equal(band.high, kernel.max(axis=1))
    np.testing.assert_array_equal(median.y, np.median(kernel, axis=1))


def test_one_layer_stands_in_the_middle() -> None:
    (panel,) = picture(flow(MLP("relu", depth=1, width=1), [[1.0]])).panels
    assert (panel.x.low, panel.x.high, panel.x.ticks) == (0.5, 1.5, [1])


def test_the_band_is_one_deviation_of_the_metric() -> None:
    net = MLP("tanh", depth=10, width=100, n_in=1)
    found = flow(net, [[1.0]], ["K", "V", "G1"])
    band = picture(found).panels[2].marks[0]
    one = found.summary.sel(layer=10).isel(input=0)
    K, mean = float(one["kernel"]), float(one["kernel"] + one["correction"])
    spread = K * float(one["fluctuation"]) ** 0.5
    assert (band.low[-1], band.high[-1]) == (pytest.approx(mean - spread), pytest.approx(mean + spread))


def test_it_prints_numbers() -> None:
    text = repr(flow(PYRAMID, TWO_INPUTS, ["K", "V", "Theta"]))
    assert text.startswith("tanh, depth 4, widths 12 to 24, C_b = 0.15, C_W = 1.6\n")
    for words in ("0.688616", "V/(nK²) of the output", "Theta of input 0", "widths differ"):
        assert words in text


def test_every_form_of_a_tensor_has_a_text() -> None:
    some = flow(PYRAMID, TWO_INPUTS, ["V"], quadruples=[[0, 1, 0, 1]])
    assert "V_(0,1)(0,1)" in repr(some)
    summed = flow(PYRAMID, TWO_INPUTS, ["K", "V"], contract=(np.eye(2), np.eye(2)))
    assert "V, contracted" in repr(summed)
    assert "fluctuation" not in summed.summary
    assert {"K", "V", "kernel", "correlation"} <= {*summed.to_dataset()}
    assert summed.to_dict()["layers"][0]["layer"] == 1


def picture(found: Flow) -> Figure:
    (figure,) = found.answer().figures
    return figure
