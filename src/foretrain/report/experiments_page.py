"""The page of a run of several experiments: the answer of the run, then that of every experiment."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from foretrain._version import __version__
from foretrain.experiments import registry
from foretrain.experiments.registry import rows_table
from foretrain.support.answers import Answer, Part, Table
from foretrain.support.answers.folder import DOCUMENT, PICTURE
from foretrain.support.answers.html import body_of, document, element, part_markup
from foretrain.support.atomic import new_file
from foretrain.support.errors import InputError
from foretrain.support.store import DATA

if TYPE_CHECKING:
    from foretrain.experiments.runs import Record, Run

_STYLE = (
    "body { max-width: 76rem; margin: 2rem auto; padding: 0 1rem; } body > * { margin: 1rem 0; } "
    "img { max-width: 100%; }"
)


def write_experiments_page(run: Run) -> Path:
    """Write index.html beside the folders of a run's experiments, whose pictures it shows; return its place."""
    if run.folder is None:
        raise InputError("this run is not kept in a folder: run the experiments with `keep=`.")
    title = "Experiments of foretrain"
    whole = run.answer()
    tables = [_linked(part) if isinstance(part, Table) else part for part in whole.parts]
    body = element(
        "body",
        element("h1", title),
        element("p", f"foretrain {__version__}, scale {run.scale}, seed {run.seed}"),
        body_of(replace(whole, parts=[part for part in tables if not callable(part)])),
        [element("div", part_markup(_section(run.folder, one)), id=one.name) for one in run.records],
        class_="foretrain",
    )
    path = run.folder / "index.html"
    with new_file(path, overwrite=True) as partial:
        partial.write_text(document(title, _STYLE, body), encoding="utf-8")
    return path


def _linked(table: Table) -> Table:
    """With the first column, the names of experiments, leading to their sections."""
    rows = [(element("a", row[0], href=f"#{quote(row[0])}"), *row[1:]) for row in table.rows]
    return Table(table.columns, rows, table.caption)


def _section(folder: Path, record: Record) -> Answer:
    experiment, own = registry.get(record.name), folder / record.name
    tone = "critical" if not record.holds else "warning" if record.disagree else "good"
    parts: list[Part] = [record.verdict or record.ending, f"Source: {experiment.source}"]
    if (own / PICTURE).exists():
        place, words = quote(f"{record.name}/{PICTURE}"), f"Picture: {experiment.title}"
        parts.append(element("img", loading="lazy", src=place, alt=words))
    if not record.error:
        rows = json.loads((own / DOCUMENT).read_text(encoding="utf-8"))["rows"]
        counts = f"{record.rows} rows, {record.agree} agree, {record.disagree} disagree"
        link = element("a", f"{record.name}/{DATA}", href=f"{quote(record.name)}/{DATA}")
        parts += [
            Answer(counts, [rows_table(rows)], folded=not record.disagree),
            element("p", "Labelled data: ", link),
        ]
    return Answer(experiment.title, parts, title=record.ending, tone=tone)
