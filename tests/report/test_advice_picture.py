"""The picture of an advice: what it draws, where, and under which names."""

from __future__ import annotations

from io import BytesIO

import numpy as np
import pytest

from foretrain.report.advice import advice_figure
from foretrain.theory.advice import advise, information_curves


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("name", "arguments", "word"),
    [
        ("relu", {"width": 256, "n_out": 10, "depth": 50}, "exact, deep and wide"),
        ("tanh", {"width": 24, "n_out": 2, "gamma": 0.5}, "random networks of width 24, two errors"),
    ],
)
def test_curves_bands_and_the_point_asked_about(name: str, arguments: dict[str, object], word: str) -> None:
    found = advise(name, **arguments)
    figure = advice_figure(found, information_curves(found, draws=200))
    information, plane = figure.axes
    assert word in {text.get_text() for text in information.get_legend().get_texts()}
    named = {text.get_text() for text in plane.get_legend().get_texts()}
    assert {"inside", "at the edge", "outside"} <= named
    assert ("asked about" in named) == (found.depth is not None)
    line = next(line for line in information.lines if np.ptp(line.get_xdata()) == 0)
    assert line.get_xdata()[0] == found.best_ratio
    assert name in figure.get_suptitle()
    figure.savefig(target := BytesIO(), format="png")
    assert target.getvalue().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("outputs", "title"),
    [
        (1, "Information between halves of one output, in the sense of (A.73)"),
        (3, "Information between halves of 3 outputs, in the sense of (A.73)"),
        (10, "Information between 5 and 5 outputs"),
    ],
)
def test_halves_are_named(outputs: int, title: str) -> None:
    found = advise("linear", 100, n_out=outputs)
    figure = advice_figure(found, information_curves(found))
    assert figure.axes[0].get_title(loc="left") == title


def test_the_series_is_drawn_as_invalid_where_it_is_negative() -> None:
    found = advise("linear", 100, n_out=4)
    figure = advice_figure(found, information_curves(found))
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].lines}
    assert min(lines["series to third order, (A.71)"]) >= 0
    assert max(lines["the same where it is invalid"]) < 0
