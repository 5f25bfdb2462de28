"""The page as a document: complete, self-contained, escaped, in order, readable in both sets of colours."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from plotly.graph_objects import Figure
from torch import nn

from foretrain.doctor.diagnosis import Diagnosis
from foretrain.doctor.examine import doctor
from foretrain.doctor.finding import Examination, Finding, Severity
from foretrain.report.page import Patient, page, sections_of, write_page
from foretrain.report.page.patient import first_screen, remedy, verdict
from foretrain.report.page.signals import phases
from foretrain.support.answers import Answer
from foretrain.support.answers.figure import Curve
from foretrain.support.answers.html import body_of, element, join, own_file
from foretrain.support.errors import FileError, InputError

STYLE = own_file("answers.css") + (files("foretrain.report.page") / "style.css").read_text(encoding="utf-8")


def markup(section: Answer) -> str:
    return join(body_of(section, still=False))


class Outline(HTMLParser):
    """Elements in their order with their attributes, texts by element, and whether tags match."""

    VOID = ("meta", "link", "br")

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(source)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag == "script" and dict(attrs).get("type"):
            tag = "data"
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        opened = self.open.pop()
        assert tag == ("script" if opened == "data" else opened)

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def all(self, *names: str) -> list[dict[str, str | None]]:
        return [attributes for tag, attributes in self.elements if tag in names]


@pytest.fixture(scope="module")
def source(page_file: Path) -> str:
    return page_file.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def outline(source: str) -> Outline:
    return Outline(source)


@pytest.mark.slow
def test_tags_match_and_names_are_unique(outline: Outline) -> None:
    assert outline.open == []
    names = [attributes["id"] for _, attributes in outline.elements if "id" in attributes]
    assert len(names) == len(set(names))
    targets = {str(a["href"])[1:] for a in outline.all("a")}
    labels = {str(a["aria-labelledby"]) for _, a in outline.elements if "aria-labelledby" in a}
    assert targets | labels <= set(names)


def test_nothing_outside_is_named_by_any_element(outline: Outline, source: str) -> None:
    for tag, attributes in outline.elements:
        assert "src" not in attributes, tag
        assert str(attributes.get("href", "#")).startswith(("#", "data:")), tag
    assert "@import" not in STYLE
    assert "url(" not in STYLE


def test_the_policy_lets_only_the_page_s_own_scripts_run(outline: Outline) -> None:
    policy = next(str(a["content"]) for a in outline.all("meta") if "http-equiv" in a)
    run = [text for tag, text in outline.texts if tag == "script"]
    assert len(run) == policy.count("sha256-") == 3
    for script in run:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'; script-src 'sha256-")


def test_headings_go_down_by_one_and_landmarks_are_there(outline: Outline) -> None:
    levels = [int(tag[1]) for tag, _ in outline.elements if re.fullmatch(r"h[1-6]", tag)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert [len(outline.all(tag)) for tag in ("header", "nav", "main", "footer")] == [1, 1, 1, 1]
    assert outline.all("html")[0]["lang"] == "en"


def test_every_plot_has_words_and_numbers(outline: Outline) -> None:
    plots = [a for a in outline.all("div") if a.get("class") == "plot"]
    data = [text for tag, text in outline.texts if tag == "data"]
    assert len(plots) == len(data) == len(outline.all("figure")) == len(outline.all("figcaption"))
    assert all(a["role"] == "img" and len(str(a["aria-label"])) > 40 for a in plots)
    assert len(outline.all("table")) > len(plots)


def test_plotly_knows_everything_it_is_told(outline: Outline) -> None:
    for text in (text for tag, text in outline.texts if tag == "data"):
        told = json.loads(re.sub(r"var\(--[a-z-]+\)(?: / [\d.]+)?", "#123456", text))
        Figure(data=told["data"], layout=told["layout"])


def test_colours_that_plots_name_are_in_the_style(source: str) -> None:
    named = set(re.findall(r"var\((--[a-z-]+)\)", source))
    assert named <= set(re.findall(r"(--[a-z-]+):", STYLE))


def test_what_users_write_is_escaped(source: str) -> None:
    assert "<script>alert" not in source
    assert "&lt;script&gt;alert" in source


def test_severity_is_a_word_and_a_symbol(source: str, patients: list[Patient]) -> None:
    for patient in patients:
        for finding in patient.diagnosis.findings:
            assert f"</span>{finding.severity.word.capitalize()}</span>" in source


def test_every_measurement_that_is_there_is_drawn(patients: list[Patient]) -> None:
    first, second, third = ({section.title for section in sections_of(patient)} for patient in patients)
    everywhere = {"All treatments", "All checks", "Settings"}
    measured = everywhere | {
        "Other findings",
        "Outcome in numbers",
        "Layer by layer",
        "Spectrum of the tangent kernel",
        "Modes of the target",
    }
    measured |= {"Learning rate", "Inputs", "All measurements"}
    network = {"Learning curve, predicted and real", "Phase diagram", "Theory beside measurement"}
    assert first == measured | network | {"Plateau forecast"}
    assert second == measured | {"States over time"}
    assert third == everywhere


def test_the_first_screen_holds_curve_cause_and_cure(patients: list[Patient]) -> None:
    first = patients[0]
    assert first.diagnosis.cause is not None
    cause = first.diagnosis.cause[1]
    outcome, why, cure = first_screen(first)
    assert [one.title for one in (outcome, why, cure)] == ["Outcome", "Cause", "Cure"]
    assert cause.title.rstrip(".") in why.statement
    assert cause.evidence in why.parts
    assert cure.statement == cause.advice
    assert str(element("i", cause.code))[3:-4] in markup(cure)
    assert "With the cure: " in markup(cure)
    (panel,) = outcome.figures[0].panels
    labels = [mark.label for mark in panel.marks if isinstance(mark, Curve)]
    assert labels == ["as given", "with the cure", "a constant"]  # too few samples to hold any out


def test_a_healthy_network_has_scores_instead_of_a_cause(patients: list[Patient]) -> None:
    torch.manual_seed(0)
    x = torch.randn(200, 4)
    network = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
    well = Patient("well", doctor(network, x, x[:, :1], optimizer=optimizer, checks=["outcome", "inputs"]))
    assert well.diagnosis.healthy
    _, seen = first_screen(well)
    assert seen.title == "What was seen"
    assert [row[0] for row in seen.tables[0].rows][-1] == "this network"
    assert "2 good in 2 checks." in verdict(well)


def test_the_verdict_says_what_was_seen_and_what_was_not_looked_at(patients: list[Patient]) -> None:
    first, second = patients[0].diagnosis, patients[1].diagnosis
    assert first.outcome is not None
    assert str(element("i", first.outcome.title))[3:-4] in verdict(patients[0])
    skipped = [name for name, one in second.examinations.items() if one.skipped]
    assert f"not looked at, skipped: {', '.join(skipped)}." in verdict(patients[1])


def test_everything_below_the_first_screen_is_folded(outline: Outline, patients: list[Patient]) -> None:
    folded = [a for a in outline.all("details") if a.get("class") == "section"]
    assert len(folded) == sum(len(sections_of(patient)) for patient in patients)
    assert not any("open" in one for one in folded)


def test_the_plan_stands_with_its_proof(patients: list[Patient]) -> None:
    first = patients[0]
    advice = remedy(first)
    assert advice is not None
    assert first.verification is not None
    (figure,) = advice.figures
    assert all(step.treatment.name[1:] in markup(advice) for step in first.verification.plan.steps)
    assert str(element("i", first.verification.plan.code))[3:-4] in markup(advice)
    assert figure.panels[0].caption.lower() == first.verification.verdict.lower()


def test_a_plan_needs_no_training_and_a_healthy_network_no_plan(patients: list[Patient]) -> None:
    first = patients[0].diagnosis
    planned = remedy(Patient("not trained", first))
    assert planned is not None
    assert first.plan().steps[0].treatment.name[1:] in markup(planned)
    assert not planned.has_figure
    good = Examination((Finding(Severity.GOOD, "All is well.", "1 of 1", "none"),))
    well = Diagnosis(first.setup, {"gains": good})
    assert remedy(Patient("well", well)) is None
    trained = remedy(Patient("well", well, patients[0].verification))
    assert trained is not None
    assert (trained.title, trained.has_figure) == ("How it trains", True)
    hopeless = remedy(patients[2])
    assert hopeless is not None
    assert "nothing to treat automatically" in hopeless.statement


def drawn_layers(section: Answer | None, label: str) -> list[Curve]:
    """Curves of this label beside the edge."""
    assert section is not None
    marks = section.figures[1].panels[0].marks
    return [mark for mark in marks if isinstance(mark, Curve) and mark.label == label]


def test_where_layers_should_lie_is_drawn_only_if_somebody_advises_it(patients: list[Patient]) -> None:
    found = patients[0].diagnosis
    seen = found.examinations["initialisation"]
    praise = replace(seen, findings=(Finding(Severity.GOOD, "All is well.", "1 of 1", "none"),))
    for one, count in ((seen, 1), (praise, 0)):
        part = phases(Patient("part", Diagnosis(found.setup, {"initialisation": one})))
        assert len(drawn_layers(part, "advised")) == count
        assert len(drawn_layers(part, "layers of this network")) == 1


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("activation", [nn.Tanh, nn.ReLU, nn.GELU, nn.Sigmoid])
def test_advised_layers_lie_on_the_edge_that_is_drawn(activation: type[nn.Module]) -> None:
    torch.manual_seed(0)
    layers: list[nn.Module] = [nn.Linear(8, 32), activation()]
    for _ in range(14):
        layers += [nn.Linear(32, 32), activation()]
    x = torch.randn(40, 8)
    network = nn.Sequential(*layers, nn.Linear(32, 1))
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.mul_(0.5)
    section = phases(Patient("deep", doctor(network, x, x[:, :1], optimizer=0.1, checks=["initialisation"])))
    (edge,), (advised,) = drawn_layers(section, r"$\chi_\perp = 1$"), drawn_layers(section, "advised")
    assert len(advised.x) == 14
    order = np.argsort(edge.y)
    np.testing.assert_allclose(advised.x, np.interp(advised.y, edge.y[order], edge.x[order]), rtol=1e-2)


def test_without_scripts_the_page_says_where_the_numbers_are(source: str) -> None:
    assert re.search(r"<noscript><p[^>]*>The pictures are drawn by this file", source)


def test_skipped_checks_give_their_reason(patients: list[Patient]) -> None:
    told = page(patients[1:2])
    skipped = [one.skipped for one in patients[1].diagnosis.examinations.values() if one.skipped]
    assert skipped
    assert all(str(element("i", reason))[3:-4] in told for reason in skipped)


def test_what_was_not_seen_to_learn_and_an_empty_diagnosis_are_told(patients: list[Patient]) -> None:
    setup = patients[0].diagnosis.setup
    good = Examination((Finding(Severity.GOOD, "All is well.", "1 of 1", "none"),))
    assert "Nothing was found that holds learning back (1 check; not looked at, whether it learns)" in page(
        [Patient("well", Diagnosis(setup, {"gains": good}))]
    )
    assert "None of the checks applies" in page([Patient("unknown", Diagnosis(setup, {}))])


@pytest.mark.slow
def test_every_check_can_be_missing(patients: list[Patient]) -> None:
    for patient in patients[:2]:
        for left_out in patient.diagnosis.examinations:
            others = {n: one for n, one in patient.diagnosis.examinations.items() if n != left_out}
            part = Diagnosis(patient.diagnosis.setup, others)
            assert "<h2" in page([Patient("part", part, patients[0].verification)])


def test_a_page_is_written_whole_and_not_over_another(patients: list[Patient], tmp_path: Path) -> None:
    path = tmp_path / "new" / "page.html"
    size = write_page(path, patients[2:])
    assert path.stat().st_size == size
    with pytest.raises(FileError, match="already exists"):
        write_page(path, patients[2:])
    assert write_page(path, patients[2:], "Title", overwrite=True) > 0
    assert [one.name for one in path.parent.iterdir()] == ["page.html"]
    with pytest.raises(InputError, match="at least one"):
        write_page(tmp_path / "none.html", [])
    assert not (tmp_path / "none.html").exists()


def colour_pairs() -> Iterator[tuple[str, str, str, float]]:
    """Foreground, background, theme and the least contrast that is asked of them."""
    for theme in ("light", "dark"):
        for ink in ("ink", "muted", "link"):
            for paper in ("page", "surface", "raised"):
                yield ink, paper, theme, 4.5
        for tone in ("critical", "warning", "note", "good"):
            for paper in (f"{tone}-tint", "surface"):
                yield tone, paper, theme, 4.5
            yield "ink", f"{tone}-tint", theme, 4.5
        for line in ("blue", "orange", "green", "purple", "red", "focus"):
            yield line, "surface", theme, 3.0


@pytest.mark.parametrize(("front", "back", "theme", "least"), list(colour_pairs()))
def test_contrast(front: str, back: str, theme: str, least: float) -> None:
    high, low = sorted((luminance(front, theme), luminance(back, theme)), reverse=True)
    assert (high + 0.05) / (low + 0.05) >= least


def luminance(name: str, theme: str) -> float:
    """Relative luminance by the accessibility guidelines (WCAG 2)."""
    found = re.search(rf"--{name}: light-dark\((#[0-9a-f]{{6}}), (#[0-9a-f]{{6}})\)", STYLE)
    assert found is not None, name
    text = found[1 if theme == "light" else 2]
    parts = [int(text[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
