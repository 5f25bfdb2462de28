"""What answers look like as text and on a page: facts, cards, code, badges, numbers and the pictures' data."""

from __future__ import annotations

import re

import numpy as np
import pytest
import xarray

from foretrain.support.answers import (
    Answer,
    Axis,
    Code,
    Facts,
    Figure,
    Table,
    Tone,
    dataset_tables,
    log,
    names_axis,
)
from foretrain.support.answers.formulas import number_text
from foretrain.support.answers.html import MOST_ROWS, Markup, body_of, element, fragment, join, table_markup
from foretrain.support.answers.plotly_renderer import numbers, specifications
from foretrain.support.answers.text import plain

CARDS = Answer(
    "Two findings.",
    [
        Answer("It is <small>.", [Facts({"Evidence": "0.1 & less"})], title="size", tone="critical"),
        Answer("It is odd.", ["Never printed."], tone="note", folded=True),
        Answer("It is fine.", tone="good", folded=True),
        Code("\n".join(f"line_{n}" for n in range(20)), "All of it", brief=True),
    ],
)


def markup(answer: Answer) -> str:
    return join(body_of(answer, still=False))


def test_folded_answers_are_one_line_each_and_brief_code_is_cut() -> None:
    assert plain(CARDS).split("\n\n") == [
        "Two findings.",
        "CRITICAL: size: It is <small>.",
        "Evidence: 0.1 & less",
        "note: It is odd.\ngood: It is fine.",
        "\n".join(["All of it", *(f"  line_{n}" for n in range(13)), "  # ... 7 more lines\n"]),
    ]


def test_prose_is_broken_to_a_width_and_code_is_not() -> None:
    text = plain(Answer("word " * 30, [Code("x = 1" + " + 1" * 30)]), 40)
    assert max(len(line) for line in text.splitlines() if "word" in line) <= 40
    assert "  x = 1" + " + 1" * 30 in text


def test_cards_have_a_badge_and_are_open_unless_folded() -> None:
    page = markup(CARDS)
    assert re.search(r'<details class="card critical" open><summary><span class="badge critical">', page)
    assert '<details class="card note"><summary>' in page
    assert "It is &lt;small&gt;." in page
    assert "<dt>Evidence</dt><dd>0.1 &amp; less</dd>" in page
    assert "line_19" in page


def test_every_part_stands_in_the_document_for_machines() -> None:
    document = Answer("It holds.", [Facts({"Loss": "0.1"}), Table(("a",), [(1,)])]).document()
    assert document["texts"] == ["Loss: 0.1"]
    assert document["tables"][0]["rows"] == [{"a": 1}]


def test_cells_are_badges_and_powers_of_ten() -> None:
    rows = [("a", Tone("good"), 1.5e-7, True), ("b", Tone("note"), np.nan, False), ("c", "", np.inf, None)]
    page = table_markup(Table(("name", "result", "number", "known"), rows))
    assert '<span class="badge good">' in page
    assert all(f">{text}</td>" in page for text in ("1.5 × 10⁻⁷", "–", "∞", "yes", "no"))


def test_long_tables_are_thinned_with_both_ends() -> None:
    long = Table(("n", "square"), [(i, i * i) for i in range(1000)], "squares")
    short = long.thinned(MOST_ROWS)
    assert len(short.rows) == MOST_ROWS
    assert (short.rows[0], short.rows[-1]) == (long.rows[0], long.rows[-1])
    assert "of 1000" in table_markup(long)
    assert Table(("n", "square"), long.rows[:5]).thinned(MOST_ROWS).rows == long.rows[:5]


def test_elements_are_escaped() -> None:
    assert element("p", "a<b", None, [Markup("<i>c</i>")], class_="d", hidden=True, title=None) == (
        '<p class="d" hidden>a&lt;b<i>c</i></p>'
    )
    assert element("meta", name='"') == '<meta name="&quot;">'


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (12345, "12,345"),
        (-0.25, "−0.250"),
        (3.14159, "3.14"),
        (1.5e-7, "1.50 × 10⁻⁷"),
        (2e12, "2.00 × 10¹²"),
        (np.inf, "∞"),
        (np.nan, "not known"),
    ],
)
def test_numbers_in_sentences(value: float, text: str) -> None:
    assert number_text(value) == text


