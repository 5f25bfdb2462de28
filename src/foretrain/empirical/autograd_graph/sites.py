"""Weight sites: where a parameter enters a product, what it multiplies, and the sensitivities at the result.

At a site with D in the product, the gradient of an output of sample n with respect to D is a sum over the
positions t of (sensitivity) x (input). A reader finds both in the autograd graph, whatever the layout of the
product is, and brings them into one: inputs (groups, samples, p, T), sensitivities (groups, samples, q, T).
Of parameters that are added, multiplied or copied, the gradient of one sample is a sum over its entries.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from foretrain.empirical.autograd_graph.tape import SampleAxis, Tape

_SCALED = ("AddmmBackward0", "BaddbmmBackward0")  # products that the node multiplies by its alpha


class UnreadableError(Exception):
    """The use of a parameter is not one of those known here; its gradients are then formed sample by sample."""


@dataclass(frozen=True)
class Use:
    """One use of a tensor D made of parameters: by which node, as which of its inputs, owned by whom."""

    node: int
    position: int
    axis: SampleAxis


class ProductSite(ABC):
    """A use of D as a factor of a product.

    ``inputs_first``: D's own layout is (groups, p, q), else (groups, q, p).
    """

    inputs_first: ClassVar[bool] = False

    def __init__(self, tape: Tape, use: Use, shape: Sequence[int], samples: int) -> None:
        self.tape, self.use, self.shape, self.samples = tape, use, tuple(shape), samples
        self.groups = 1

    @abstractmethod
    def inputs(self) -> Tensor:
        """(groups, samples, p, T); for a table of vectors the rows that are looked up, (samples, T)."""

    @abstractmethod
    def arranged(self, gradient: Tensor) -> Tensor:
        """The gradient at the node's result as (groups, samples, q, T)."""

    def saved(self, name: str) -> Tensor:
        """An argument that the node kept, without its own graph."""
        value = self.tape.saved(self.use.node, name)
        if not isinstance(value, Tensor):
            raise UnreadableError("its factor was not kept")
        return value.detach()


class _MatrixFactor(ProductSite):
    """A product with a matrix that the node kept: under which name, and whether times the node's alpha."""

    def inputs(self) -> Tensor:
        """What D multiplies."""
        name = self.tape.names[self.use.node]
        found = self.arranged(self.saved(_FACTORS[name, self.use.position][1]))
        factor = float(self.tape.saved(self.use.node, "alpha")) if name in _SCALED else 1.0
        return found * factor if factor != 1 else found

    def _rows(self, stack: Tensor, results: int) -> Tensor:
        """(groups, rows, features) to (groups, samples, features, T); the product gives ``results`` at every row."""
        groups, rows, features = stack.shape
        before, after = _positions(self.use.axis, groups, results, rows, self.samples)
        split = stack.reshape(groups, before, self.samples, after, features)
        return split.permute(0, 2, 4, 1, 3).reshape(groups, self.samples, features, before * after)


class RightFactor(_MatrixFactor):
    """out = scale * left @ D with D (b, p, q) or (p, q), as in a linear layer, or a vector D (p,)."""

    inputs_first = True

    def arranged(self, gradient: Tensor) -> Tensor:
        """The gradient, position by position."""
        if len(self.shape) == 1:  # one result at every row
            return self._rows((gradient if gradient.ndim == 2 else gradient[:, None])[None], 1)
        return self._rows(gradient if gradient.ndim == 3 else gradient[None], self.shape[-1])


class LeftFactor(_MatrixFactor):
    """out = scale * D @ right with D (b, q, p) or (q, p)."""

    def arranged(self, gradient: Tensor) -> Tensor:
        """(groups, features, columns) to (groups, samples, features, T)."""
        stack = gradient if gradient.ndim == 3 else gradient[None]
        groups, features, columns = stack.shape
        before, rest = divmod(self.use.axis.before, groups * self.shape[-2])
        if rest or before * self.samples * self.use.axis.after != columns:
            raise UnreadableError("the samples are not along the columns of its product")
        split = stack.reshape(groups, features, before, self.samples, self.use.axis.after)
        return split.permute(0, 3, 1, 2, 4).reshape(groups, self.samples, features, -1)


def _positions(axis: SampleAxis, groups: int, features: int, rows: int, samples: int) -> tuple[int, int]:
    """How many rows lie before and after the sample axis, when the rows of a product hold the samples."""
    before, rest = divmod(axis.before, groups)
    after, remainder = divmod(axis.after, features)
    if rest or remainder or before * samples * after != rows:
        raise UnreadableError("the samples are not along the rows of its product")
    return before, after


