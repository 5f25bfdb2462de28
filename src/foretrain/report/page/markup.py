"""HTML from nested calls; every text that is not markup already is escaped."""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TypeAlias

Attribute: TypeAlias = str | int | bool | None
_VOID = frozenset({"meta", "link", "br"})


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


Child: TypeAlias = "str | Markup | Iterable[Child] | None"


def element(name: str, /, *children: Child, **attributes: Attribute) -> Markup:
    """An element. ``class_`` is the attribute class, ``aria_label`` is aria-label; None and False leave one out."""
    told = "".join(_attribute(key, value) for key, value in attributes.items())
    if name in _VOID:
        return Markup(f"<{name}{told}>")
    return Markup(f"<{name}{told}>{join(children)}</{name}>")


def join(children: Iterable[Child]) -> Markup:
    """Parts one after another."""
    return Markup("".join(map(_text, children)))


def _text(child: Child) -> str:
    if child is None:
        return ""
    if isinstance(child, Markup):
        return child
    if isinstance(child, str):
        return html.escape(child)
    return join(child)


def _attribute(key: str, value: Attribute) -> str:
    if value is None or value is False:
        return ""
    name = key.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
