"""Arguments that several questions have in common: targets, modes, probes, a ridge; and what all of them refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.empirical.any_kernel import AnyKernel, as_tensor
from foretrain.empirical.tangent_kernel.written_kernel import TangentKernel
from foretrain.operators import Operator
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError

Array: TypeAlias = NDArray[np.float64]
Kernel: TypeAlias = Operator | Tensor | NDArray[Any]  # arrays are (N, N2) or (N, N2, C, C)


class OperatorKernel(AnyKernel):
    """Any operator as a kernel: each of its entries is a sample with one output."""

    def __init__(self, operator: Operator) -> None:
        super().__init__(
            operator.matrix_shape,
            (0,),
            traced=False,
            symmetric=operator.symmetric,
            dtype=operator.dtype,
            device=operator.device,
            best_block=operator.best_block,
        )
        self._operator = operator

    def _apply(self, flat: Tensor) -> Tensor:
        return self._operator.apply(flat)

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return self._operator.apply_adjoint(flat)


def as_kernel(given: Kernel) -> AnyKernel:
    """Kernels as they are, and arrays and other operators as kernels."""
    if isinstance(given, AnyKernel):
        return given
    if isinstance(given, Operator):
        return OperatorKernel(given)
    array = as_tensor(given)
    shape = tuple(array.shape)
    if len(shape) not in (2, 4) or shape[2:3] != shape[3:] or 0 in shape or not array.is_floating_point():
        raise InputError(
            f"the kernel is an array of shape {shape} and {array.dtype}, but it must hold real numbers of shape "
            "(N, N2) or (N, N2, C, C): pass what ntk(...) or ntk_operator(...) gives."
        )
    outputs = tuple(range(shape[2])) if len(shape) == 4 else (0,)
    return TangentKernel(array, len(shape) == 2, outputs, symmetric=shape[0] == shape[1])


def positive(eigenvalues: Array, kernel: AnyKernel) -> Array:
    """Eigenvalues of a kernel without the negative ones that are rounding; others are refused."""
    lowest, largest = float(eigenvalues.min()), float(np.abs(eigenvalues).max())
    if lowest < -kernel.resolves(largest):
        raise InputError(
            f"the kernel has the negative eigenvalue {lowest:.3g}, which no tangent kernel has: check its origin."
        )
    return np.maximum(eigenvalues, 0.0)


@dataclass(frozen=True, eq=False)
class Targets:
    """What the outputs should be, (N, columns); ``one_hot`` if they were given as labels."""

    values: Array
    one_hot: bool

    def vectors(self, kernel: AnyKernel) -> Array:
        """As columns for the kernel's matrix: one for all outputs, or for a trace one for each."""
        return self.values if kernel.traced else self.values.reshape(-1, 1)


def as_targets(y: Any, kernel: AnyKernel) -> Targets:
    """(N,) for one output, (N, C), or whole numbers (N,) as labels of C > 1 outputs."""
    given = as_tensor(y).cpu()
    samples = kernel.samples[0]
    if given.is_complex() or given.ndim == 0 or len(given) != samples:
        raise InputError(
            f"`y` has shape {tuple(given.shape)}, but its first axis must hold the {samples} samples of the kernel."
        )
    if not bool(torch.isfinite(given).all()):
        raise InputError("`y` has entries that are not finite: leave out samples without a target.")
    classes = len(kernel.outputs)
    if given.ndim == 1 and not given.is_floating_point() and classes > 1:
        labels = given.numpy().astype(np.int64)
        everything = kernel.outputs == tuple(range(classes))
        if labels.min() < 0 or (everything and labels.max() >= classes):
            raise InputError(
                f"`y` holds labels from {labels.min()} to {labels.max()}, but the outputs are numbered 0 to "
                f"{max(kernel.outputs)}: pass floating-point targets if they are not labels."
            )
        one_hot = labels[:, None] == np.asarray(kernel.outputs)
        return Targets(np.asarray(one_hot, dtype=np.float64), True)
    columns = prod(given.shape[1:])
    if not kernel.traced and columns != kernel.width:
        raise InputError(
            f"`y` has shape {tuple(given.shape)}, but the kernel has {kernel.width} outputs: pass "
            f"({samples}, {kernel.width}) numbers, or ({samples},) whole numbers as labels."
        )
    return Targets(given.to(torch.float64).reshape(samples, columns).numpy(), False)


def as_outputs(values: Any, shape: Sequence[int], what: str) -> Array:
    """Outputs of a model, (samples, columns) or flat for one column."""
    found = as_tensor(values).cpu().to(torch.float64).numpy()
    if found.size != prod(shape) or found.shape[:1] != (shape[0],):
        raise InputError(f"{what} has shape {found.shape}, but it must be {tuple(shape)}.")
    if not np.isfinite(found).all():
        raise InputError(f"{what} has entries that are not finite.")
    return found.reshape(tuple(shape))


def directed_targets(y: Any, kernel: AnyKernel) -> Targets:
    """Targets that are not zero."""
    targets = as_targets(y, kernel)
    if not targets.values.any():
        raise InputError("`y` is zero everywhere: it has no direction that a kernel could align with.")
    return targets


LANCZOS_MODES = 10  # of kernels known by products, where nothing is said
PROBES = 64


def checked_top(top: int | None, otherwise: int, size: int) -> int:
    """How many modes: those asked for or, where nothing is said, ``otherwise``; never more than there are."""
    return min(otherwise if top is None else whole_number("top", top), size)


def refuse_zero(largest: float) -> None:
    """A kernel without a positive eigenvalue, or without a trace."""
    if largest <= 0:
        raise InputError("the kernel is zero: no chosen parameter changes the outputs.")
