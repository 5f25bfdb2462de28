"""A section of the page: a heading, a sentence that says how to read it, and texts, tables and pictures."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from foretrain.report.page.markup import Markup, element
from foretrain.report.page.plots.plot import Plot
from foretrain.report.page.table import Table, table

Part = Markup | Table | Plot


@dataclass(frozen=True)
class Section:
    """``parts`` in their order; neighbouring pictures stand side by side where there is room."""

    name: str
    title: str
    lead: str
    parts: Sequence[Part]

    @property
    def plots(self) -> tuple[Plot, ...]:
        """Its pictures."""
        return tuple(part for part in self.parts if isinstance(part, Plot))

    def markup(self, prefix: str) -> Markup:
        """As HTML; ``prefix`` keeps the names of several networks apart."""
        place = f"{prefix}-{self.name}"
        return element(
            "section",
            element("h3", self.title, id=f"{place}-heading"),
            element("p", self.lead, class_="lead") if self.lead else None,
            _arranged(self.parts, place),
            id=place,
            aria_labelledby=f"{place}-heading",
        )


def _arranged(parts: Sequence[Part], place: str) -> Iterator[Markup]:
    for drawn, group in groupby(parts, key=lambda part: isinstance(part, Plot)):
        if drawn:
            plots = [part.markup(place) for part in group if isinstance(part, Plot)]
            yield element("div", plots, class_="figures")
        else:
            yield from (
                table(part) if isinstance(part, Table) else part
                for part in group
                if not isinstance(part, Plot)
            )
