"""What users give: read as numbers, or refused with one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretrain.support.errors import InputError
from foretrain.theory.arguments import one_input, per_layer, real_array, two_inputs, whole_number


def test_numbers_are_read_as_float64() -> None:
    assert real_array("y", [[1, 2], [3, 4]]).dtype == np.float64
    assert real_array("y", np.float32(0.5)).shape == ()
    unmasked = np.ma.masked_array([1.0, 2.0], mask=False)
    np.testing.assert_array_equal(real_array("y", unmasked), [1.0, 2.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ma.masked_array([1.0, 2.0], mask=[False, True]), "y is a masked array: fill"),
        (["high"], "y is not a real array: give numbers"),
        ([[1.0], [1.0, 2.0]], "as many in every row"),
        (None, "y is not a real array"),
        ([1j], "y is complex"),
        ([np.nan], "y contains values that are not finite"),
    ],
)
def test_what_is_no_array_of_numbers(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        real_array("y", values)


def test_inputs_one_or_two_at_a_time() -> None:
    np.testing.assert_array_equal(one_input(2.0), [2.0])
    np.testing.assert_array_equal(two_inputs([1, 2], [3, 4]), [[1, 2], [3, 4]])
    with pytest.raises(InputError, match=r"x has shape \(1, 2\): give one input"):
        one_input([[1.0, 2.0]])
    with pytest.raises(InputError, match=r"shapes \(2,\) and \(1,\)"):
        two_inputs([1.0, 2.0], [1.0])


def test_whole_numbers() -> None:
    assert whole_number("depth", np.int64(3)) == 3
    for value in (0, True, 2.0, "3", None):
        with pytest.raises(InputError, match="give a positive whole number"):
            whole_number("depth", value)
    with pytest.raises(InputError, match="draws is 1: give a whole number, at least 2"):
        whole_number("draws", 1, least=2)


def test_one_number_or_one_for_each_layer() -> None:
    assert per_layer("C_W", 2, 3) == (2.0, 2.0, 2.0)
    assert per_layer("C_W", np.array([1.0, 2.0]), 2) == (1.0, 2.0)
    with pytest.raises(InputError, match="C_W lists 2 values but depth is 3"):
        per_layer("C_W", [1.0, 2.0], 3)
    with pytest.raises(InputError, match="C_W contains nan"):
        per_layer("C_W", [1.0, np.nan], 2)
