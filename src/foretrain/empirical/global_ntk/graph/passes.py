"""Blocks of vectors carried through an autograd graph: back by backward passes, forth by their transpose.

The gradients g(u) of the ends with cotangents u are linear in u, and built as a graph of their own once; the gradient
of <g(u), t> by u is the way forth of t, exactly. Forward mode would run the model again for every block, which takes
several times as long on a CPU.

A graph that is cut at its ends has no way from one end through another: in a backward pass each end hands on the
cotangent that it is given, whatever arrives there from the ends after it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import GradientEdge, Node

from foretrain.empirical.kernel_operator.passes import agreement
from foretrain.support.errors import NotSupportedError

Start = Tensor | GradientEdge
Pass = Callable[..., list[Tensor | None]]


class Carrier:
    """From the ``ends`` of a graph to groups of ``starts``, and back again.

    Vectors are lists with one tensor (k, *shape) for every end or start of a group.
    """

    def __init__(
        self,
        ends: Sequence[Tensor],
        starts: Mapping[str, Sequence[Start]],
        shapes: Mapping[str, Sequence[Sequence[int]]],
        cut: Sequence[GradientEdge] = (),
    ) -> None:
        """With ``cut``, the edges of all ends, the graph is cut there; ``ends`` then need only the right shapes."""
        self._ends, self._starts, self._shapes, self._cut = ends, starts, shapes, cut
        self._live = [i for i, end in enumerate(ends) if cut or end.requires_grad]
        self._batched = True
        self._checked = False

    def back(self, group: str, cotangents: Sequence[Tensor]) -> list[Tensor]:
        """Gradients at the starts of a group."""
        like, count = cotangents[0], len(cotangents[0])
        if not self._live:
            return [like.new_zeros(count, *shape) for shape in self._shapes[group]]
        given = [cotangents[i].to(self._ends[i]) for i in self._live]
        ends, one_pass = self._way_back
        found = self._gradients(ends, self._starts[group], given, one_pass)
        return [
            like.new_zeros(count, *shape) if values is None else values
            for values, shape in zip(found, self._shapes[group])
        ]

    def forth(self, group: str, tangents: Sequence[Tensor]) -> list[Tensor]:
        """The transpose of ``back``."""
        if not self._checked:
            self._checked = True
            self._check()
        gradients, count = self._transposed[group], len(tangents[0])
        used = [(g, t.to(g)) for g, t in zip(gradients, tangents) if g is not None]
        ends = [self._cotangents[i] for i in self._live]
        carried = dict(
            zip(
                self._live,
                self._gradients([g for g, _ in used], ends, [t for _, t in used], _pass) if used else [],
            )
        )
        return [
            end.new_zeros(count, *end.shape) if (values := carried.get(i)) is None else values
            for i, end in enumerate(self._ends)
        ]

    @property
    def _way_back(self) -> tuple[Sequence[Start], Pass]:
        return (self._cut, _cut_pass) if self._cut else ([self._ends[i] for i in self._live], _pass)

    @cached_property
    def _cotangents(self) -> list[Tensor]:
        return [torch.zeros_like(end, requires_grad=True) for end in self._ends]

    @cached_property
    def _transposed(self) -> dict[str, list[Tensor | None]]:
        """The gradients at all starts as functions of the cotangents; None where they do not depend on them."""
        starts: Any = [start for group in self._starts.values() for start in group]
        if not self._live:
            return {name: [None] * len(group) for name, group in self._starts.items()}
        ends, one_pass = self._way_back
        try:
            with torch.enable_grad():
                gradients = one_pass(
                    ends, starts, [self._cotangents[i] for i in self._live], create_graph=True
                )
        except RuntimeError as reason:
            raise _refusal(reason) from reason
        found = iter(g if g is not None and g.requires_grad else None for g in gradients)
        return {name: [next(found) for _ in group] for name, group in self._starts.items()}

    def _check(self) -> None:
        """That the way forth is the transpose of the way back: custom derivatives need not be differentiable."""
        if not self._live:
            return
        generator = torch.Generator().manual_seed(0)

        def draw(shape: Sequence[int], like: Tensor) -> Tensor:
            return torch.randn(1, *shape, generator=generator, dtype=torch.float64).to(like)

        like = self._ends[self._live[0]]
        vectors = [draw(end.shape, end) for end in self._ends]
        for group, shapes in self._shapes.items():
            if not shapes:
                continue
            tangents = [draw(shape, like) for shape in shapes]
            pushed = self.forth(group, tangents)
            expected = _overlap(tangents, self.back(group, vectors))
            scale = (_overlap(pushed, pushed) * _overlap(vectors, vectors)) ** 0.5
            tolerance = agreement(like.dtype)
            if not abs(_overlap(pushed, vectors) - expected) <= tolerance * scale:
                raise NotSupportedError(
                    "the backward pass of the model is not differentiable in what it is given: check its custom "
                    "autograd functions with torch.autograd.gradgradcheck."
                )

    def _gradients(
        self,
        ends: Sequence[Start],
        starts: Sequence[Start],
        blocks: Sequence[Tensor],
        one_pass: Pass,
    ) -> list[Tensor | None]:
        """Gradients (k, *shape) for every one of k cotangents, in one pass where torch can do it."""
        count = len(blocks[0])
        if not starts:
            return []
        if self._batched and count > 1:
            try:
                return _batched(one_pass, ends, starts, blocks)
            except RuntimeError:
                self._batched = False
        try:
            found = [one_pass(ends, starts, [block[i] for block in blocks]) for i in range(count)]
        except RuntimeError as reason:
            raise _refusal(reason) from reason
        return [_stacked(values) for values in zip(*found)]


def _pass(
    ends: Sequence[Start], starts: Sequence[Start], cotangents: Sequence[Tensor], create_graph: bool = False
) -> list[Tensor | None]:
    """Gradients at the starts of the sum of ends times cotangents; None where none arrives."""
    roots: Any = list(ends)
    targets: Any = list(starts)
    found = torch.autograd.grad(
        roots,
        targets,
        list(cotangents),
        retain_graph=True,
        create_graph=create_graph,
        allow_unused=True,
    )
    return [values.to_dense() if values is not None and values.is_sparse else values for values in found]


def _cut_pass(
    ends: Sequence[GradientEdge],
    starts: Sequence[Start],
    cotangents: Sequence[Tensor],
    create_graph: bool = False,
) -> list[Tensor | None]:
    """The same where every end hands on its own cotangent alone; at an end itself, what arrives there."""
    by_node: dict[Node, dict[int, Tensor]] = {}
    for end, cotangent in zip(ends, cotangents):
        by_node.setdefault(end.node, {})[end.output_nr] = cotangent
    with ExitStack() as stack:
        for node, own in by_node.items():

            def hand_on(arrived: tuple[Tensor, ...], own: Mapping[int, Tensor] = own) -> tuple[Tensor, ...]:
                return tuple(own.get(slot, values) for slot, values in enumerate(arrived))

            stack.callback(node.register_prehook(hand_on).remove)
        return _pass(ends, starts, [torch.zeros_like(values) for values in cotangents], create_graph)


def _batched(
    one_pass: Pass,
    ends: Sequence[Start],
    starts: Sequence[Start],
    blocks: Sequence[Tensor],
) -> list[Tensor | None]:
    """A pass with all cotangents of the blocks at once."""
    arrives: list[bool] = []

    def one(*cotangents: Tensor) -> tuple[Tensor, ...]:
        found = one_pass(ends, starts, cotangents)
        arrives[:] = [values is not None for values in found]
        return tuple(values for values in found if values is not None)

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="There is a performance drop")
        together = iter(torch.func.vmap(one)(*blocks))
    return [next(together) if is_there else None for is_there in arrives]


def _stacked(values: Sequence[Tensor | None]) -> Tensor | None:
    like = next((value for value in values if value is not None), None)
    if like is None:
        return None
    return torch.stack([torch.zeros_like(like) if value is None else value for value in values])


def _overlap(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(first, second))


def _refusal(reason: RuntimeError) -> NotSupportedError:
    text = str(reason).splitlines()[0]
    if "modified by an inplace operation" in text:
        return NotSupportedError(
            "a tensor that the graph still needs was changed in place, by a training step or by the model itself: "
            "build the operator again after a step, and let the model make new tensors."
        )
    return NotSupportedError(
        f"torch cannot carry vectors through the graph of this model ({text.rstrip('.')}): write that operation "
        "out of simpler ones."
    )
