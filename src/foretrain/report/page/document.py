"""The page as one HTML file: style, scripts, plotly and all data are inside, so that it needs no network."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from foretrain._version import __version__
from foretrain.report.page.markup import Markup, element
from foretrain.report.page.patient import Patient
from foretrain.report.page.section import Section
from foretrain.report.page.sections import sections_of
from foretrain.report.page.sections.findings import verdict
from foretrain.report.page.sections.overview import facts
from foretrain.support.atomic import new_file
from foretrain.support.errors import InputError

_TITLE = "How this network will learn"
# What only scripts bring to life is not shown without them; the numbers under every picture are.
_WITHOUT_SCRIPTS = ".drawing, .controls, button { display: none !important; }"


def write_page(
    path: str | Path, patients: Sequence[Patient], title: str = "", *, overwrite: bool = False
) -> int:
    """Write the page of some networks to one file that needs no network, and return its size in bytes."""
    content = page(patients, title).encode()
    with new_file(Path(path), overwrite=overwrite) as partial:
        partial.write_bytes(content)
    return len(content)


def page(patients: Sequence[Patient], title: str = "") -> str:
    """The whole document as text."""
    if not patients:
        raise InputError("there is no network to report on: give at least one patient.")
    told = title or (patients[0].name if len(patients) == 1 else _TITLE)
    chapters = [(patient, sections_of(patient)) for patient in patients]
    plots = {
        f"{_prefix(place)}-{section.name}-{plot.name}": plot.specification()
        for place, (_, sections) in enumerate(chapters)
        for section in sections
        for plot in section.plots
    }
    scripts = (_plotly(), _own("behaviour.js"))
    head = _head(told, _policy(scripts))
    body = _body(told, chapters, plots, scripts)
    return f'<!DOCTYPE html>\n<html lang="en">\n{head}\n{body}\n</html>\n'


def _head(title: str, policy: str) -> Markup:
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="generator", content=f"foretrain {__version__}"),
        element("link", rel="icon", href="data:,"),
        element("title", title),
        element("style", Markup(_own("style.css"))),
        element("noscript", element("style", Markup(_WITHOUT_SCRIPTS))),
    )


def _body(
    title: str,
    chapters: Sequence[tuple[Patient, Sequence[Section]]],
    plots: Mapping[str, Any],
    scripts: Sequence[str],
) -> Markup:
    head = element(
        "header",
        element("h1", title),
        element("button", "Dark or light", type="button", id="theme"),
        class_="top",
    )
    made = (
        f"Made by foretrain {__version__}. This file holds everything it shows and asks for nothing outside."
    )
    return element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#content"),
        head,
        element("div", _contents(chapters), _main(chapters), class_="layout"),
        element("footer", element("p", made)),
        element("p", id="said", class_="unseen", role="status", aria_live="polite"),
        element("script", Markup(_safe_json(plots)), type="application/json", id="plots"),
        [element("script", Markup(script)) for script in scripts],
    )


def _main(chapters: Sequence[tuple[Patient, Sequence[Section]]]) -> Markup:
    several = len(chapters) > 1
    top = element(
        "section",
        [verdict(patient, f"#{_prefix(place)}") for place, (patient, _) in enumerate(chapters)],
        class_="summary",
        aria_label="Summary",
    )
    told = [_chapter(patient, sections, _prefix(place)) for place, (patient, sections) in enumerate(chapters)]
    still = (
        "The pictures are drawn by this file's own scripts, which are switched off here: every text is complete, and "
        "“Numbers” under each picture shows what it would show."
    )
    notice = element("noscript", element("p", still, class_="notice"))
    return element("main", notice, top if several else None, told, id="content", tabindex=-1)


def _chapter(patient: Patient, sections: Sequence[Section], prefix: str) -> Markup:
    return element(
        "article",
        element("h2", patient.name, id=f"{prefix}-heading"),
        verdict(patient),
        facts(patient),
        [section.markup(prefix) for section in sections],
        class_="patient",
        id=prefix,
        aria_labelledby=f"{prefix}-heading",
    )


def _contents(chapters: Sequence[tuple[Patient, Sequence[Section]]]) -> Markup:
    items = [_entry(patient, sections, _prefix(place)) for place, (patient, sections) in enumerate(chapters)]
    return element(
        "nav",
        element("details", element("summary", "Contents"), element("ul", items), open=True),
        class_="contents",
        aria_label="Contents",
    )


def _entry(patient: Patient, sections: Sequence[Section], prefix: str) -> Markup:
    links = [
        element("li", element("a", section.title, href=f"#{prefix}-{section.name}")) for section in sections
    ]
    return element("li", element("a", patient.name, class_="name", href=f"#{prefix}"), element("ul", links))


def _prefix(place: int) -> str:
    return f"network-{place + 1}"


def _own(name: str) -> str:
    return (files("foretrain.report.page") / name).read_text(encoding="utf-8")


def _plotly() -> str:
    """Plotly's script. The end of a script element must not stand inside one."""
    from plotly.offline import get_plotlyjs

    script: str = get_plotlyjs()
    return script.replace("</script", "<\\/script")


def _policy(scripts: Sequence[str]) -> str:
    """Only these two scripts run, and nothing is fetched from anywhere."""
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    return (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )


def _safe_json(value: Any) -> str:
    """JSON in which nothing can end the element that holds it."""
    text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
