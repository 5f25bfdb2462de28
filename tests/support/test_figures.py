"""Pictures as data: what a panel holds is what both renderers draw."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import xarray

from foretrain.support.answers import (
    PALETTE,
    Axis,
    Figure,
    Panel,
    dataset_figure,
    log,
    names_axis,
    scale_for,
    shades,
)
from foretrain.support.answers.formulas import html_math, unicode_math
from foretrain.support.answers.matplotlib_renderer import draw, write
from foretrain.support.answers.plotly_renderer import numbers, specifications
from foretrain.support.errors import InputError

X, Y = np.array([1.0, 2.0, 4.0]), np.array([3.0, 1.0, 2.0])


def one_panel(**axes: Axis) -> tuple[Figure, Panel]:
    figure = Figure("Title")
    return figure, figure.panel("panel", **{"x": "place", "y": "height", **axes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("style", "marker", "dash"),
    [("-", "", "-"), ("o", "o", ""), ("s--", "s", "--"), (".", ".", ""), ("-.", "", "-."), ("x:", "x", ":")],
)
def test_a_style_is_a_marker_and_a_dash(style: str, marker: str, dash: str) -> None:
    figure, panel = one_panel()
    panel.curve(X, Y, style)
    (curve,) = panel.marks
    assert (curve.marker, curve.dash) == (marker, dash)  # type: ignore[union-attr]
    (line,) = draw(figure).axes[0].lines
    assert line.get_marker() == (marker or "None")
    assert line.get_linestyle() == (dash or "None")
    (trace,) = specifications(figure)[0]["data"]
    assert ("markers" in trace["mode"], "lines" in trace["mode"]) == (bool(marker), bool(dash))


def test_numbers_errors_and_bands_reach_both_renderers() -> None:
    figure, panel = one_panel()
    panel.curve(X, Y, "o-", "measured", error=0.5, band=(Y - 1, Y + 2))
    axes = draw(figure).axes[0]
    (bars,) = axes.containers
    assert bars[0].get_xydata() == pytest.approx(np.stack([X, Y], 1))
    segments = bars[2][0].get_segments()
    assert [segment[:, 1].tolist() for segment in segments] == [[y - 0.5, y + 0.5] for y in Y]
    low, high, trace = specifications(figure)[0]["data"]
    assert (low["y"], high["y"]) == ((Y - 1).tolist(), (Y + 2).tolist())
    assert (trace["x"], trace["y"], trace["error_y"]["array"]) == (X.tolist(), Y.tolist(), [0.5] * 3)


def test_bars_at_names_get_ticks_and_grow_from_their_base() -> None:
    figure, panel = one_panel()
    panel.bars(["one", "two", "three"], Y, "share", base=[0, 1, 2], texts=["a", "b", "c"])
    axes = draw(figure).axes[0]
    assert [bar.get_y() for bar in axes.patches] == [0, 1, 2]
    assert [text.get_text() for text in axes.get_xticklabels()] == ["one", "two", "three"]
    specification = specifications(figure)[0]
    assert specification["data"][0]["y"] == Y.tolist()
    assert specification["layout"]["xaxis"]["ticktext"] == ["one", "two", "three"]
    assert numbers(panel).rows[0] == ("one", 3.0)


def test_heat_maps_contours_regions_levels_and_notes_are_drawn() -> None:
    figure, panel = one_panel()
    values = np.arange(6.0).reshape(2, 3) - 2
    panel.heat_map(values, label="value", diverging=True)
    panel.contours([0, 1, 2], [0, 1], values, [0.5], ["half"])
    panel.region(X, 0.0, Y, "between")
    panel.region(x=(0, 1), label="span")
    panel.level(y=1.5, label="level")
    panel.note(0.5, 0.5, "words", fraction=True)
    drawing = draw(figure)
    assert [axes.get_ylabel() for axes in drawing.axes] == ["height", "value"]  # the colour bar is the second
    specification = specifications(figure)[0]
    assert [trace["type"] for trace in specification["data"]] == ["heatmap", "contour", "scatter"]
    half, words = specification["layout"]["annotations"]
    assert (half["text"], half["x"], half["y"]) == (
        "half",
        1,
        pytest.approx(0.5),
    )  # where it goes from -1 to 2
    assert words["text"] == "words"
    heat = specifications(figure)[0]["data"][0]
    assert (heat["zmin"], heat["zmax"]) == (-3.0, 3.0)
    layout = specifications(figure)[0]["layout"]
    assert [shape["type"] for shape in layout["shapes"]] == ["rect", "line"]
    assert any(note["text"] == "words" for note in layout["annotations"])
    assert len(numbers(panel).rows) > 0


def test_equal_labels_have_equal_colours_in_all_panels() -> None:
    figure = Figure(columns=2)
    for names in (("a", "b"), ("b", "c")):
        panel = figure.panel()
        for name in names:
            panel.curve(X, Y, "-", name)
    colors = figure.colors()
    assert colors == {(0, 0): PALETTE[0], (0, 1): PALETTE[1], (1, 0): PALETTE[1], (1, 1): PALETTE[2]}


def test_panels_take_the_places_of_a_layout_in_order() -> None:
    figure = Figure(layout="AAB CDD")
    panels = [figure.panel(str(number)) for number in range(3)]
    assert list(figure.places()) == list(zip("ABC", panels, strict=True))
    assert [axes.get_title() for axes in draw(figure).axes if axes.axison] == ["0", "1", "2"]
    assert Figure(columns=2, panels=panels).rows() == ["AB", "C."]


def test_axes_keep_scale_limits_room_and_direction() -> None:
    figure, panel = one_panel(x=log("n", 0.5, 8), y=Axis("rank", reverse=True, low=0, high=5))
    panel.curve(X, Y)
    axes = draw(figure).axes[0]
    assert axes.get_xscale() == "log"
    assert axes.get_xlim() == (0.5, 8)
    assert axes.get_ylim() == (5, 0)
    layout = specifications(figure)[0]["layout"]
    assert layout["xaxis"]["range"] == pytest.approx(np.log10([0.5, 8]), rel=1e-6)
    assert layout["yaxis"]["range"] == [5, 0]
    plain, roomy = one_panel()[0], one_panel(y=Axis(room=1.0))[0]
    for figure in (plain, roomy):
        figure.panels[0].curve(X, Y)
    low, high = draw(plain).axes[0].get_ylim()
    assert draw(roomy).axes[0].get_ylim() == pytest.approx((low, 2 * high - low))


def test_a_legend_never_covers_data() -> None:
    figure, panel = one_panel()
    grid = np.linspace(0, 20, 400)
    for number in range(7):
        panel.curve(grid, np.sin(grid + number), "-", f"curve {number}")
    drawing = draw(figure)
    drawing.draw_without_rendering()
    (axes,) = drawing.axes
    box = axes.get_legend().get_window_extent()
    for line in axes.lines:
        points = axes.transData.transform(line.get_xydata())
        assert not any(box.contains(*point) for point in points)


def test_a_panel_can_be_drawn_into_axes_of_the_reader() -> None:
    from matplotlib.figure import Figure as Drawing

    figure, panel = one_panel()
    panel.curve(X, Y, label="mine")
    own = Drawing().subplots()
    assert draw(figure, own) is own
    assert own.lines[0].get_ydata().tolist() == Y.tolist()


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_pictures_are_written_in_the_format_of_the_name(tmp_path: Path, suffix: str) -> None:
    figure, panel = one_panel()
    panel.curve(X, Y)
    write(figure, tmp_path / f"picture{suffix}")
    head = (tmp_path / f"picture{suffix}").read_bytes()[:300]
    assert {".png": b"PNG", ".svg": b"<svg", ".pdf": b"%PDF"}[suffix] in head
    with pytest.raises(InputError, match=r"\.png"):
        write(figure, tmp_path / "picture.doc")


def test_formulas_become_letters_where_no_typesetter_is() -> None:
    assert unicode_math(r"kernel $\Theta^{(2)}_{ij}/n$") == "kernel Θ⁽²⁾ᵢⱼ/n"
    assert unicode_math(r"$|G^{\{1\}}|$, $\frac{a}{b}$") == "|G^{1}|, a/b"
    assert html_math(r"a < b, $C_W^2$") == "a &lt; b, C<sub>W</sub><sup>2</sup>"


def test_values_that_are_not_finite_leave_gaps_and_json_parses() -> None:
    figure, panel = one_panel()
    panel.curve(X, [1.0, np.nan, np.inf])
    text = json.dumps(specifications(figure), allow_nan=False)
    assert json.loads(text)[0]["data"][0]["y"] == [1.0, None, None]


def test_scales_shades_and_names() -> None:
    assert (scale_for([1, 2, 3]), scale_for([1e-3, 1.0]), scale_for([-1, 100])) == ("linear", "log", "linear")
    assert len(set(shades(7))) == 7
    assert names_axis(["a", "b"]).ticks == {0: "a", 1: "b"}


def test_making_a_picture_imports_no_drawing_library() -> None:
    code = (
        "import sys; from foretrain.support.answers import Figure; p = Figure('t').panel(x='x'); p.curve([1], [2]);"
        "assert not {'matplotlib', 'plotly', 'torch'} & {*sys.modules}, 'a drawing library was imported'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_axis_that_is_linear_near_0_is_bent_for_plotly_and_says_the_true_numbers() -> None:
    figure, panel = one_panel(y=Axis("height", "symlog", threshold=10.0))
    panel.curve([1, 2, 3, 4], [-1000.0, 0.0, 5.0, 100.0], "o", error=5.0)
    panel.level(y=10.0)
    specification = specifications(figure)[0]
    trace, axis = specification["data"][0], specification["layout"]["yaxis"]
    assert trace["y"] == pytest.approx([-2.3, 0.0, 0.15, 1.3])
    assert trace["customdata"] == [-1000.0, 0.0, 5.0, 100.0]
    assert trace["error_y"]["array"] == pytest.approx([np.log10(1000 / 995), 0.15, 0.15, np.log10(1.05)])
    assert trace["error_y"]["arrayminus"] == pytest.approx([np.log10(1.005), 0.15, 0.15, np.log10(1 / 0.95)])
    assert "customdata" in trace["hovertemplate"]
    assert specification["layout"]["shapes"][0]["y0"] == pytest.approx(0.3)
    ticks = dict(zip(axis["ticktext"], axis["tickvals"], strict=True))
    assert ticks["100"] == pytest.approx(1.3)
    assert ticks["-1000"] == pytest.approx(-2.3)
    assert ticks["0"] == 0


def test_of_equal_labels_the_first_stands_in_both_legends() -> None:
    figure, panel = one_panel()
    panel.curve(X, Y, "o", "same", "#ff0000")
    panel.curve(X, Y + 1, "-", "same", "#0000ff")
    panel.curve(X, Y + 2, "-", "other")
    legend = draw(figure).axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["same", "other"]
    assert legend.legend_handles[0].get_color() == "#ff0000"
    assert [trace["showlegend"] for trace in specifications(figure)[0]["data"]] == [True, False, True]


def test_the_caption_of_a_panel_is_drawn_below_it() -> None:
    figure = Figure()
    figure.panel("panel", x="place", caption="What one sees here.").curve(X, Y)
    assert draw(figure).axes[0].get_xlabel() == "place\nWhat one sees here."


def test_a_matrix_with_one_row_has_cells_that_can_be_seen() -> None:
    figure, panel = one_panel()
    panel.heat_map([[1.0, 2.0, 3.0]])
    axes = draw(figure).axes[0]
    assert axes.get_ylim() == (-0.5, 0.5)
    assert axes.get_xlim() == (-0.5, 2.5)
    assert [tick for tick in axes.get_yticks() if abs(tick) < 0.5] == [0]


def test_one_point_alone_is_a_dot_with_its_error() -> None:
    figure, panel = one_panel(x=Axis("layer", whole=True))
    panel.curve([2], [1.0], "-", "theory", band=0.5)
    axes = draw(figure).axes[0]
    (bars,) = axes.containers
    assert bars[0].get_marker() == "o"
    assert bars[2][0].get_segments()[0][:, 1].tolist() == [0.5, 1.5]
    assert [tick for tick in axes.get_xticks() if 1.5 <= tick <= 2.5] == [2]
    assert specifications(figure)[0]["data"][-1]["mode"] == "lines+markers"


@pytest.mark.parametrize("name", ["a$\\frac$b", "cost in $", "tab\tand\x01", "n" * 330])
def test_any_name_can_be_drawn(name: str, recwarn: pytest.WarningsRecorder) -> None:
    figure = Figure(name)
    panel = figure.panel(name, x=name, y=names_axis([name]))
    panel.curve([1, 2], [0, 0], label=name[:20])
    panel.note(1, 0, name[:20])
    drawing = draw(figure)
    drawing.draw_without_rendering()
    assert drawing.get_tightbbox().width < 2 * figure.inches()[0]
    assert max(map(len, drawing.get_suptitle().split("\n"))) < 100
    assert not recwarn.list


def test_pictures_of_datasets_name_their_places_and_keep_scales_apart() -> None:
    data = xarray.Dataset({"share": ("parameter", [1.0, 2.0]), "count": ("parameter", [1e4, 2e4])})
    figure = dataset_figure(data.assign_coords(parameter=["weight", "bias"]))
    assert [panel.y.label for panel in figure.panels] == ["share", "count"]
    assert all(panel.x.ticks == {0: "weight", 1: "bias"} for panel in figure.panels)
    rows = xarray.Dataset({"layer": ("row", [1, 2, 3]), "width": ("row", [3, 4, 5])})
    (panel,) = dataset_figure(rows).panels
    assert (panel.x.label, panel.x.whole, panel.y.label) == ("layer", True, "width")
    (panel,) = dataset_figure(xarray.Dataset({"lost": ("place", [np.nan, np.inf])})).panels
    assert any(getattr(mark, "text", "") == "no finite numbers" for mark in panel.marks)
