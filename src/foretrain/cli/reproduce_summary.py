"""The verdicts of several experiments as the answer of a command: document, tables, data and picture."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from foretrain.cli.frame import Answer
from foretrain.cli.output import Table
from foretrain.cli.reproduce_record import Record

if TYPE_CHECKING:
    import xarray
    from matplotlib.figure import Figure

    from foretrain.experiments.registry import Scale

_COLUMNS = ("experiment", "rows", "agree", "disagree", "of these explained", "seconds", "verdict")
_DIFFERENCES = ("experiment", "quantity", "published or theory", "here", "explained", "note")


def summary(records: Sequence[Record], scale: Scale, seed: int) -> Answer:
    """It holds if every experiment came to its end, and every row that disagrees is explained."""
    rows = [
        (
            record.name,
            record.rows,
            record.agree,
            record.disagree,
            record.explained,
            round(record.seconds, 1),
            record.ending,
        )
        for record in records
    ]
    holds, verdict = all(record.holds for record in records), verdict_of(records)
    document = [record.document for record in records]
    return Answer(
        {"scale": scale, "seed": seed, "verdict": verdict, "holds": holds, "experiments": document},
        [Table(_COLUMNS, rows), *_differences(records), verdict],
        data=_dataset(records, scale, seed, verdict),
        figure=partial(_draw, tuple(records)),
        holds=holds,
    )


def verdict_of(records: Sequence[Record]) -> str:
    """One sentence."""
    agree, disagree, explained = (
        sum(getattr(record, key) for record in records) for key in ("agree", "disagree", "explained")
    )
    failed = sum(bool(record.error) for record in records)
    return (
        f"{agree} tested rows of {len(records)} experiments agree, {disagree} disagree"
        + (f" ({explained} of them with an explanation)" if disagree else "")
        + (f"; {failed} experiments failed." if failed else ".")
    )


def _differences(records: Sequence[Record]) -> list[str | Table]:
    """The rows that disagree, with what is known about them; those without an explanation first."""
    rows = [
        (record.name, row.quantity, row.expected, row.here, row.explained, row.note)
        for explained in (False, True)
        for record in records
        for row in record.differences
        if row.explained == explained
    ]
    return ["Rows that disagree:", Table(_DIFFERENCES, rows)] if rows else []


def _dataset(records: Sequence[Record], scale: Scale, seed: int, verdict: str) -> xarray.Dataset:
    import xarray

    columns: dict[str, Any] = {
        key: ("experiment", [getattr(record, key) for record in records])
        for key in ("rows", "agree", "disagree", "explained", "seconds", "verdict", "error", "holds")
    }
    return xarray.Dataset(
        columns,
        coords={"experiment": [record.name for record in records]},
        attrs={"scale": str(scale), "seed": seed, "verdict": verdict},
    )


def _draw(records: Sequence[Record]) -> Figure:
    """Tested rows of every experiment by how they ended, and how long it took."""
    from foretrain.support.drawing import FAINT, GREEN, ORANGE, RED, new_figure

    figure, (counts, times) = new_figure("Experiments", 1, 2, (13, 1.6 + 0.26 * len(records)))
    place = list(range(len(records)))
    left = [0] * len(records)
    parts = {
        "agree": ([record.agree for record in records], GREEN),
        "disagree, explained": ([record.explained for record in records], ORANGE),
        "disagree": ([record.disagree - record.explained for record in records], RED),
    }
    for label, (values, colour) in parts.items():
        counts.barh(place, values, left=left, color=colour, label=label)
        left = [a + b for a, b in zip(left, values, strict=True)]
    for index, record in enumerate(records):
        if record.error:
            counts.text(0.2, index, "failed", color=RED, va="center", fontsize=9)
    times.barh(place, [record.seconds for record in records], color=FAINT)
    for panel, label in ((counts, "tested rows"), (times, "seconds")):
        panel.set(xlabel=label, ylim=(len(records) - 0.5, -0.5))
    counts.set_yticks(place, [record.name for record in records], fontsize=9)
    times.set_yticks(place, [""] * len(records))
    counts.legend(frameon=False, fontsize=9, ncol=3, loc="lower left", bbox_to_anchor=(0, 1))
    return figure
