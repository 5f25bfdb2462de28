"""All tensors that follow a :class:`Rule`, in the order in which a step makes them, and what each one needs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foretrain.theory.recursions import ddntk, dntk, ntk_cross
from foretrain.theory.recursions.legs import Entry, Orders, Rule

RULES: dict[str, Rule] = {**ntk_cross.RULES, **dntk.RULES, **ddntk.RULES}

WHOLE = (0, 1, 2, 3)


def closure(names: Iterable[str]) -> tuple[Entry, ...]:
    """All entries on the same legs that the tensors of ``names`` need at their own places, in order."""
    found: set[Entry] = set()
    fresh: set[Entry] = {(name, WHOLE) for name in names if name in RULES}
    while fresh:
        found |= fresh
        fresh = {
            (used, (places[i], places[j], places[k], places[m]))
            for name, places in fresh
            for used, (i, j, k, m) in RULES[name].uses
        } - found
    return tuple(sorted(found, key=lambda entry: (list(RULES).index(entry[0]), entry[1] != WHOLE, entry[1])))


def names_of(entries: Iterable[Entry]) -> tuple[str, ...]:
    """The tensors that occur, each once."""
    return tuple(dict.fromkeys(name for name, _ in entries))


def products_of(names: Sequence[str]) -> set[Orders]:
    """Products of four that the rules of these tensors need, orders from the highest down."""
    found: set[Orders] = set()
    for name in names:
        for product in RULES[name].products:
            first, second, third, fourth = sorted(product, reverse=True)
            found.add((first, second, third, fourth))
    return found
