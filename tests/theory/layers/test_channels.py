"""Steps to one channel: changes that are pushed forward beside finite differences, blocks, what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foretrain.support.errors import NotSupportedError
from foretrain.theory.layers import Signal, concatenated, data, joined, table
from foretrain.theory.layers.channels import Layout, Program, evaluated, program

Array = NDArray[np.float64]
DRAWS, SIZE = 5, 6


def first() -> Signal:
    return data(SIZE).convolution(3, padding=1, C_W=1.5, C_b=0.2)


def depthwise(h: Signal, kernel: int = 3, **options: Any) -> Signal:
    return h.convolution(kernel, padding=kernel // 2, group=1, C_W=1.8, C_b=0.3, **options)


def met_again(h: Signal) -> Signal:
    return h - h.average_pool(3, stride=1, padding=1)


LAWS: dict[str, Callable[[Signal], Signal]] = {
    "maximum": lambda h: h.activation("tanh").max_pool(3, stride=2, padding=1),
    "depthwise": lambda h: depthwise(h.activation("sin")).activation("tanh"),
    "groups of 2 channels": lambda h: h.convolution(3, padding=1, group=(2, 3), C_b=0.2).activation("tanh"),
    "instance norm": lambda h: h.group_norm(1, epsilon=0.1, gain=0.4, shift=0.3).activation("sin"),
    "group norm of 3": lambda h: h.activation("sin").group_norm(3, epsilon=0.1).activation("tanh"),
    "groups, then their norm": lambda h: h.convolution(3, padding=1, group=2).group_norm(4, gain=0.3),
    "gains": lambda h: h.trained(0.8, gain=0.5).activation("sin").max_pool(2).activation("tanh"),
    "gains of positions": lambda h: h.trained(gain=0.5, own_position=True).max_pool(3).activation("sin"),
    "gains after depthwise": lambda h: (
        depthwise(h).batch_norm(gain=0.5, shift=0.3, mean=0.2).activation("sin")
    ),
    "means over windows": lambda h: h.activation("sin").average_pool(2).activation("tanh"),
    "mean over all": lambda h: h.activation("sin").mean().activation("tanh"),
    "positions in another order": lambda h: depthwise(h).take(0, [4, 1, 1, 0]).activation("sin"),
    "two axes": lambda h: (
        depthwise(h).arranged((0,), (2,), (2, 3)).arranged((1, 0), (1, 1)).activation("sin")
    ),
    "product": lambda h: (depthwise(h) * h).activation("tanh"),
    "sum": lambda h: (depthwise(h) + 0.5 * h.activation("sin") + 0.3).activation("tanh"),
    "met again": lambda h: met_again(h.activation("sin")).activation("tanh"),
    "one after another": lambda h: joined([depthwise(h), h.linear().activation("sin")]).activation("sin"),
    "two fields": lambda h: (depthwise(h) + h.linear()).activation("tanh"),
}


def law_of(signal: Signal) -> Program:
    return program(signal.blocks[0].law)


def numbers(of: Program, layout: Layout, rng: np.random.Generator) -> tuple[Any, Any, Any]:
    """Random values of the fields, numbers of the steps, and directions of all that may change."""
    values, normals, changes = {}, {}, {}
    for node, step in of.steps.items():
        shape = (of.channels[node], 2, len(layout.positions[node]), 1, layout.positions[node].shape[1], DRAWS)
        if step is None:
            values[node], changes[node] = rng.normal(size=(2, *shape))
        elif step.ranks:
            normals[node] = rng.normal(size=(shape[0], len(step.ranks), shape[2], DRAWS))
        for k, one in enumerate(of.parameters[node]):
            each = (shape[0], len(one.basis) * one.copies, shape[2], DRAWS)
            changes[node, k] = rng.normal(
                size=(shape[0], 1, 1, 1, shape[4], DRAWS) if one.own_position else each
            )
    return values, normals, changes


@pytest.mark.parametrize("name", LAWS)
def test_changes_of_fields_are_pushed_forward_as_by_finite_differences(name: str) -> None:
    of = law_of(LAWS[name](first()))
    layout = Layout.of(of, np.array([[0, 1], [1, -1]]) if name != "mean over all" else np.array([[0], [0]]))
    values, normals, changes = numbers(of, layout, np.random.default_rng(3))

    def at(step: float) -> tuple[Array, Any]:
        moved = {node: value + step * changes[node] for node, value in values.items()}
        return evaluated(of, layout, moved, normals, None)

    pushed = at(0.0)[1]({node: changes[node] for node in values})
    difference = (at(1e-6)[0] - at(-1e-6)[0]) / 2e-6
    np.testing.assert_allclose(pushed, difference, atol=1e-7)
    assert np.abs(pushed[..., 0, :]).min(axis=-1).max() > 1e-3


def test_changes_of_weights_are_those_of_the_numbers_they_are_made_of() -> None:
    """Weights are numbers times the root of C_W/k, in the smooth basis; a bias is the last number."""
    of = law_of(depthwise(first().activation("sin")).activation("tanh"))
    layout = Layout.of(of, np.arange(SIZE)[None])
    values, normals, _ = numbers(of, layout, np.random.default_rng(3))
    (node,) = normals
    assert of.steps[node] is not None
    basis = of.parameters[node][0].basis
    direction = np.random.default_rng(1).normal(size=normals[node].shape)
    moved = [
        evaluated(of, layout, values, {node: normals[node] + step * direction}, None)[0]
        for step in (1e-6, -1e-6)
    ]
    weights = np.sqrt(1.8 / 3) * np.einsum("st,ctbm->csbm", basis, direction[:, :3])
    own = {(node, 0): weights, (node, 1): np.sqrt(0.3) * direction[:, 3:]}
    pushed = evaluated(of, layout, values, normals, None)[1](own)
    np.testing.assert_allclose(pushed, (moved[0] - moved[1]) / 2e-6, atol=1e-7)


@pytest.mark.parametrize("name", [one for one in LAWS if "own" not in one])
def test_blocks_of_positions_have_the_values_of_the_whole(name: str) -> None:
    of = law_of(LAWS[name](first()))
    count = int(np.prod(LAWS[name](first()).positions))
    whole = Layout.of(of, np.arange(count)[None])
    parts = Layout.of(of, np.array([[k, (k + 1) % count if count > 1 else -1] for k in range(count)]))
    values, normals, _ = numbers(of, whole, np.random.default_rng(5))
    inside = {
        node: np.stack([value[:, :, 0][..., np.maximum(at, 0), :] for at in parts.positions[node]], axis=2)
        for node, value in values.items()
    }
    some = {node: np.repeat(one, count, axis=2) for node, one in normals.items()}
    expected = evaluated(of, whole, values, normals, None)[0][:, :, 0, 0]
    found = evaluated(of, parts, inside, some, None)[0][:, :, :, 0, 0]
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-13)


def test_the_one_position_that_each_depends_on() -> None:
    of = law_of((first().activation("sin") + first().linear()).take(0, [4, 2]).activation("tanh"))
    layout = Layout.of(of, np.array([[0, 1]]))
    alone = layout.places_alone(of)
    for node in of.leaves:
        where = alone[node]
        assert where is not None
        np.testing.assert_array_equal(
            layout.positions[node][0, where[0]], [4, 2] if node.of.positions == (6,) else [0, 1]
        )
    spread = law_of(depthwise(first()).activation("tanh"))
    assert Layout.of(spread, np.array([[0, 1]])).places_alone(spread)[spread.leaves[0]] is None


def test_fields_that_share_channels_are_opened_down_to_those_they_share() -> None:
    h = first()
    joint = law_of((h + h.linear()).activation("tanh") * h.max_pool(3, stride=1, padding=1))
    assert len(joint.leaves) == 2
    assert not joint.leaves[0].meets(joint.leaves[1])


def test_what_has_no_known_channels_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="tanh follows input, which is not Gaussian"):
        data(SIZE).activation("tanh")
    fixed = table(SIZE, values=np.ones((SIZE, 4)), rate=0.0)
    with pytest.raises(NotSupportedError, match="relu follows table, which is not Gaussian"):
        (first().activation("relu") + fixed).activation("relu")
    mixed = joined([concatenated([first().activation("relu"), first()]), first()])
    with pytest.raises(NotSupportedError, match="max pooling reads concatenation, which is not Gaussian"):
        mixed.max_pool(2)


def test_channels_that_do_not_belong_together_are_refused() -> None:
    h = depthwise(first())
    with pytest.raises(NotSupportedError, match="different channels of convolution meet"):
        h.channels(0.0, 0.5) * h.channels(0.25, 0.75)
