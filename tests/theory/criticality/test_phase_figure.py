"""The picture of a phase diagram has the lines, the points and the words for what it shows."""

from __future__ import annotations

import numpy as np
import pytest

import foretrain as ft
from foretrain.support.answers.figure import Curve, Figure, HeatMap, Region
from foretrain.theory.criticality.critical_points import phase_figure
from foretrain.theory.criticality.phase_diagram import PHASES, phase_diagram


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("name", "gamma", "words"),
    [
        ("tanh", 0.5, {"$\\chi_\\perp = 1$", "$\\chi_\\parallel = 1$", "critical point"}),
        (
            "relu",
            0.0,
            {"$\\chi_\\perp = \\chi_\\parallel = 1$", "critical point", "kernel grows without bound"},
        ),
        (
            "gelu",
            0.0,
            {
                "$\\chi_\\perp = 1$",
                "$\\chi_\\parallel = 1$",
                "critical point",
                "critical point, unstable",
                "kernel grows without bound",
            },
        ),
    ],
)
def test_the_legend_names_what_is_drawn(name: str, gamma: float, words: set[str]) -> None:
    figure = phase_figure(phase_diagram(name, points=12, gamma=gamma))
    assert words_of(figure) == words
    assert name in figure.title
    assert ("γ = 0.5" in figure.title) == bool(gamma)


def test_the_legend_has_the_words_of_the_theory() -> None:
    diagram = phase_diagram("relu", points=12)
    for name in ("exploding", "cycling"):
        renamed = diagram.assign(phase=diagram["phase"].str.replace("exploding", name))
        assert words_of(phase_figure(renamed)) & {*PHASES.values()} == {PHASES[name]}


def test_the_critical_point_is_marked_where_it_is() -> None:
    marks = phase_figure(phase_diagram("tanh", points=12)).panels[0].marks
    (star,) = (mark for mark in marks if isinstance(mark, Curve) and mark.marker == "*")
    assert (star.x.item(), star.y.item()) == (1.0, 0.0)


def test_what_explodes_is_covered_up_to_its_exact_edge() -> None:
    """gelu from K = 1 explodes at small C_b beyond C_b = 1 - C_W g(1), a straight line and no staircase."""
    diagram = phase_diagram("gelu", C_b=(0.0, 0.05), C_W=(2.2, 2.4), points=21)
    marks = phase_figure(diagram).panels[0].marks
    (cover,) = (mark for mark in marks if isinstance(mark, Region))
    f = ft.gaussian.factor("gelu")
    g = float(ft.gaussian.expectation([f * f], [[1.0]]))
    np.testing.assert_allclose(cover.low, np.clip(1 - g * diagram["C_W"].values, 0.0, 0.05), atol=1e-8)
    explodes = diagram["C_b"].values[:, None] > diagram["explosion_C_b"].values
    np.testing.assert_array_equal(diagram["phase"].values == "exploding", explodes)
    (colours,) = (mark for mark in marks if isinstance(mark, HeatMap))
    assert np.isfinite(colours.values).all()


def test_criticality_draws_its_phases() -> None:
    found = ft.criticality("tanh")
    assert "C_W" in found.plot().axes[0].get_xlabel()
    assert found.to_dataset().attrs["activation"] == "tanh"


def words_of(figure: Figure) -> set[str]:
    return {mark.label for mark in figure.panels[0].marks if getattr(mark, "label", "")} - {
        mark.label for mark in figure.panels[0].marks if isinstance(mark, HeatMap)
    }
