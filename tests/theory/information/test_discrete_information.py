"""Entropies of tables: copies, exclusive or, bounds, and what tables are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foretrain.support.errors import InputError
from foretrain.theory.information import (
    conditional_information,
    cross_entropy,
    divergence,
    entropy,
    mutual_information,
    surprisal,
    tripartite_information,
)

EXCLUSIVE_OR = np.array([[[0.25, 0.0], [0.0, 0.25]], [[0.0, 0.25], [0.25, 0.0]]])

tables = st.integers(0, 2**32 - 1).map(lambda seed: np.random.default_rng(seed).dirichlet(np.full(24, 0.3)))


def copies(letters: int) -> np.ndarray:
    table = np.zeros((letters,) * 3)
    table[(np.arange(letters),) * 3] = 1 / letters
    return table


@pytest.mark.parametrize("letters", [2, 5])
def test_copies_are_redundant(letters: int) -> None:
    table = copies(letters)
    assert entropy(table) == pytest.approx(np.log(letters))
    assert mutual_information(table) == pytest.approx(np.log(letters))
    assert conditional_information(table) == pytest.approx(0, abs=1e-15)
    assert tripartite_information(table) == pytest.approx(np.log(letters))


def test_exclusive_or_is_synergistic() -> None:
    assert mutual_information(EXCLUSIVE_OR) == pytest.approx(0, abs=1e-15)
    assert conditional_information(EXCLUSIVE_OR) == pytest.approx(np.log(2))
    assert tripartite_information(EXCLUSIVE_OR) == pytest.approx(-np.log(2))
    assert mutual_information(EXCLUSIVE_OR, (0, 1), 2) == pytest.approx(np.log(2))


def test_definitions_by_hand() -> None:
    p, q = np.array([0.5, 0.25, 0.25]), np.array([0.7, 0.2, 0.1])
    assert surprisal(p) == pytest.approx([np.log(2), np.log(4), np.log(4)])
    assert entropy(p) == pytest.approx(p @ surprisal(p))
    assert divergence(p, q) == pytest.approx(float(p @ np.log(p / q)))
    assert cross_entropy(p, q) == pytest.approx(float(-p @ np.log(q)))
    assert divergence([1.0, 0.0], [0.0, 1.0]) == np.inf
    assert surprisal([1.0, 0.0])[1] == np.inf
    assert entropy([1.0, 0.0]) == 0


@settings(max_examples=60, deadline=None)
@given(flat=tables)
def test_bounds_and_identities(flat: np.ndarray) -> None:
    table = flat.reshape(2, 3, 4)
    joint = table.sum(2)
    product = np.outer(joint.sum(1), joint.sum(0))
    information = mutual_information(table)
    assert information == pytest.approx(divergence(joint, product), abs=1e-12)
    assert 0 <= information <= np.log(2) + 1e-12
    assert 0 <= entropy(table) <= np.log(24) + 1e-12
    assert tripartite_information(table) == pytest.approx(
        information - conditional_information(table), abs=1e-12
    )
    moved = tripartite_information(table.transpose(2, 0, 1)[::-1])
    assert moved == pytest.approx(tripartite_information(table), abs=1e-12)
    assert entropy(joint) <= entropy(joint.sum(1)) + entropy(joint.sum(0)) + 1e-12


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: entropy([0.5, 0.6]), "add up to 1.1"),
        (lambda: entropy([1.5, -0.5]), "negative"),
        (lambda: entropy([]), "none"),
        (lambda: entropy([np.nan]), "infinite"),
        (lambda: divergence([1.0], [0.5, 0.5]), r"shape \(1,\)"),
        (lambda: mutual_information(EXCLUSIVE_OR, 0, 0), "overlap"),
        (lambda: mutual_information([1.0]), "table with 1 axes"),
        (lambda: tripartite_information(np.eye(2) / 2), "three variables"),
    ],
)
def test_bad_tables_are_refused(ask: object, message: str) -> None:
    assert callable(ask)
    with pytest.raises(InputError, match=message):
        ask()
