"""Python that is shown to the user, kept short: tables of layers in a few lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import wrap

_WIDTH = 92  # of a line, as it is printed below a finding


def table(name: str, rows: Iterable[str], comment: str = "") -> list[str]:
    """Lines of a dictionary, with as many of its entries ("key: value") in a line as fit."""
    joined = " ".join(f"{row}," for row in rows).replace(
        ": ", ":\0"
    )  # a key stays with the start of its value
    lines = wrap(joined, _WIDTH - 4, break_long_words=False, break_on_hyphens=False)
    after = f"  # {comment}" if comment else ""
    return [f"{name} = {{{after}", *(f"    {line}".replace("\0", " ") for line in lines), "}"]


def scaling_code(factors: Mapping[str, float]) -> str:
    """Multiply parameters by their factors."""
    return "\n".join(
        [
            *table("factors", (f"{name!r}: {factor!r}" for name, factor in factors.items())),
            "with torch.no_grad():",
            "    for name, factor in factors.items():",
            "        model.get_parameter(name).mul_(factor)",
        ]
    )
