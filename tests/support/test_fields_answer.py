"""Results that are a few fields present themselves without a line of their own."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from foretrain.support.answers import Answer, Result, fields_answer


@dataclass(frozen=True, repr=False, eq=False)
class Inner(Result):
    """What is inside."""

    size: float = 2.5

    def answer(self) -> Answer:
        return Answer(f"of size {self.size:g}", record={"size": self.size})


@dataclass(frozen=True, repr=False, eq=False)
class Outer(Result):
    """A few numbers.

    And more about them.
    """

    value: float
    parts: dict[str, float]
    matrix: np.ndarray
    inner: Inner = field(default_factory=Inner)

    @property
    def double(self) -> float:
        return 2 * self.value


@dataclass(frozen=True, repr=False, eq=False)
class Explained(Outer):
    def answer(self) -> Answer:
        return fields_answer(self, "Said.", {"double": "twice the value"})


FOUND = Outer(1.5, {"a": 1.0, "b": -2.0}, np.eye(3))


def test_the_text_says_what_it_is_and_what_it_holds() -> None:
    text = repr(FOUND)
    assert text.startswith("Outer: A few numbers.\n")
    for words in ("1.5", "a = 1, b = -2", "3 × 3 numbers from 0 to 1", "of size 2.5"):
        assert words in text
    assert "A few numbers." in FOUND._repr_html_()


def test_machines_get_all_fields_and_results_inside_speak_for_themselves() -> None:
    found = FOUND.to_dict()
    assert (found["type"], found["value"], found["parts"]) == ("Outer", 1.5, {"a": 1.0, "b": -2.0})
    assert found["inner"] == {"size": 2.5}
    data = FOUND.to_dataset()
    assert float(data["parts_b"]) == -2.0
    np.testing.assert_array_equal(data["matrix"], np.eye(3))


def test_meanings_may_name_further_attributes() -> None:
    found = Explained(1.5, {}, np.zeros(0))
    (row,) = (line for line in repr(found).splitlines() if line.startswith("double"))
    assert row.split() == ["double", "3", "twice", "the", "value"]
    assert repr(found).startswith("Said.\n")


def test_without_a_picture_of_its_own_the_numbers_are_drawn() -> None:
    (panel, _bar) = FOUND.plot().axes
    assert panel.get_title() == "matrix"
    np.testing.assert_array_equal(panel.collections[0].get_array(), np.eye(3))


def test_properties_may_be_shown_with_what_they_document() -> None:
    @dataclass(frozen=True, repr=False)
    class Sum(Result):
        """Two numbers."""

        also = ("total",)
        first: float
        second: float

        @property
        def total(self) -> float:
            """Both together."""
            return self.first + self.second

    assert repr(Sum(1.0, 2.5)).splitlines()[4].split() == ["total", "3.5", "Both", "together."]
    assert Sum(1.0, 2.5).to_dict()["total"] == 3.5
