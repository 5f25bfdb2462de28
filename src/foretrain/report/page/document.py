"""The page as one HTML file: style, scripts, plotly and all data are inside, so that it needs no network."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from foretrain._version import __version__
from foretrain.report.page import learning, signals
from foretrain.report.page.patient import (
    Patient,
    checks,
    findings,
    first_screen,
    measurements,
    outcome,
    remedy,
    settings,
    verdict,
)
from foretrain.support.answers import Answer
from foretrain.support.answers.html import (
    Markup,
    body_of,
    document,
    element,
    own_file,
    plotly_script,
)
from foretrain.support.atomic import new_file
from foretrain.support.errors import InputError

_TITLE = "How this network will learn"
# What only scripts bring to life is not shown without them; the numbers under every picture are.
_WITHOUT_SCRIPTS = ".plot, button { display: none !important; }"
_ORDER = (
    findings,
    remedy,
    outcome,
    learning.training,
    signals.phases,
    signals.agreement,
    signals.layers,
    learning.spectra,
    learning.modes,
    learning.states,
    learning.plateau,
    learning.rates,
    signals.inputs,
    checks,
    settings,
    measurements,
)


def write_page(
    path: str | Path, patients: Sequence[Patient], title: str = "", *, overwrite: bool = False
) -> int:
    """Write the page of some networks to one file that needs no network, and return its size in bytes."""
    content = page(patients, title).encode()
    with new_file(Path(path), overwrite=overwrite) as partial:
        partial.write_bytes(content)
    return len(content)


def sections_of(patient: Patient) -> list[Answer]:
    """What is folded below the first screen, in the order of reading; what was not measured is left out."""
    answers = (section(patient) for section in _ORDER)
    return [answer for answer in answers if answer is not None]


def page(patients: Sequence[Patient], title: str = "") -> str:
    """The whole document as text."""
    if not patients:
        raise InputError("there is no network to report on: give at least one patient.")
    heading = title or (patients[0].name if len(patients) == 1 else _TITLE)
    chapters = [(f"network-{number}", one, sections_of(one)) for number, one in enumerate(patients, 1)]
    scripts = (plotly_script(), own_file("pictures.js"), _own("behaviour.js"))
    # Only these scripts run, and nothing is fetched from anywhere.
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(f"'sha256-{value}'" for value in hashes)
    policy = (
        f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data: blob:; "
        "base-uri 'none'; form-action 'none'"
    )
    first = (
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("noscript", element("style", Markup(_WITHOUT_SCRIPTS))),
    )
    button = element("button", "Dark or light", type="button", id="theme")
    made = (
        f"Made by foretrain {__version__}. This file holds everything it shows and asks for nothing outside."
    )
    items = []
    for place, patient, sections in chapters:
        links = [element("a", one.title, href=f"#{_section_place(place, one)}") for one in sections]
        name = element("a", patient.name, class_="name", href=f"#{place}")
        items.append(element("li", name, element("ul", [element("li", link) for link in links])))
    inner = element("details", element("summary", "Contents"), element("ul", items), open=True)
    contents = element("nav", inner, class_="contents", aria_label="Contents")
    body = element(
        "body",
        element("a", "Skip to the content", class_="skip", href="#content"),
        element("header", element("h1", heading), button, class_="top"),
        element("div", contents, _main(chapters, heading), class_="layout"),
        element("footer", element("p", made)),
        element("p", id="said", class_="unseen", role="status", aria_live="polite"),
        [element("script", Markup(script)) for script in scripts],
    )
    return document(heading, _own("style.css"), body, *first, class_="foretrain", data_alive=True)


Chapter = tuple[str, Patient, list[Answer]]  # its place, the network, and what is said about it


def _main(chapters: Sequence[Chapter], heading: str) -> Markup:
    still = (
        "The pictures are drawn by this file's own scripts, which are switched off here: every text is complete, and "
        "“Numbers” under each picture shows what it would show."
    )
    notice = element("noscript", element("p", still, class_="notice"))
    verdicts = [verdict(patient, f"#{place}") for place, patient, _ in chapters]
    top = element("section", verdicts, class_="summary", aria_label="Summary") if len(chapters) > 1 else None
    articles = []
    for place, patient, sections in chapters:
        first = [
            element(
                "section",
                body_of(one, still=False),
                class_=f"{one.title.split()[0].lower()} {one.tone}".strip(),
            )
            for one in first_screen(patient)
        ]
        folded = [
            element(
                "details",
                element("summary", element("h3", one.title)),
                element("div", body_of(replace(one, title=""), still=False), class_="inside"),
                id=_section_place(place, one),
                class_="section",
            )
            for one in sections
        ]
        alone = "unseen" if len(chapters) == 1 and patient.name == heading else None  # said above already
        head = (
            element("h2", patient.name, class_=alone),
            verdict(patient),
            element("div", first, class_="first"),
        )
        names = {"class_": "patient", "id": place, "aria_label": patient.name}
        articles.append(element("article", *head, element("div", folded, class_="rest"), **names))
    return element("main", notice, top, articles, id="content", tabindex=-1)


def _section_place(place: str, section: Answer) -> str:
    return f"{place}-{re.sub('[^a-z]+', '-', section.title.lower())}"


def _own(name: str) -> str:
    return (files("foretrain.report.page") / name).read_text(encoding="utf-8")
