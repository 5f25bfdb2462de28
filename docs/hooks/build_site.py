"""Hooks of mkdocs: tutorials become pages, code is run and answered, the reference completed, formulas MathML."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

from breaks import with_breaks
from cells import Cell, markdown_cells, percent_cells
from commands import with_help
from execution import Answer, PageError, answers_of_pages
from mathematics import FormulaError, with_formulas
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from reference import expanded, located

RUN = "run: true"  # in the head of a Markdown page: its code is run and its answers are shown
REFERENCE = "api/"
_written: dict[str, str] = {}  # the finished Markdown of pages with code, and of the reference
_views: list[str] = []  # results as a notebook shows them; pages hold their numbers until all else is done


def on_config(config: Any) -> Any:
    """No 404.html: it is made for the root of a server, and from a folder it would have neither style nor links."""
    config.theme.static_templates.discard("404.html")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Run all code before any page is made, so that its pictures are files of the site."""
    _written.clear()
    _views.clear()
    folder = Path(config["docs_dir"])
    sources = sorted((folder / "tutorials").glob("*.py"))
    pages = {f"tutorials/{source.stem}.md": percent_cells(_text(source)) for source in sources}
    for file in files.documentation_pages():
        text = file.content_string
        if text.startswith("---\n") and RUN in text.split("---\n")[1]:
            pages[file.src_uri] = markdown_cells(text.split("---\n", 2)[2])
    try:
        answered = answers_of_pages(pages)
    except PageError as error:
        raise PluginError(str(error)) from error
    for page, cells in pages.items():
        _written[page] = _page(page, cells, answered[page], files, config)
        if page.startswith("tutorials/"):
            files.append(File.generated(config, page, content=_written[page]))
    listed = [file for file in files.documentation_pages() if file.src_uri.startswith(REFERENCE)]
    _written.update(expanded({file.src_uri: file.content_string for file in listed}))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """The page with its answers, if it has any, with help texts and with addresses that lead to what they name."""
    return with_help(located(_written.get(page.file.src_uri, markdown)))


def on_page_content(content: str, page: Any, config: Any, files: Files) -> str:
    """The page with its formulas as MathML, and places where long names in tables may break."""
    try:
        content = with_breaks(with_formulas(page.file.src_uri, content))
    except FormulaError as error:
        raise PluginError(str(error)) from error
    return re.sub(r"<p>notebook-view-(\d+)</p>", lambda place: _views[int(place[1])], content)


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")


def _page(page: str, cells: list[Cell], answers: list[Answer], files: Files, config: Any) -> str:
    waiting = iter(answers)
    parts, pictures = [], 0
    for cell in cells:
        if not cell.code:
            parts.append(cell.text)
            continue
        answer = next(waiting)
        parts.append(f"\n```python\n{cell.text.rstrip()}\n```\n")
        if answer.text.startswith("| "):  # a table that the code wrote as Markdown
            parts.append(f"\n{answer.text}\n")
        elif answer.text.strip():
            parts.append(f'\n<pre class="answer"><code>{html.escape(answer.text.rstrip())}</code></pre>\n')
        if answer.html:
            parts.append(f"\nnotebook-view-{len(_views)}\n")
            _views.append(answer.html)
        for figure in answer.figures:
            pictures += 1
            name = f"assets/drawn/{Path(page).stem}-{pictures}.svg"
            files.append(File.generated(config, name, content=figure))
            parts.append(f"\n![Picture drawn by the code above]({'../' * page.count('/')}{name})\n")
    return "\n".join(parts)
