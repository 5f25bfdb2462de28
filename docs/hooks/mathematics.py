"""Formulas of pages as MathML, which browsers draw by themselves: no script, no font, no connection."""

from __future__ import annotations

import html
import re

from latex2mathml.converter import convert

# what pymdownx.arithmatex makes of $...$ and $$...$$ with its option `generic`
INLINE = re.compile(r'<span class="arithmatex">\\\((.*?)\\\)</span>', re.DOTALL)
DISPLAY = re.compile(r'<div class="arithmatex">\s*\\\[(.*?)\\\]\s*</div>', re.DOTALL)
# a command that the converter does not know ends up as text in its answer
UNKNOWN = re.compile(r"<m[io]>(\\[a-zA-Z]+|&(?!#|amp;|lt;|gt;).*?)</m[io]>")


class FormulaError(Exception):
    """A formula that cannot be converted."""


def with_formulas(page: str, content: str) -> str:
    """The HTML of a page with its formulas as MathML."""
    content = DISPLAY.sub(lambda found: _formula(page, found.group(1), "block"), content)
    return INLINE.sub(lambda found: _formula(page, found.group(1), "inline"), content)


def _formula(page: str, latex: str, display: str) -> str:
    latex = html.unescape(latex).strip()
    try:
        formula = convert(latex, display=display)
    except Exception as error:
        raise FormulaError(f"{page}: the formula {latex!r} cannot be read: {error!r}") from error
    unknown = UNKNOWN.search(formula)
    if unknown:
        raise FormulaError(f"{page}: {unknown.group(1)} in the formula {latex!r} is not known.")
    return formula