def test_a_dataset_is_shown_by_dimension() -> None:
    data = xarray.Dataset(
        {
            "size": ("layer", [1.0, 2.0], {"units": "nats"}),
            "rank": ((), 3.0),
            "left": (("step", "layer"), np.ones((3, 2))),
        },
        {"layer": ["a", "b"]},
        {"samples": 7},
    )
    single, layers, crossed = dataset_tables(data)
    assert list(single.rows) == [("rank", 3.0), ("samples", 7)]
    assert (layers.headings, list(layers.rows)) == (("layer", "size (nats)"), [("a", 1.0), ("b", 2.0)])
    assert crossed.headings == ("step", "layer a", "layer b")
    assert len(crossed.rows) == 3


def toggles(**axes: Axis) -> dict[str, str]:
    figure = Figure()
    figure.panel(**{"x": Axis("step"), "y": Axis("loss (nats)"), **axes}).curve([0, 1, 100], [5.0, 6.0, 7.0])
    (one,) = specifications(figure)
    found: dict[str, str] = one["toggles"]
    return found


def test_axes_that_can_be_logarithmic_are_offered() -> None:
    assert toggles() == {"xaxis": "Logarithmic step"}  # the loss hardly differs
    assert toggles(y=log("loss (nats)")) == {"xaxis": "Logarithmic step", "yaxis": "Logarithmic loss"}
    assert toggles(x=Axis("layer", whole=True)) == {}
    assert toggles(x=names_axis(["a", "b"])) == {}
    figure = Figure()
    figure.panel(y="score").curve([1, 2], [-1.0, 9.0])
    figure.panel(y="percent").bars(["a", "b"], [1.0, 90.0])
    assert [one["toggles"] for one in specifications(figure)] == [{}, {}]


def test_curves_over_the_same_places_are_read_together() -> None:
    figure = Figure()
    for x, second in ((Axis("step"), [0, 1]), (Axis("step"), [0, 2]), (names_axis(["a", "b"]), [0, 1])):
        panel = figure.panel(x=x)
        panel.curve([0, 1], [1.0, 2.0], label="one")
        panel.curve(second, [1.0, 2.0], label="two")
    together, apart, named = specifications(figure)
    assert [one["layout"]["hovermode"] for one in (together, apart, named)] == [
        "x unified",
        "closest",
        "closest",
    ]
    assert named["data"][0]["text"] == ["a", "b"]


def test_names_under_an_axis_are_few_short_and_no_markup() -> None:
    names = ["<b>bold</b>", *(f"an_endless_name_of_a_module_{i}" for i in range(49))]
    figure = Figure()
    figure.panel(x=names_axis(names)).curve(range(50), range(50), "o")
    made = specifications(figure)[0]["layout"]["xaxis"]
    assert made["tickvals"] == list(range(0, 50, 5))
    assert made["ticktext"][0] == "&lt;b&gt;bold&lt;/b&gt;"
    assert all(len(text) <= 18 and "…" in text for text in made["ticktext"][1:])


def test_the_numbers_of_bars_side_by_side_and_of_points_at_one_place_are_all_there() -> None:
    panel = Figure().panel(x=names_axis(["a", "b"]))
    panel.bars([-0.2, 0.8], [1.0, 2.0], "left", width=0.4)
    panel.bars([0.2, 1.2], [3.0, 4.0], "right", width=0.4)
    assert list(numbers(panel).rows) == [("a", 1.0, 3.0), ("b", 2.0, 4.0)]
    panel = Figure().panel(x="x")
    panel.curve([2.0, 2.0], [1.0, 5.0], "o")
    assert list(numbers(panel).rows) == [(2.0, 1.0), (2.0, 5.0)]


def test_panels_alone_in_their_row_are_wide() -> None:
    figure = Figure(layout="AB CC")
    for _ in range(3):
        figure.panel(x="step", y="loss", caption="Falls.").curve([0, 1], [1.0, 0.5])
    page = markup(Answer("", [figure]))
    assert page.count("<figure>") == 2
    assert page.count('<figure class="wide">') == 1
    assert page.count("<figcaption>Falls.</figcaption>") == 3
    assert "<img" not in page
    assert "<img" in fragment(Answer("", [figure]))