class LinearWeight(_MatrixFactor):
    """The weight (q, p) where a device has a product of its own for linear layers: input (..., p)."""

    def arranged(self, gradient: Tensor) -> Tensor:
        """The gradient, position by position."""
        return self._rows(gradient.reshape(1, -1, gradient.shape[-1]), self.shape[0])


class Convolution(ProductSite):
    """The weight (out, in / groups, *kernel) of a convolution in any number of dimensions."""

    def __init__(self, tape: Tape, use: Use, shape: Sequence[int], samples: int) -> None:
        super().__init__(tape, use, shape, samples)
        self.groups = int(tape.saved(use.node, "groups"))
        self.kernel = self.shape[2:]

    def inputs(self) -> Tensor:
        """What D multiplies."""
        padding = self.tape.saved(self.use.node, "padding")
        return self._windows(self.saved("input"), [(size, size) for size in padding])

    def arranged(self, gradient: Tensor) -> Tensor:
        """(images, channels, *space) to (groups, samples, channels / groups, T)."""
        channels = gradient.shape[1] // self.groups
        return self._by_sample(gradient.reshape(len(gradient), self.groups, channels, -1))

    def _windows(self, image: Tensor, around: Sequence[tuple[int, int]]) -> Tensor:
        """What the kernel sees at every position: (groups, samples, channels / groups * kernel, T)."""
        stride, dilation = (self.tape.saved(self.use.node, name) for name in ("stride", "dilation"))
        sides = [side for pair in reversed(around) for side in pair]
        padded = pad(image, sides) if any(sides) else image.contiguous()
        sizes = [
            (length - d * (k - 1) - 1) // s + 1
            for length, k, s, d in zip(padded.shape[2:], self.kernel, stride, dilation)
        ]
        steps = padded.stride()
        windows = padded.as_strided(
            (*padded.shape[:2], *self.kernel, *sizes),
            (
                *steps[:2],
                *(step * d for step, d in zip(steps[2:], dilation)),
                *(step * s for step, s in zip(steps[2:], stride)),
            ),
        )
        if padded.ndim > 2 and padded.shape[1] > 1 and steps[1] == 1:
            # Channels come last: with features last too, both are read and written along memory.
            axes = list(range(windows.ndim))
            order = [0, *axes[2 + len(sizes) :], *axes[1 : 2 + len(sizes)]]
            rows = windows.permute(order).reshape(len(image), prod(sizes), self.groups, -1)
            return self._by_sample(rows.permute(0, 2, 3, 1))
        return self._by_sample(windows.reshape(len(image), self.groups, -1, prod(sizes)))

    def _by_sample(self, stack: Tensor) -> Tensor:
        """(images, groups, features, positions) to (groups, samples, features, T): a sample may have many images."""
        images, groups, features, positions = stack.shape
        before = self.use.axis.before
        if images % (before * self.samples):
            raise UnreadableError("the samples are not along the first axis of its convolution")
        split = stack.reshape(before, self.samples, -1, groups, features, positions)
        return split.permute(3, 1, 4, 0, 2, 5).reshape(groups, self.samples, features, -1)


class TransposedConvolution(Convolution):
    """The weight (in, out / groups, *kernel) of a transposed convolution: the roles are exchanged."""

    inputs_first = True

    def inputs(self) -> Tensor:
        """What D multiplies."""
        return super().arranged(self.saved("input"))

    def arranged(self, gradient: Tensor) -> Tensor:
        """Padding cut the result on both sides, output padding made it longer at the end: both are undone."""
        stride, dilation, padding = (
            self.tape.saved(self.use.node, name) for name in ("stride", "dilation", "padding")
        )
        around = []
        for axis, reached in enumerate(self.saved("input").shape[2:]):
            whole = (reached - 1) * stride[axis] + dilation[axis] * (self.kernel[axis] - 1) + 1
            around.append((padding[axis], whole - padding[axis] - gradient.shape[2 + axis]))
        return self._windows(gradient, around)


