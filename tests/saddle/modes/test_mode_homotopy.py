"""The homotopy identity against escape times by direct integration."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.saddle import escape_time
from foretrain.saddle.modes import (
    BlockField,
    Decoupled,
    Exact,
    LinearClosure,
    block_escape,
    block_field,
    channels,
    homotopy,
)
from foretrain.support.errors import InputError, NotSupportedError

SCALES = np.full((3, 2), 0.25)


@pytest.fixture(scope="module")
def field() -> BlockField:
    return block_field("tanh", 3, (1.0, 0.5), 9)


@pytest.mark.slow
def test_the_identity_converges_to_the_direct_time(field: BlockField) -> None:
    start = field.layout.from_scales(SCALES)
    errors = []
    for nodes in (1, 2, 6):
        found = homotopy(Decoupled(field), Exact(field), start, threshold=0.45, nodes=nodes)
        errors.append(abs(found.predicted / found.end - 1))
        assert found.conservation < 1e-6
    assert errors[0] > 3 * errors[1] > 30 * errors[2]
    assert errors[2] < 1e-6
    assert found.shares["rotations"] > 0.02 * found.start
    assert set(found.shares) == {"scales", "rotations", "off-block 2"}
    assert abs(found.error) == pytest.approx(errors[2] * found.end)
    assert f"{found.error:.6g}" in repr(found)


def test_both_ends_are_known_times(field: BlockField) -> None:
    start = field.layout.from_scales(SCALES)
    found = homotopy(Decoupled(field), Exact(field), start, threshold=0.45, nodes=1)
    alone = escape_time("tanh", SCALES[:, 0], width=9, threshold=0.45, method="reduced")
    together = block_escape("tanh", SCALES, (1.0, 0.5), 9, threshold=0.45)
    assert 9 * found.start == pytest.approx(alone, rel=1e-7)
    assert 9 * found.end == pytest.approx(float(together[0]), rel=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("layers", [(1,), (1, 2)])
def test_closures_too(field: BlockField, layers: tuple[int, ...]) -> None:
    start = field.layout.from_scales(SCALES)
    found = homotopy(Decoupled(field), LinearClosure(field, layers), start, threshold=0.45, nodes=6)
    assert found.predicted == pytest.approx(found.end, rel=1e-6)
    if layers == (1,):
        assert found.shares["off-block 2"] == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_the_second_mode(field: BlockField) -> None:
    start = field.layout.from_scales(SCALES)
    found = homotopy(Decoupled(field), Exact(field), start, mode=1, threshold=0.3, nodes=8)
    assert found.predicted == pytest.approx(found.end, rel=1e-5)


def test_between_equal_fields_nothing_changes(field: BlockField) -> None:
    start = field.layout.from_scales(SCALES)
    found = homotopy(Exact(field), Exact(field), start, threshold=0.45, nodes=1)
    assert found.difference == 0.0
    assert found.start == found.end


def test_channels_hold_every_variable_once(field: BlockField) -> None:
    places = np.concatenate(list(channels(field.layout).values()))
    np.testing.assert_array_equal(np.sort(places), np.arange(field.layout.size))


def test_bad_input_is_refused(field: BlockField) -> None:
    start = field.layout.from_scales(SCALES)
    with pytest.raises(InputError, match="same depth and modes"):
        homotopy(Decoupled(field), Exact(block_field("tanh", 4, (1.0, 0.5), 9)), start)
    with pytest.raises(InputError, match="mode is 2 of 2"):
        homotopy(Decoupled(field), Exact(field), start, mode=2)
    with pytest.raises(NotSupportedError, match="does not reach"):
        homotopy(Decoupled(field), Exact(field), start, until=0.1)
    with pytest.raises(InputError, match="from_scales"):
        homotopy(Exact(field), Exact(field), np.full((field.depth, 2), 0.2))
