"""The picture of a phase diagram has the lines, the points and the words for what it shows."""

from __future__ import annotations

from io import BytesIO

import pytest

from foretrain.report.phases import phase_figure
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
    assert {text.get_text() for text in figure.legends[0].get_texts()} == words
    title = figure.get_suptitle()
    assert name in title
    assert ("γ = 0.5" in title) == bool(gamma)
    figure.savefig(target := BytesIO(), format="png")
    assert target.getvalue().startswith(b"\x89PNG")


def test_the_legend_has_the_words_of_the_theory() -> None:
    diagram = phase_diagram("relu", points=12)
    for name in ("exploding", "cycling"):
        renamed = diagram.assign(phase=diagram["phase"].str.replace("exploding", name))
        words = {text.get_text() for text in phase_figure(renamed).legends[0].get_texts()}
        assert words & {*PHASES.values()} == {PHASES[name]}


def test_the_critical_point_is_marked_where_it_is() -> None:
    figure = phase_figure(phase_diagram("tanh", points=12))
    (star,) = (line for line in figure.axes[0].lines if line.get_marker() == "*")
    assert (star.get_xdata().item(), star.get_ydata().item()) == (1.0, 0.0)
