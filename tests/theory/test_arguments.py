"""Inputs and hyperparameters that users give: read as numbers, or refused with one sentence."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import InputError
from foretrain.theory.arguments import one_input, per_layer, two_inputs


def test_inputs_one_or_two_at_a_time() -> None:
    np.testing.assert_array_equal(one_input(2.0), [2.0])
    np.testing.assert_array_equal(two_inputs([1, 2], [3, 4]), [[1, 2], [3, 4]])
    with pytest.raises(InputError, match=r"x has shape \(1, 2\)"):
        one_input([[1.0, 2.0]])
    with pytest.raises(InputError, match=r"shapes \(2,\) and \(1,\)"):
        two_inputs([1.0, 2.0], [1.0])


def test_one_number_or_one_for_each_layer() -> None:
    assert per_layer("C_W", 2, 3) == (2.0, 2.0, 2.0)
    assert per_layer("C_W", np.array([1.0, 2.0]), 2) == (1.0, 2.0)
    with pytest.raises(InputError, match=r"C_W .*depth is 3"):
        per_layer("C_W", [1.0, 2.0], 3)
    with pytest.raises(InputError, match="C_W contains nan"):
        per_layer("C_W", [1.0, np.nan], 2)
