"""Observables as users give them: what is understood, and what is refused in one sentence."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foretrain.gaussian.observables import checked_function, directions, factors_of, kink_locations
from foretrain.support.errors import InputError


def test_one_factor_for_each_input_or_a_function() -> None:
    alone, both = factors_of("tanh", 1), factors_of(["tanh", 1.0], 2)
    assert alone is not None
    assert both is not None
    assert (len(alone), len(both)) == (1, 2)
    assert both[1].is_constant
    assert factors_of(np.tanh, 2) is None
    with pytest.raises(InputError, match=r"1 factors .*2 inputs"):
        factors_of("tanh", 2)
    with pytest.raises(InputError, match="3 is no observable"):
        factors_of(3, 1)


@pytest.mark.parametrize("kinks", [0.5, [0.5], (0.5,), np.array(0.5), np.array([0.5])])
def test_kinks_of_all_inputs_alike(kinks: Any) -> None:
    assert kink_locations(kinks, 3) == [(0.5,)] * 3


def test_kinks_of_each_input() -> None:
    assert kink_locations((), 2) == [(), ()]
    assert kink_locations([[0.0, 1.0], []], 2) == [(0.0, 1.0), ()]
    assert kink_locations(np.array([[0.0], [2.0]]), 2) == [(0.0,), (2.0,)]


@pytest.mark.parametrize("kinks", ["corner", [np.nan], [[0.0]], [0.0, [1.0]], [[0.0], ["x"]], None])
def test_what_are_no_kinks(kinks: Any) -> None:
    with pytest.raises(InputError, match=r"kinks .*2 inputs"):
        kink_locations(kinks, 2)


def test_functions_of_several_neurons_see_them_apart() -> None:
    rows = np.arange(12.0).reshape(2, 6)
    call = checked_function(lambda z: z[:, 1, 2], inputs=3, copies=2)
    np.testing.assert_array_equal(call(rows), rows[:, 5])
    with pytest.raises(InputError, match=r"\(points, 2, 3\)"):
        checked_function(lambda z: z, inputs=3, copies=2)(rows)


def test_copies_of_an_input_at_any_scale_add_no_direction() -> None:
    """The cut is relative to the correlations, so that neither sizes nor numbers of copies matter."""
    rng = np.random.default_rng(0)
    own = rng.normal(size=(2, 5))
    mixing = np.repeat(own, 20, axis=0) * np.logspace(-6, 6, 40)[:, None]
    found = directions(mixing @ mixing.T)
    assert found.forth.shape == (40, 2)
    np.testing.assert_allclose(found.back @ found.forth, np.eye(2), atol=1e-12)
