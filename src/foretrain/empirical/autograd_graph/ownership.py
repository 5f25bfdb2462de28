"""Which entries of a graph's tensors belong to which sample, by what its nodes do: no backward pass is needed.

The outputs hold their samples along the first axis. From there the axis is followed down to the parameters, through
every node that is known to keep samples apart: an entry then reaches the outputs of one sample alone. What is spread
over the samples is shared by them. Behind a node that is not known nothing is said.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from foretrain.empirical.autograd_graph.tape import Edge, Owner, SampleAxis, Shared, Tape

# For every axis of a node's result the axis of its input that it comes from.
Origins = Sequence[int | None]
_SPREAD = None  # all entries along the axis come from the same ones of the input
_MIXED = -1  # they come from several
_Rule = Callable[[Tape, int, int, tuple[int, ...], tuple[int, ...]], Origins]


def owners_by_nodes(tape: Tape, samples: int) -> dict[Edge, Owner]:
    """The owners of all edges that are known by the nodes between them and the outputs."""
    verdicts: dict[Edge, list[Owner | None]] = {(0, 0): [SampleAxis(1, tape.outputs.shape[1])]}
    waiting = {
        node: sum(len(tape.users.get(edge, ())) for edge in edges) for node, edges in tape.results.items()
    }
    known: dict[Edge, Owner] = {}
    ready = [0]
    while ready:
        node = ready.pop()
        results: list[tuple[Edge, Owner]] = []
        for edge in tape.results.get(node, ()):
            first, *others = verdicts.pop(edge)
            if first is not None and (not others or all(other == first for other in others)):
                known[edge] = first
                results.append((edge, first))
        is_known = len(results) == len(tape.results.get(node, ()))
        for position, given in enumerate(tape.inputs[node]):
            if given is None:
                continue
            found = _owner_of_input(tape, node, position, results, samples) if is_known else None
            verdicts.setdefault(given, []).append(found)
            waiting[given[0]] -= 1
            if not waiting[given[0]]:
                ready.append(given[0])
    return known


def _owner_of_input(
    tape: Tape, node: int, position: int, results: Sequence[tuple[Edge, Owner]], samples: int
) -> Owner | None:
    """Who owns an input of a node, by all of its results; None if that is not known."""
    if all(isinstance(owner, Shared) for _, owner in results):
        return Shared() if results else None
    first, *others = (_owner_by_result(tape, node, position, edge, owner, samples) for edge, owner in results)
    return None if any(other != first for other in others) else first


def _owner_by_result(
    tape: Tape, node: int, position: int, result: Edge, owner: Owner, samples: int
) -> Owner | None:
    if not isinstance(owner, SampleAxis):
        return owner
    name = tape.names[node].partition("Backward")[0]
    given = tape.inputs[node][position]
    assert given is not None
    shape, own = tape.shape_at(result), tape.shape_at(given)
    if name in _SAME_ENTRIES or (own == shape and _RULES.get(name) is _aligned):
        return owner if prod(own) == prod(shape) else None
    place = _place(shape, owner, samples)
    rule = _RULES.get(name)
    if place is None or rule is None:
        return None
    axis, before, after = place
    origin = rule(tape, node, position, shape, own)[axis]
    if origin is _SPREAD:
        return Shared()
    if origin == _MIXED or own[origin] != shape[axis]:
        return None
    return SampleAxis(prod(own[:origin]) * before, after * prod(own[origin + 1 :]))


def _place(shape: Sequence[int], owner: SampleAxis, samples: int) -> tuple[int, int, int] | None:
    """The axis of a shape along which the samples lie, and how many entries along it are before and after them."""
    behind = 1
    for axis in reversed(range(len(shape))):
        after, rest = divmod(owner.after, behind)
        if after * samples <= shape[axis]:
            before, remainder = divmod(shape[axis], after * samples)
            fits = not rest and after > 0 and not remainder and prod(shape[:axis]) * before == owner.before
            return (axis, before, after) if fits else None
        behind *= shape[axis]
    return None


def _aligned(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
    """Entry by entry, with the last axes beside each other."""
    missing = len(shape) - len(own)
    return [
        _SPREAD if axis < missing or own[axis - missing] != shape[axis] else axis - missing
        for axis in range(len(shape))
    ]


def _number(tape: Tape, node: int, name: str, axes: int) -> int:
    """An axis that a node kept; torch keeps negative ones without their sign."""
    kept = int(tape.saved(node, name))
    return (kept - 2**64 if kept >= 2**63 else kept) % axes


def _transposed(
    tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]
) -> Origins:
    origins = list(range(len(shape)))
    first, second = (_number(tape, node, name, len(shape)) for name in ("dim0", "dim1"))
    origins[first], origins[second] = second, first
    return origins


def _permuted(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
    return [(kept - 2**64 if kept >= 2**63 else kept) % len(shape) for kept in tape.saved(node, "dims")]


def _taken_out(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
    """One place along an axis, which is lost."""
    lost = _number(tape, node, "dim", len(own))
    return [axis + (axis >= lost) for axis in range(len(shape))]


def _along(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
    """All axes stay what they are but one, along which entries are mixed, cut or put together."""
    mixed = _number(tape, node, "dim", len(shape))
    return [_MIXED if axis == mixed else axis for axis in range(len(shape))]


def _stacked(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
    new = _number(tape, node, "dim", len(shape))
    return [_MIXED if axis == new else axis - (axis > new) for axis in range(len(shape))]


def _summed(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
    if not tape.names[node].endswith("1") or not tape.saved(node, "dim"):
        return [_MIXED] * len(shape)  # over everything
    if tape.saved(node, "keepdim"):
        return list(range(len(shape)))
    lost = {(kept - 2**64 if kept >= 2**63 else kept) % len(own) for kept in tape.saved(node, "dim")}
    return [axis for axis in range(len(own)) if axis not in lost]


def _product(added: int, batched: bool) -> _Rule:
    """A product of matrices, or of stacks of them, with an ``added`` tensor before its factors."""

    def rule(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
        if position < added:
            return _aligned(tape, node, position, shape, own)
        stack = [0] if batched else []
        rows, columns = len(stack), len(stack) + 1
        return [*stack, rows, _SPREAD] if position == added else [*stack, _SPREAD, columns]

    return rule


def _row_norm(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
    if position:
        return _aligned(tape, node, position, shape, own)
    inside = len(shape) - len(tape.saved(node, "normalized_shape"))
    return [axis if axis < inside else _MIXED for axis in range(len(shape))]


def _by_image(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
    """Every image of the first input apart; the others are weights."""
    return [_SPREAD if position else 0, *[_MIXED] * (len(shape) - 1)]


def _batch_norm(
    tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]
) -> Origins:
    if tape.saved(node, "training"):
        return [_MIXED] * len(shape)
    return _by_image(tape, node, position, shape, own)


def _attention(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
    """Queries, keys and values (..., places, features); every stack of places is by itself."""
    if position > 2 or len(own) != len(shape):
        return [_MIXED] * len(shape)
    return [*range(len(shape) - 2), _MIXED, _MIXED]


def _looked_up(tape: Tape, node: int, position: int, shape: tuple[int, ...], own: tuple[int, ...]) -> Origins:
    return [_SPREAD] * len(shape)


_SAME_ENTRIES = frozenset({"Alias", "Clone", "ReshapeAlias", "Squeeze", "UnsafeView", "Unsqueeze", "View"})
_ENTRY_BY_ENTRY = (
    "Abs Add Addcmul Addcdiv Celu Clamp ClampMax ClampMin Cos Div Elu Erf Exp Expand Expm1 Gelu Hardsigmoid "
    "Hardswish Hardtanh LeakyRelu Log Log1P LogSigmoid Mish Mul Neg Pow PreluKernel Reciprocal Relu Rsqrt Sigmoid "
    "Silu Sin Softplus Sqrt Sub Tanh Threshold ToCopy Where"
)
_RULES: dict[str, _Rule] = {
    **dict.fromkeys(_ENTRY_BY_ENTRY.split(), _aligned),
    **dict.fromkeys(("Cat", "LogSoftmax", "Slice", "Softmax"), _along),
    **dict.fromkeys(("Split", "SplitWithSizes", "UnsafeSplit", "UnsafeSplitWithSizes"), _along),
    **dict.fromkeys(("Select", "Unbind"), _taken_out),
    **dict.fromkeys(("Mean", "Sum"), _summed),
    **dict.fromkeys(
        ("Convolution", "MaxPool2DWithIndices", "AvgPool2D", "AdaptiveAvgPool2D", "NativeGroupNorm"),
        _by_image,
    ),
    "Addmm": _product(1, batched=False),
    "Baddbmm": _product(1, batched=True),
    "Bmm": _product(0, batched=True),
    "Embedding": _looked_up,
    "Mm": _product(0, batched=False),
    "NativeBatchNorm": _batch_norm,
    "NativeLayerNorm": _row_norm,
    "Permute": _permuted,
    "ScaledDotProductFlashAttentionForCpu": _attention,
    "Stack": _stacked,
    "T": lambda tape, node, position, shape, own: [1, 0] if len(shape) == 2 else [0],
    "Transpose": _transposed,
}
