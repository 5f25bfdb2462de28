"""Arguments that belong to all samples, and that may differ between the two sides of a kernel."""

from __future__ import annotations

import pytest
import torch
from brute_force import assert_equal
from torch import Tensor, nn
from torch.nn import functional

from foretrain.empirical import ntk, ntk_operator
from foretrain.support.errors import InputError


class Tempered(nn.Module):
    """A weight that enters times a number the caller gives."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.last = nn.Parameter(torch.randn(4, 3)), nn.Linear(4, 2)

    def forward(self, x: Tensor, factor: float) -> Tensor:
        return self.last(torch.tanh(x @ (self.weight * factor).T))


class Heads(nn.Module):
    """One of several readouts, chosen by the caller."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 2, 3))

    def forward(self, x: Tensor, head: int) -> Tensor:
        return functional.linear(torch.tanh(x), self.weight[head])


class Masked(nn.Module):
    """A mask over positions that all samples share."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return (mask @ torch.tanh(self.linear(x))).flatten(1)


def jacobian(model: nn.Module, x: Tensor, *rest: object) -> Tensor:
    rows = []
    for sample in x:
        outputs = model(sample[None], *rest).flatten()
        for value in outputs:
            found = torch.autograd.grad(value, list(model.parameters()), retain_graph=True)
            rows.append(torch.cat([part.flatten() for part in found]))
    return torch.stack(rows).view(len(x), len(outputs), -1)


@pytest.mark.parametrize(
    ("model", "here", "there"), [(Tempered, 2.0, 3.0), (Tempered, 2.0, -3.0), (Heads, 0, 0), (Heads, 0, 1)]
)
def test_sides_with_other_arguments(model: type[nn.Module], here: float, there: float) -> None:
    torch.manual_seed(0)
    net, x, x2 = model().double(), torch.randn(5, 3).double(), torch.randn(4, 3).double()
    expected = torch.einsum("nap,mbp->nmab", jacobian(net, x, here), jacobian(net, x2, there))
    found = ntk(net, (x, here), (x2, there)).values
    if model is Heads and here != there:  # different heads share nothing
        assert not found.any()
        assert not expected.any()
    else:
        assert_equal(found, expected)


def test_a_mask_with_as_many_rows_as_there_are_samples() -> None:
    torch.manual_seed(0)
    net, x, mask = Masked().double(), torch.randn(4, 4, 3).double(), torch.randn(4, 4).double()
    J = jacobian(net, x, mask)
    expected = torch.einsum("nap,mbp->nmab", J, J)
    assert_equal(ntk(net, (x, mask), shared=[1]).values, expected)
    assert_equal(ntk(net, {"x": x, "mask": mask}, shared=["mask"]).values, expected)
    matrix = expected.transpose(1, 2).reshape(32, 32)
    assert_equal(ntk_operator(net, (x, mask), shared=[1]).dense(), matrix)
    with pytest.raises(InputError, match="shared="):
        ntk(net, (x, mask), shared=["mask"])
