"""One vocabulary for everything that is returned, and the renderers that show it.

``answer``               ``Answer`` (statement, parts, data, record) and ``Result``, the base of every public result
``tables``               ``Table`` and ``Column``; datasets from tables and fields, tables and pictures from datasets
``figure``               ``Figure``, ``Panel``, ``Axis``: pictures as data
``text``                 plain text and the terminal
``matplotlib_renderer``  ``.plot()``, PNG, SVG and PDF
``plotly_renderer``      what plotly draws, panel by panel
``html``                 ``_repr_html_``, and the pieces of pages
"""

from foretrain.support.answers.answer import Answer, Code, Facts, Part, Result, fields_answer, picked
from foretrain.support.answers.figure import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    ORANGE,
    PALETTE,
    PURPLE,
    RED,
    SKY,
    Axis,
    Figure,
    Panel,
    log,
    names_axis,
    scale_for,
    shades,
)
from foretrain.support.answers.tables import (
    Cell,
    Column,
    Table,
    Tone,
    dataset_figure,
    dataset_table,
    dataset_tables,
    labelled,
    with_error,
    with_others,
)

__all__ = [
    "BLUE",
    "FAINT",
    "GREEN",
    "INK",
    "ORANGE",
    "PALETTE",
    "PURPLE",
    "RED",
    "SKY",
    "Answer",
    "Axis",
    "Cell",
    "Code",
    "Column",
    "Facts",
    "Figure",
    "Panel",
    "Part",
    "Result",
    "Table",
    "Tone",
    "dataset_figure",
    "dataset_table",
    "dataset_tables",
    "fields_answer",
    "labelled",
    "log",
    "names_axis",
    "picked",
    "scale_for",
    "shades",
    "with_error",
    "with_others",
]
