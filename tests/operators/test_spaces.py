"""Named spaces, their direct sums, and vectors made from torch, numpy, xarray and dicts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import xarray
from hypothesis import given, settings
from hypothesis import strategies as st
from random_operators import DOUBLE, normal, random_operator

from foretrain.operators import Space, SumSpace, tensor_like
from foretrain.operators.spaces import axis_indices
from foretrain.support.errors import InputError, NotSupportedError

STATES = Space.of(batch=3, time=5, unit=7)
SUM = SumSpace({"hidden": Space.of(time=2, unit=3), "cell": Space.of(unit=4)})


def test_axes_shape_and_size() -> None:
    assert Space(("batch", 3), ("time", 5), ("unit", 7)) == STATES
    assert (STATES.names, STATES.shape, STATES.size) == (("batch", "time", "unit"), (3, 5, 7), 105)
    assert (STATES["time"], STATES.position("unit")) == (5, 2)
    assert STATES.only(["unit", "batch"]) == Space.of(batch=3, unit=7)
    assert STATES.without(["time"]) == Space.of(batch=3, unit=7)
    assert STATES.renamed(time="step").names == ("batch", "step", "unit")
    assert Space.of(a=2) * Space.of(b=3) == Space.of(a=2, b=3)
    assert Space.of(b=3, a=2) != Space.of(a=2, b=3)
    assert (Space().shape, Space().size) == ((), 1)
    assert eval(repr(STATES)) == STATES  # the repr can be pasted
    assert len({STATES, Space.of(batch=3, time=5, unit=7), SUM}) == 2


def test_a_direct_sum_puts_members_side_by_side() -> None:
    assert (SUM.size, SUM.names) == (10, ("hidden", "cell"))
    assert SUM.slices == {"hidden": slice(0, 6), "cell": slice(6, 10)}
    vector = {"cell": torch.arange(4.0), "hidden": 10 + torch.arange(6.0).reshape(2, 3)}
    flat = SUM.flatten(vector)
    assert flat.tolist() == [[10, 11, 12, 13, 14, 15, 0, 1, 2, 3]]
    again = SUM.unflatten(flat[0])
    assert list(again) == ["hidden", "cell"]
    assert all(torch.equal(again[name], vector[name]) for name in vector)
    nested = SumSpace({"layer": SUM, "readout": Space.of(output=2)})
    both = {"layer": vector, "readout": torch.zeros(2)}
    assert torch.equal(nested.unflatten(nested.flatten(both)[0])["layer"]["cell"], vector["cell"])


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.integers(1, 4), max_size=4), count=st.integers(1, 3), data=st.data())
def test_forms_turn_into_each_other(sizes: list[int], count: int, data: st.DataObject) -> None:
    space = Space(*((f"axis {i}", size) for i, size in enumerate(sizes)))
    flat = torch.arange(float(count * space.size)).reshape(count, space.size)
    structured = space.unflatten_block(flat)
    assert structured.shape == (count, *sizes)
    assert torch.equal(space.flatten_block(structured), flat)
    first = data.draw(st.permutations(space.names))[: data.draw(st.integers(0, len(sizes)))]
    indices = axis_indices(space, first)
    others = space.without(first).names
    moved = structured[0].permute([space.position(n) for n in (*first, *others)])
    assert torch.equal(flat[0][indices.reshape(-1)], moved.reshape(-1))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Space(("a", 2), ("a", 3)), "axis 'a' appears twice"),
        (lambda: Space(("a", 0)), "size 0"),
        (lambda: Space(("a", True)), "whole number"),
        (lambda: Space(("", 2)), "not a name"),
        (lambda: Space("ab"), "not an axis"),
        (lambda: STATES["tim"], "did you mean 'time'"),
        (lambda: STATES.without(["tims"]), "did you mean 'time'"),
        (lambda: Space.of(a=2) * Space.of(a=3), "appears twice"),
        (lambda: SumSpace({}), "at least one member"),
        (lambda: SumSpace({"a": (2,)}), "not a member"),
        (lambda: SUM["cel"], "did you mean 'cell'"),
        (lambda: SUM.flatten({"cell": torch.zeros(4)}), "has the members 'hidden', 'cell'"),
        (lambda: SUM.flatten(torch.zeros(9)), r"shape \(10,\)"),
        (lambda: SUM.flatten_block(torch.zeros(10)), r"\(k, 10\)"),
        (
            lambda: SUM.flatten_block({"cell": torch.zeros(2, 4), "hidden": torch.zeros(3, 6)}),
            "different numbers",
        ),
        (lambda: STATES.flatten(torch.zeros(2, 105)), "use matmat"),
        (lambda: STATES.flatten_block(torch.zeros(3, 5, 7)), r"\(k, 3, 5, 7\) or, flat, \(k, 105\)"),
        (lambda: STATES.flatten([1.0]), "tensor_like"),
    ],
)
def test_bad_spaces_and_vectors(make: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()


def test_only_plain_spaces_have_axes() -> None:
    with pytest.raises(NotSupportedError, match=r"restrict_to\(member\)"):
        SUM.plain("a partial trace")


def test_tensor_like_takes_the_operators_dtype() -> None:
    space = Space.of(time=2, unit=3)
    operator = random_operator(space)
    for value in (
        np.arange(6),
        np.arange(6, dtype=np.float32).reshape(2, 3),
        list(range(6)),
        torch.arange(6),
    ):
        vector = tensor_like(operator, value)
        assert (vector.dtype, vector.tolist()) == (DOUBLE, [[0, 1, 2], [3, 4, 5]])
    assert tensor_like(operator, np.zeros((4, 6))).shape == (4, 2, 3)
    assert tensor_like(space, np.zeros(6, dtype=np.float32)).dtype == torch.float32
    assert tensor_like(Space(), 3).shape == ()
    assert tensor_like(SUM, {"cell": range(4), "hidden": np.ones((2, 3))})["cell"].tolist() == [0, 1, 2, 3]


@pytest.mark.filterwarnings("error")
def test_arrays_that_cannot_be_written_to_are_copied() -> None:
    assert tensor_like(Space.of(time=2, unit=3), np.broadcast_to(2.0, (2, 3))).sum() == 12


def test_labelled_arrays_are_aligned_by_name() -> None:
    space = Space.of(time=2, unit=3)
    values = normal(2, 3).numpy()
    labelled = xarray.DataArray(values.T, dims=("unit", "time"))
    operator = random_operator(space)
    assert torch.equal(tensor_like(space, labelled), torch.as_tensor(values))
    assert torch.equal(operator @ labelled, operator @ torch.as_tensor(values))
    assert torch.equal(operator.matvec(labelled), operator.matvec(torch.as_tensor(values)))
    members = {"hidden": labelled, "cell": np.zeros(4)}
    assert torch.equal(tensor_like(SUM, members)["hidden"], torch.as_tensor(values))


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        (np.zeros((3, 2)), InputError, r"shape \(3, 2\)"),
        (xarray.DataArray(np.zeros((2, 3)), dims=("time", "neuron")), InputError, "dims"),
        (np.zeros(6, dtype=complex), NotSupportedError, "complex"),
        ("abcdef", InputError, "numbers"),
        ({"a": np.zeros(6)}, InputError, "no members"),
    ],
)
def test_values_that_are_no_vectors(value: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        tensor_like(Space.of(time=2, unit=3), value)
