"""Whose a tensor's entries are, told from its gradients with samples weighed equally and unequally."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from brute_force import normal
from torch import Tensor, nn
from torch.nn import functional

from foretrain.empirical.autograd_graph.ownership import owners_by_nodes
from foretrain.empirical.autograd_graph.tape import (
    Owner,
    Probe,
    SampleAxis,
    Shared,
    Silent,
    Tape,
    fixed_normal,
    owner,
    read,
    weights,
)


def seen(gradient: Tensor, axis: int) -> object:
    """The owner of a tensor whose samples lie along an axis."""
    samples = gradient.shape[axis]
    along = [1] * gradient.ndim
    along[axis] = samples
    return owner(gradient, gradient * weights(samples, gradient).view(along), samples)


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("samples", [2, 3, 5, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_dense_gradients_show_their_axis(axis: int, samples: int, dtype: torch.dtype) -> None:
    sizes = [samples if place == axis else size for place, size in enumerate((3, 3, 4))]
    found = seen(normal(*sizes).to(dtype), axis)
    before, after = torch.Size(sizes[:axis]).numel(), torch.Size(sizes[axis + 1 :]).numel()
    assert isinstance(found, SampleAxis)
    assert (found.before, found.after) == (before, after)


@pytest.mark.parametrize("axis", [0, 1])
def test_one_position_with_a_gradient(axis: int) -> None:
    gradient = torch.zeros(3, 3, 4, dtype=torch.float64)
    gradient.select(1 - axis, 2).copy_(normal(3, 4))
    found = seen(gradient, axis)
    assert isinstance(found, SampleAxis)
    assert (found.before, found.after) == ((1, 12) if axis == 0 else (3, 4))


def test_sums_over_samples_are_shared() -> None:
    rows = normal(3, 6)
    assert isinstance(owner(rows.sum(0), (rows * weights(3, rows)[:, None]).sum(0), 3), Shared)


def test_entries_of_samples_in_a_mixed_order_are_shared() -> None:
    rows, order = normal(3, 6), torch.tensor([1, 0, 2])
    assert isinstance(owner(rows[order], (rows * weights(3, rows)[:, None])[order], 3), Shared)


def test_nothing_is_known_without_gradients() -> None:
    assert isinstance(owner(None, None, 3), Silent)
    assert isinstance(owner(torch.zeros(3, 2), torch.zeros(3, 2), 3), Silent)


class Between(nn.Module):
    """A layer on (samples, 4, 6), something that is done to its results, and a scale for what comes of it."""

    def __init__(self, way: Callable[[Tensor, nn.ParameterDict], Tensor]) -> None:
        super().__init__()
        self.layer, self.way = nn.Linear(5, 6), way
        sizes = {
            "row": (6,),
            "table": (4, 6),
            "one": (1, 4, 1),
            "matrix": (6, 6),
            "kernel": (3, 4, 2),
            "four": (4,),
        }
        self.other = nn.ParameterDict({name: normal(*size, seed=1) for name, size in sizes.items()})

    def forward(self, x: Tensor) -> Tensor:
        return self.way(self.layer(x), self.other).flatten(1)


def heads(y: Tensor) -> Tensor:
    return y.view(len(y), 4, 2, 3).transpose(1, 2)


KEPT_APART: dict[str, Callable[[Tensor, nn.ParameterDict], Tensor]] = {
    "entry by entry": lambda y, p: torch.tanh(y) * p["row"] + p["table"] / (2 + p["one"].sigmoid()),
    "rows": lambda y, p: functional.layer_norm(y, (6,), p["row"], p["row"]),
    "tables": lambda y, p: functional.layer_norm(y, (4, 6), p["table"], p["table"]),
    "channels": lambda y, p: functional.group_norm(y, 2, p["four"], p["four"]),
    "statistics": lambda y, p: functional.batch_norm(y, normal(4), normal(4).exp(), p["four"], p["four"]),
    "products": lambda y, p: (y.reshape(-1, 6) @ p["matrix"]).view(-1, 4, 6) @ y.transpose(1, 2),
    "stacks of products": lambda y, p: torch.baddbmm(p["table"], torch.bmm(y, y.mT), y),
    "positions first": lambda y, p: (p["matrix"] @ y.permute(1, 2, 0).reshape(4, 6, -1)).permute(2, 0, 1),
    "attention": lambda y, p: functional.scaled_dot_product_attention(heads(y), heads(y), heads(y)).transpose(
        1, 2
    ),
    "weights of attention": lambda y, p: (heads(y) @ heads(y).mT).softmax(-1) @ heads(y),
    "convolution": lambda y, p: functional.conv1d(y, p["kernel"], p["four"][:3], stride=2),
    "pooling": lambda y, p: functional.max_pool2d(y[:, None], 2) + functional.avg_pool2d(y[:, None], 2),
    "parts": lambda y, p: torch.cat([part * (i + 1.0) for i, part in enumerate(torch.split(y, 2, -1))], 1),
    "gates": lambda y, p: torch.cat(torch.unsafe_chunk(y.flatten(1), 4, 1)[::-1], 1).sigmoid(),
    "places": lambda y, p: torch.stack([y[:, 0], y.mean(1), y[:, 1:3].sum(1)], 2) * p["row"][:, None],
    "unbound": lambda y, p: torch.stack(y.view(-1, 4, 2, 3).permute(2, 0, 1, 3).unbind(0), 1),
    "spread": lambda y, p: torch.cat([p["table"][:1].expand(len(y), -1, -1), y], 1),
    "looked up": lambda y, p: y + functional.embedding(torch.tensor([1, 0, 3, 3]), p["table"]),
}
MIXED: dict[str, Callable[[Tensor, nn.ParameterDict], Tensor]] = {
    "sum": lambda y, p: y - y.sum(0),
    "mean": lambda y, p: y * y.mean((0, 1), keepdim=True),
    "everything": lambda y, p: y * y.mean(),
    "order": lambda y, p: y.flip(0).tanh(),
    "ways through the samples": lambda y, p: y.softmax(0),
    "cut": lambda y, p: torch.cat([y[1:], y[:1]]),
    "statistics of the batch": lambda y, p: functional.batch_norm(y, None, None, p["four"], training=True),
    "first sample": lambda y, p: y * y[:1],
    "products of samples": lambda y, p: torch.einsum("ntf,mtf->nm", y, y)[:, :1] * y.flatten(1),
}


def by_gradients(tape: Tape, edges: list[tuple[int, int]]) -> dict[tuple[int, int], Owner]:
    probe = Probe(tape, fixed_normal(tape.outputs))
    probe.ask(edges)
    return probe.owners


@pytest.mark.parametrize("name", [*KEPT_APART, *MIXED])
@pytest.mark.parametrize("samples", [2, 3])
def test_nodes_say_what_gradients_show(name: str, samples: int) -> None:
    torch.manual_seed(0)
    model = Between((KEPT_APART | MIXED)[name]).double()
    tape = read(model(normal(samples, 4, 5)), dict(model.named_parameters()))
    known = owners_by_nodes(tape, samples)
    edges = [edge for results in tape.results.values() for edge in results]
    shown = by_gradients(tape, edges)
    for edge in edges:
        if edge in known and not isinstance(shown[edge], Silent):
            assert known[edge] == shown[edge], tape.names[edge[0]]
    if name in KEPT_APART:
        assert known.keys() == {*edges}
    else:
        layer = tape.leaves["layer.weight"]
        assert (layer, 0) not in known, "what mixes samples settles nothing behind it"
