"""The picture of an advice: what it draws, where, and under which names."""

from __future__ import annotations

import pytest

from foretrain.support.answers.figure import Level, Panel
from foretrain.theory.advice import advice_figure, advise


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
    figure = advice_figure(found, draws=200)
    information, plane = figure.panels
    assert word in labels(information)
    named = labels(plane)
    assert {"inside", "at the edge", "outside"} <= named
    assert ("asked about" in named) == (found.depth is not None)
    (best,) = (mark.x for mark in information.marks if isinstance(mark, Level) and mark.x is not None)
    assert best == found.best_ratio
    assert name in figure.title


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
    assert advice_figure(found).panels[0].title == title


def test_the_series_is_drawn_as_invalid_where_it_is_negative() -> None:
    found = advise("linear", 100, n_out=4)
    curves = {
        mark.label: mark.y for mark in advice_figure(found).panels[0].marks if getattr(mark, "label", "")
    }
    assert min(curves["series to third order, (A.71)"]) >= 0
    assert max(curves["the same where it is invalid"]) < 0
    assert len(found.plot().axes) == 2


def labels(panel: Panel) -> set[str]:
    return {mark.label for mark in panel.marks if getattr(mark, "label", "")}
