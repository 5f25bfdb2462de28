"""Estimates are numbers: arithmetic, comparison, formatting, arrays, and what stays with them."""

from __future__ import annotations

import copy
import json
import math
import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from spectral_operators import Spectral, spectrum

from foretrain.operators.estimators import Estimate, effective_rank, frobenius_norm, trace

FOUND = Estimate(2.5, 0.25, 12, 7, "xtrace")


def test_an_estimate_counts_like_a_float_and_gives_plain_floats() -> None:
    results = [FOUND - 1.0, 1 - FOUND, FOUND * 2, FOUND / 2, FOUND**2, -FOUND, abs(FOUND), FOUND + FOUND]
    assert results == [1.5, -1.5, 5.0, 1.25, 6.25, -2.5, 2.5, 5.0]
    assert all(type(result) is float for result in results)
    assert type(float(FOUND)) is float
    assert math.sqrt(FOUND) == math.sqrt(2.5)


def test_an_estimate_compares_and_hashes_like_a_float() -> None:
    assert FOUND == 2.5
    assert pytest.approx(2.5 + 1e-9) == FOUND
    assert FOUND < 3
    assert pytest.approx(2.6) != FOUND
    assert hash(FOUND) == hash(2.5)
    assert not Estimate(0.0, 0.0, 1, 0, "exact")


def test_an_estimate_is_a_scalar_of_numpy() -> None:
    array = np.asarray(FOUND)
    assert (array.dtype, array.shape, float(array)) == (np.float64, (), 2.5)
    assert np.allclose(FOUND, 2.5)
    assert np.isclose([FOUND, FOUND], 2.5).all()


def test_an_estimate_is_written_as_asked_and_teaches_otherwise() -> None:
    assert f"{FOUND:.3f}" == "2.500"
    assert json.dumps(FOUND) == "2.5"
    assert (
        str(FOUND)
        == repr(FOUND)
        == f"{FOUND}"
        == "Estimate(2.5 ± 0.25 (10.00%); xtrace, 12 products, seed 7)"
    )


@pytest.mark.parametrize("again", [lambda one: pickle.loads(pickle.dumps(one)), copy.copy, copy.deepcopy])
def test_copies_keep_the_error(again) -> None:  # type: ignore[no-untyped-def]
    copied = again(FOUND)
    assert isinstance(copied, Estimate)
    assert (copied, vars(copied)) == (2.5, vars(FOUND))


def test_an_estimate_does_not_change() -> None:
    with pytest.raises(FrozenInstanceError):
        FOUND.value = 3.0  # type: ignore[misc]
    assert vars(FOUND.times(2.0)) == vars(FOUND) | {"value": 5.0, "standard_error": 0.5}


@pytest.mark.parametrize("question", [trace, effective_rank, frobenius_norm])
def test_answers_are_numbers(question) -> None:  # type: ignore[no-untyped-def]
    found = question(Spectral(spectrum("power 1", 2000)))
    assert found - found.value == 0.0
    assert found.standard_error > 0
