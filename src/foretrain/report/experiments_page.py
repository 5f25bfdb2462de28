"""The page of a run of several experiments: one table of verdicts, then every experiment's rows and picture."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from foretrain._version import __version__
from foretrain.experiments import registry
from foretrain.experiments.experiment import KNOWN, rows_table
from foretrain.experiments.runs.outcome import differences_table, verdicts_table
from foretrain.report.page.markup import Markup, element, join
from foretrain.support.answers import Table
from foretrain.support.answers.folder import DOCUMENT, PICTURE
from foretrain.support.atomic import new_file
from foretrain.support.errors import InputError
from foretrain.support.store import DATA

if TYPE_CHECKING:
    from foretrain.experiments.runs import Record, Run

_PAGE = "index.html"
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; font-size: 13px; margin: 1rem 0; display: block; overflow-x: auto; }
th, td { padding: .2rem .7rem; text-align: left; vertical-align: top; border-bottom: 1px solid #e6e6e6; }
td.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.known td { background: #fdf6e3; } tr.wrong td { background: #fbe3dc; }
img { max-width: 100%; border: 1px solid #eee; }
section { border-top: 2px solid #ddd; margin-top: 2rem; }
summary { cursor: pointer; } .source { color: #666; } a { color: #0072B2; }
"""


def write_experiments_page(run: Run) -> Path:
    """Write index.html beside the folders of a run's experiments, whose pictures it shows; return its place."""
    if run.folder is None:
        raise InputError("this run is not kept in a folder: run the experiments with `keep=`.")
    title = "Experiments of foretrain"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="generator", content=f"foretrain {__version__}"),
        element("title", title),
        element("style", Markup(_STYLE)),
    )
    body = element(
        "body", element("h1", title), _overview(run), [_section(run.folder, record) for record in run.records]
    )
    path = run.folder / _PAGE
    with new_file(path, overwrite=True) as partial:
        partial.write_text(f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n', encoding="utf-8")
    return path


def _overview(run: Run) -> Iterator[Markup]:
    yield element("p", f"foretrain {__version__}, scale {run.scale}, seed {run.seed}", class_="source")
    yield _table(verdicts_table(run.records), linked=True)
    wrong = differences_table(run.records)
    if wrong.rows:
        yield element("p", "Rows that disagree:")
        yield _table(wrong, linked=True)
    yield element("p", run.verdict)
    yield element("p", "Shaded: rows that disagree, darker where no explanation is known.")


def _section(folder: Path, record: Record) -> Markup:
    experiment = registry.get(record.name)
    own = folder / record.name
    parts = [element("h2", experiment.title), element("p", experiment.source, class_="source")]
    if record.error:
        return element("section", parts, element("p", record.ending), id=record.name)
    parts.append(element("p", element("strong", record.verdict)))
    if (own / PICTURE).exists():
        place, words = quote(f"{record.name}/{PICTURE}"), html.escape(f"Picture: {experiment.title}")
        parts.append(Markup(f'<img loading="lazy" src="{place}" alt="{words}">'))
    answer = json.loads((own / DOCUMENT).read_text(encoding="utf-8"))
    summary = element("summary", f"{record.rows} rows, {record.agree} agree, {record.disagree} disagree")
    table = _table(rows_table(answer["rows"]))
    parts.append(element("details", summary, table, open=bool(record.disagree)))
    data = element("a", f"{record.name}/{DATA}", href=f"{quote(record.name)}/{DATA}")
    return element("section", parts, element("p", "Labelled data: ", data), id=record.name)


def _table(told: Table, *, linked: bool = False) -> Markup:
    """Rows that disagree are shaded; the first column may lead to the sections."""
    classes = ["number" if told.numeric(column) else None for column in range(len(told.columns))]
    head = element("tr", [element("th", name) for name in told.headings])
    body = []
    for texts in told.texts():
        first = element("a", texts[0], href=f"#{quote(texts[0])}") if linked else texts[0]
        cells = [element("td", cell, class_=k) for cell, k in zip([first, *texts[1:]], classes, strict=True)]
        body.append(element("tr", cells, class_=_shade(told.headings, texts)))
    return join([element("table", element("thead", head), element("tbody", body))])


def _shade(columns: Sequence[str], texts: Sequence[str]) -> str | None:
    """By the cell that says how a row or an experiment ended."""
    told = dict(zip(columns, texts, strict=True))
    ending = told.get("verdict", "")
    if "no" in (told.get("agrees"), told.get("explained")) or ending.startswith(("DISAGREES", "FAILED")):
        return "wrong"
    known = told.get("agrees") == KNOWN or told.get("explained") == "yes" or ending.startswith("agrees, but")
    return "known" if known else None
