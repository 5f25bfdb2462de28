"""Networks of closed forms are computed by torch, where its arrays are, with the same numbers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.theory.layers.test_kernel_digits import CASES, H0, H1, HO, TOKENS, field

from foretrain.theory.layers import data, table, tokens
from foretrain.theory.layers.tiles import in_order, kernel_of

CLOSED = [
    name for name, (make, *_) in CASES.items() if all(one.for_any_library for one in in_order(make().field))
]


def test_most_of_the_reference_is_made_of_closed_forms() -> None:
    assert {"V2", "V2b", "V3", "V4", "V5", "V5b", "V5c", "V8", "V9", "P1", "P4", "P8"} <= set(CLOSED)
    assert "V1" not in CLOSED  # tanh is summed as a series, by numpy
    assert "V7" not in CLOSED


@pytest.mark.parametrize("name", CLOSED)
def test_torch_gives_the_numbers_of_numpy(name: str) -> None:
    make, x, *_ = CASES[name]
    output = make()
    values = output.inputs(x)
    expected = kernel_of(output.field, values, {one: part[:1] for one, part in values.items()})
    tensors = {one: torch.from_numpy(part) for one, part in values.items()}
    result = kernel_of(output.field, tensors, {one: part[:1] for one, part in tensors.items()})
    alone = kernel_of(output.field, tensors)
    assert isinstance(result.S, np.ndarray)
    for name in ("S", "Theta"):
        np.testing.assert_allclose(getattr(result, name), getattr(expected, name), rtol=1e-12, atol=1e-14)
        np.testing.assert_allclose(
            getattr(alone, name)[..., :1], getattr(expected, name), rtol=1e-9, atol=1e-12
        )


def test_tokens_fixed_tables_and_parts_of_channels() -> None:
    places = table(3, values=field(3, 5))
    both = (tokens(3, variance=0.7, rate=0.4, padding=1) + places).linear(**H0)
    output = (both.channels(0, 0.5).activation("relu") * both.channels(0.5, 1)).linear(**H1)
    output = output.layer_norm(over_positions=True).take(0, [0, 2]).mean().linear(**HO)
    values = output.inputs(TOKENS)
    result = kernel_of(output.field, {one: torch.from_numpy(part) for one, part in values.items()})
    expected = kernel_of(output.field, values)
    np.testing.assert_allclose(result.S, expected.S, rtol=1e-12)
    np.testing.assert_allclose(result.Theta, expected.Theta, rtol=1e-12)


def test_separate_weights_at_every_position() -> None:
    output = data(8).linear(**H0).activation("relu").convolution(3, shared=False, **H1).flatten(**HO)
    values = output.inputs(field(2, 8, 3))
    result = kernel_of(output.field, {one: torch.from_numpy(part) for one, part in values.items()})
    np.testing.assert_allclose(result.Theta, kernel_of(output.field, values).Theta, rtol=1e-12)
