"""Inputs of several tensors: parts of them, and what they answer where one tensor is needed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from foretrain.compare.bundle import Bundle, bundle, unpack_bundles
from foretrain.empirical import ntk
from foretrain.support.errors import NotSupportedError

A, B, MASK = torch.randn(6, 3), torch.arange(6), torch.ones(2, 2)


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table, self.linear = nn.Embedding(6, 2), nn.Linear(3, 2)

    def forward(self, a: Tensor, b: Tensor, mask: Tensor | None = None) -> Tensor:
        outputs = self.linear(a) * self.table(b)
        return outputs if mask is None else outputs @ mask


def test_samples_are_taken_from_all_tensors_that_have_them() -> None:
    given = bundle({"a": A, "b": B, "mask": MASK})
    assert len(given) == 6
    for part in (given[1:3], given[torch.tensor([1, 2])], given[[1, 2]]):
        assert isinstance(part, Bundle)
        assert len(part) == 2
        assert torch.equal(part.arguments["a"], A[1:3])
        assert torch.equal(part.arguments["b"], B[1:3])
        assert part.arguments["mask"].shape == (2, 2)
    assert given.numbers == 4


def test_whole_numbers_stay_whole_on_another_device() -> None:
    moved = bundle((A, B)).to("cpu")
    assert moved.device == torch.device("cpu")
    assert moved.arguments[1].dtype is torch.int64


@pytest.mark.parametrize("arguments", [{"a": A, "b": B, "mask": MASK}, (A, B, MASK)], ids=["names", "places"])
def test_a_hooked_model_and_its_copies_take_them(arguments: object) -> None:
    model = Mixed()
    expected = model(A, B, MASK)
    unpack_bundles(model)
    unpack_bundles(model)
    assert len(model._forward_pre_hooks) == 1
    for one in (model, copy.deepcopy(model)):
        assert torch.equal(one(bundle(arguments)), expected)
        assert torch.equal(one(A, B, MASK), expected)  # calls as before stay possible
    torch.testing.assert_close(
        ntk(model, bundle(arguments)).values, ntk(without_hooks(model), arguments).values
    )


def without_hooks(model: nn.Module) -> nn.Module:
    bare = Mixed()
    bare.load_state_dict(model.state_dict())
    return bare


def test_what_needs_one_tensor_is_refused() -> None:
    given = bundle((A, B))
    for wrong in (lambda: given.mean(), lambda: given[0], lambda: torch.isfinite(given)):
        with pytest.raises(NotSupportedError, match="several tensors"):
            wrong()
    assert not hasattr(given, "no_such_thing")
    assert str(given) == "0 (6, 3), 1 (6,)"
