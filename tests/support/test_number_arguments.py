"""What users give: read as numbers, or refused with one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretrain.support.arguments import not_negative, positive, real_array, whole_number
from foretrain.support.errors import InputError


def test_numbers_are_read_as_float64() -> None:
    assert real_array("y", [[1, 2], [3, 4]]).dtype == np.float64
    assert real_array("y", np.float32(0.5)).shape == ()
    unmasked = np.ma.masked_array([1.0, 2.0], mask=False)
    np.testing.assert_array_equal(real_array("y", unmasked), [1.0, 2.0])


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (np.ma.masked_array([1.0, 2.0], mask=[False, True]), "y is a masked array"),
        (["high"], "y is not a real array"),
        ([[1.0], [1.0, 2.0]], "every row"),
        (None, "y is not a real array"),
        ([1j], "y is complex"),
        ([np.nan], "y .*not finite"),
    ],
)
def test_what_is_no_array_of_numbers(values: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        real_array("y", values)


def test_whole_numbers() -> None:
    assert whole_number("depth", np.int64(3)) == 3
    for value in (0, True, 2.0, "3", None):
        with pytest.raises(InputError, match="give a positive whole number"):
            whole_number("depth", value)
    with pytest.raises(InputError, match=r"draws is 1.*2"):
        whole_number("draws", 1, least=2)


def test_single_numbers() -> None:
    assert positive("eta", np.float32(0.5)) == 0.5
    assert not_negative("noise", 0) == 0.0
    for value in (-1.0, np.inf, "1", True, None, [1.0]):
        with pytest.raises(InputError, match="finite and not negative"):
            not_negative("noise", value)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="eta is 0"):
        positive("eta", 0)
