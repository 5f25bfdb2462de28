"""What the rules of tensors look up is found by running them."""

from __future__ import annotations

import pytest

from foretrain.theory.recursions.rules import RULES, needs

WHOLE = (0, 1, 2, 3)
ENTRIES = {
    "F": [("F", (i, 1, j, 3)) for i in (0, 1) for j in (2, 3)],
    "B": [("B", WHOLE)],
    "P": [("P", WHOLE), ("P", (0, 1, 2, 0)), ("B", (0, 0, 1, 2))],
    "Q": [("Q", WHOLE), ("Q", (0, 1, 2, 2)), *(("F", (i, 0, j, 2)) for i in (0, 1) for j in (2, 3))],
    "R": [("R", WHOLE), ("B", (0, 0, 2, 3)), ("P", (0, 2, 3, 0)), ("P", (0, 2, 3, 1))],
    "S": [("S", WHOLE), ("B", WHOLE)],
    "T": [
        ("T", WHOLE),
        *(("Q", (3, 2, 0, leg)) for leg in (0, 1)),
        *(("Q", (0, 1, 3, leg)) for leg in (2, 3)),
        *(("F", (i, 0, j, 3)) for i in (0, 1) for j in (2, 3)),
    ],
    "U": [("U", WHOLE)],
}
PRODUCTS = {
    "F": {(0, 1, 0, 1)},
    "B": {(1, 1, 1, 1)},
    "P": {(2, 1, 1, 0)},
    "Q": {(2, 1, 1, 0)},
    "R": {(2, 0, 1, 1), (3, 1, 1, 1)},
    "S": {(1, 1, 1, 1), (2, 2, 1, 1)},
    "T": {(1, 0, 0, 1), (1, 0, 1, 2), (2, 1, 0, 1), (2, 1, 1, 2)},
    "U": {(2, 1, 2, 1)},
}


@pytest.mark.parametrize("name", RULES)
def test_a_rule_names_what_its_equation_has(name: str) -> None:
    assert {*needs(name).entries} == {*ENTRIES[name]}
    assert {*needs(name).products} == PRODUCTS[name]
