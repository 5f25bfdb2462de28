"""Parameters that are added, multiplied or copied: their gradient of one sample is a sum over its entries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.ownership import SampleAxis
from foretrain.empirical.autograd_graph.sites import UnreadableError, Use
from foretrain.empirical.autograd_graph.tape import Tape

# (tape, node, gradient at its result) -> gradient before the sum.
Reader = Callable[[Tape, int, Tensor], Tensor]


def _itself(tape: Tape, node: int, gradient: Tensor) -> Tensor:
    return gradient


def _times_number(name: str, sign: int = 1) -> Reader:
    """Multiplies by a number that the node kept."""
    return lambda tape, node, gradient: gradient * (sign * float(tape.saved(node, name)))


def _times_tensor(name: str) -> Reader:
    """Multiplies by a tensor that the node kept."""
    return lambda tape, node, gradient: gradient * _kept(tape, node, name)


def _times_normalised(compute: Callable[[Tape, int], Tensor]) -> Reader:
    """Multiplies by a normalised signal, which is the same in every backward pass and computed in the first."""

    def read(tape: Tape, node: int, gradient: Tensor) -> Tensor:
        if node not in tape.cache:
            tape.cache[node] = compute(tape, node)
        found: Tensor = tape.cache[node]
        return gradient * found

    return read


def _layer_normal(tape: Tape, node: int) -> Tensor:
    value, mean, rate = (_kept(tape, node, name) for name in ("input", "result1", "result2"))
    return (value - mean) * rate


def _group_normal(tape: Tape, node: int) -> Tensor:
    value, mean, rate = (_kept(tape, node, name) for name in ("input", "result1", "result2"))
    grouped = value.reshape(*mean.shape, -1)
    return ((grouped - mean[..., None]) * rate[..., None]).reshape(value.shape)


def _batch_normal(tape: Tape, node: int) -> Tensor:
    if tape.saved(node, "training"):
        raise UnreadableError("its normalisation is over the batch")
    value = _kept(tape, node, "input")
    along = (1, -1) + (1,) * (value.ndim - 2)
    mean = _kept(tape, node, "running_mean").reshape(along)
    rate = torch.rsqrt(_kept(tape, node, "running_var").reshape(along) + tape.saved(node, "eps"))
    return (value - mean) * rate


def _kept(tape: Tape, node: int, name: str) -> Tensor:
    value = tape.saved(node, name)
    if value is None:
        raise UnreadableError("its factor was not kept")
    return value.detach() if isinstance(value, Tensor) else torch.as_tensor(value)


_READERS: dict[tuple[str, int], Reader] = {
    ("AddBackward0", 0): _itself,
    ("AddBackward0", 1): _times_number("alpha"),
    ("AddmmBackward0", 0): _times_number("beta"),
    ("BaddbmmBackward0", 0): _times_number("beta"),
    ("ConvolutionBackward0", 2): _itself,
    ("DivBackward0", 0): lambda tape, node, gradient: gradient / _kept(tape, node, "other"),
    ("ExpandBackward0", 0): _itself,
    ("LinearBackward0", 2): _itself,
    ("MulBackward0", 0): _times_tensor("other"),
    ("MulBackward0", 1): _times_tensor("self"),
    ("NativeBatchNormBackward0", 1): _times_normalised(_batch_normal),
    ("NativeBatchNormBackward0", 2): _itself,
    ("NativeGroupNormBackward0", 1): _times_normalised(_group_normal),
    ("NativeGroupNormBackward0", 2): _itself,
    ("NativeLayerNormBackward0", 1): _times_normalised(_layer_normal),
    ("NativeLayerNormBackward0", 2): _itself,
    ("PreluKernelBackward0", 1): lambda tape, node, gradient: (
        gradient * _kept(tape, node, "self").clamp_max(0)
    ),
    ("RepeatBackward0", 0): _itself,
    ("SubBackward0", 0): _itself,
    ("SubBackward0", 1): _times_number("alpha", -1),
}
_ALONG_CHANNELS = ("ConvolutionBackward0", "NativeGroupNormBackward0", "NativeBatchNormBackward0")


def is_broadcast(tape: Tape, node: int, position: int) -> bool:
    """Whether a node adds, scales by, or copies its input."""
    return (tape.names[node], position) in _READERS


def is_plain_bias(tape: Tape, use: Use) -> bool:
    """Whether the parameter is added, as it is, to the result of the very product of its node."""
    name = tape.names[use.node]
    if name == "AddmmBackward0":
        return use.position == 0 and bool(tape.saved(use.node, "beta") == 1)
    if name == "ConvolutionBackward0":
        return use.position == 2 and not tape.saved(use.node, "transposed")
    return False


def per_sample_sum(tape: Tape, use: Use, shape: Sequence[int], samples: int, gradient: Tensor) -> Tensor:
    """The gradient of every sample with respect to D of the given shape, (samples, entries of D)."""
    name = tape.names[use.node]
    full = _READERS[name, use.position](tape, use.node, gradient)
    if full.shape != gradient.shape:
        raise UnreadableError("its factor changes the shape of the result")
    if name == "RepeatBackward0":
        return _summed_over_copies(full, use.axis, shape, samples)
    aligned = tuple(shape)
    if name in _ALONG_CHANNELS:
        aligned = (shape[0],) + (1,) * (gradient.ndim - 2)
    return _summed(full, use.axis, aligned, samples)


def _summed(full: Tensor, axis: SampleAxis, shape: tuple[int, ...], samples: int) -> Tensor:
    """Sum over all entries of a sample that meet the same entry of D, which is aligned with the last axes."""
    while shape and shape[0] == 1:
        shape = shape[1:]
    trailing = full.shape[full.ndim - len(shape) :]
    length = prod(trailing)
    if axis.after % max(length, 1) == 0:
        split = full.reshape(axis.before, samples, axis.after // length, *trailing)
        summed = split.sum((0, 2))
        spread = [i + 1 for i, (size, own) in enumerate(zip(trailing, shape)) if own == 1 and size > 1]
        return (summed.sum(spread) if spread else summed).reshape(samples, -1)
    return _summed_around_samples(full, axis, shape, samples)


def _summed_over_copies(full: Tensor, axis: SampleAxis, shape: Sequence[int], samples: int) -> Tensor:
    """Copies along every axis of D, one of which is that of the samples."""
    own = (1,) * (full.ndim - len(shape)) + tuple(shape)
    sizes = [size for total, length in zip(full.shape, own) for size in (total // length, length)]
    kept = tuple(size for length in own for size in (1, length))
    return _summed_around_samples(full.reshape(sizes), axis, kept, samples)


def _summed_around_samples(full: Tensor, axis: SampleAxis, shape: tuple[int, ...], samples: int) -> Tensor:
    """The same where D also spans axes before that of the samples."""
    own = (1,) * (full.ndim - len(shape)) + shape
    for k in range(full.ndim):
        if (
            prod(full.shape[:k]) == axis.before
            and full.shape[k] == samples
            and prod(full.shape[k + 1 :]) == axis.after
            and own[k] == 1
        ):
            spread = [i for i in range(full.ndim) if own[i] == 1 and i != k]
            summed = full.sum(spread, keepdim=True) if spread else full
            return summed.movedim(k, 0).reshape(samples, -1)
    raise UnreadableError("the samples are not along an axis that it is spread over")