class Table(ProductSite):
    """The table (rows, q) of an embedding: the input of a position is the row it looks up."""

    inputs_first = True

    def inputs(self) -> Tensor:
        """What D multiplies."""
        rows = self.saved("indices")
        before, after = self._rows_around()
        return rows.reshape(before, self.samples, after).transpose(0, 1).reshape(self.samples, -1)

    def arranged(self, gradient: Tensor) -> Tensor:
        """The gradient, position by position."""
        before, after = self._rows_around()
        split = gradient.reshape(before, self.samples, after, self.shape[-1]).permute(1, 3, 0, 2)
        stack = split.reshape(1, self.samples, self.shape[-1], -1)
        padding = self.tape.saved(self.use.node, "padding_idx")
        if padding < 0 or padding >= self.shape[0]:  # torch keeps "none" as -1, unsigned in some versions
            return stack
        counted: Tensor = self.inputs() != padding
        return stack * counted[None, :, None, :]

    def _rows_around(self) -> tuple[int, int]:
        if self.tape.saved(self.use.node, "scale_grad_by_freq"):
            raise UnreadableError("its gradient is scaled by how often a row occurs")
        rows = self.saved("indices").numel()
        return _positions(self.use.axis, 1, self.shape[-1], rows, self.samples)


# By node and position of D: the reader, and the name under which the node kept the other factor.
_FACTORS: dict[tuple[str, int], tuple[type[ProductSite], str]] = {
    ("AddmmBackward0", 1): (LeftFactor, "mat2"),
    ("AddmmBackward0", 2): (RightFactor, "mat1"),
    ("BaddbmmBackward0", 1): (LeftFactor, "batch2"),
    ("BaddbmmBackward0", 2): (RightFactor, "batch1"),
    ("BmmBackward0", 0): (LeftFactor, "mat2"),
    ("BmmBackward0", 1): (RightFactor, "self"),
    ("ConvolutionBackward0", 1): (Convolution, "input"),
    ("EmbeddingBackward0", 0): (Table, "indices"),
    ("LinearBackward0", 1): (LinearWeight, "input"),
    ("MmBackward0", 0): (LeftFactor, "mat2"),
    ("MmBackward0", 1): (RightFactor, "self"),
    ("MvBackward0", 1): (RightFactor, "self"),
}


def product_site(tape: Tape, use: Use, shape: Sequence[int], samples: int) -> ProductSite:
    """The reader for a use of D, whose shape is given, in a product."""
    kind, _ = _FACTORS[tape.names[use.node], use.position]
    if kind is Convolution and tape.saved(use.node, "transposed"):
        kind = TransposedConvolution
    return kind(tape, use, shape, samples)


def is_product(tape: Tape, node: int, position: int) -> bool:
    """Whether a node multiplies its input by something that the site can read."""
    return (tape.names[node], position) in _FACTORS


# (tape, node, gradient at its result) -> gradient before the sum.
Reader = Callable[[Tape, int, Tensor], Tensor]


def _itself(tape: Tape, node: int, gradient: Tensor) -> Tensor:
    return gradient


def _times_number(name: str, sign: int = 1) -> Reader:
    """Multiplies by a number that the node kept."""
    return lambda tape, node, gradient: gradient * (sign * float(tape.saved(node, name)))


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
    ("MulBackward0", 0): lambda tape, node, gradient: gradient * _kept(tape, node, "other"),
    ("MulBackward0", 1): lambda tape, node, gradient: gradient * _kept(tape, node, "self"),
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
    if name == "RepeatBackward0":  # copies along every axis of D, one of which is that of the samples
        own = (1,) * (full.ndim - len(shape)) + tuple(shape)
        sizes = [size for total, length in zip(full.shape, own) for size in (total // length, length)]
        kept = tuple(size for length in own for size in (1, length))
        return _summed_around_samples(full.reshape(sizes), use.axis, kept, samples)
    # Sum over all entries of a sample that meet the same entry of D, which is aligned with the last axes.
    aligned = tuple(shape)
    if name in _ALONG_CHANNELS:
        aligned = (shape[0],) + (1,) * (gradient.ndim - 2)
    while aligned and aligned[0] == 1:
        aligned = aligned[1:]
    trailing = full.shape[full.ndim - len(aligned) :]
    length = prod(trailing)
    if use.axis.after % max(length, 1) == 0:
        split = full.reshape(use.axis.before, samples, use.axis.after // length, *trailing)
        summed = split.sum((0, 2))
        spread = [i + 1 for i, (size, mine) in enumerate(zip(trailing, aligned)) if mine == 1 and size > 1]
        return (summed.sum(spread) if spread else summed).reshape(samples, -1)
    return _summed_around_samples(full, use.axis, aligned, samples)


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
