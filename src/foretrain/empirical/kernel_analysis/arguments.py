"""Arguments that several questions have in common: targets, modes, probes, a ridge; and what all of them refuse."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.empirical.kernel_analysis.matrices import Array, MatrixLayout
from foretrain.empirical.kernel_operator.operator import as_tensor
from foretrain.support.arguments import not_negative, whole_number
from foretrain.support.errors import InputError


@dataclass(frozen=True, eq=False)
class Targets:
    """What the outputs should be, (N, columns); ``one_hot`` if they were given as labels."""

    values: Array
    one_hot: bool

    def vectors(self, layout: MatrixLayout) -> Array:
        """As columns for the kernel's matrix: one for all outputs, or for a trace one for each."""
        return self.values if layout.trace else self.values.reshape(-1, 1)


def as_targets(y: Any, layout: MatrixLayout) -> Targets:
    """(N,) for one output, (N, C), or whole numbers (N,) as labels of C > 1 outputs."""
    given = as_tensor(y).cpu()
    samples = layout.samples[0]
    if given.is_complex() or given.ndim == 0 or len(given) != samples:
        raise InputError(
            f"`y` has shape {tuple(given.shape)}, but its first axis must hold the {samples} samples of the kernel."
        )
    if not bool(torch.isfinite(given).all()):
        raise InputError("`y` has entries that are not finite: leave out samples without a target.")
    classes = layout.width if layout.outputs is None else len(layout.outputs)
    if given.ndim == 1 and not given.is_floating_point() and classes > 1:
        return Targets(_one_hot(given.numpy().astype(np.int64), layout), True)
    columns = prod(given.shape[1:])
    if not layout.trace and columns != layout.width:
        raise InputError(
            f"`y` has shape {tuple(given.shape)}, but the kernel has {layout.width} outputs: pass "
            f"({samples}, {layout.width}) numbers, or ({samples},) whole numbers as labels."
        )
    return Targets(given.to(torch.float64).reshape(samples, columns).numpy(), False)


def _one_hot(labels: NDArray[np.int64], layout: MatrixLayout) -> Array:
    """1 at the output with the label's number, else 0."""
    numbers = layout.outputs or tuple(range(layout.width))
    everything = numbers == tuple(range(len(numbers)))
    if labels.min() < 0 or (everything and labels.max() >= len(numbers)):
        raise InputError(
            f"`y` holds labels from {labels.min()} to {labels.max()}, but the outputs are numbered 0 to "
            f"{max(numbers)}: pass floating-point targets if they are not labels."
        )
    return np.asarray(labels[:, None] == np.asarray(numbers), dtype=np.float64)


def as_outputs(values: Any, shape: Sequence[int], what: str) -> Array:
    """Outputs of a model, (samples, columns) or flat for one column."""
    found = as_tensor(values).cpu().to(torch.float64).numpy()
    if found.size != prod(shape) or found.shape[:1] != (shape[0],):
        raise InputError(f"{what} has shape {found.shape}, but it must be {tuple(shape)}.")
    if not np.isfinite(found).all():
        raise InputError(f"{what} has entries that are not finite.")
    return found.reshape(tuple(shape))


def directed_targets(y: Any, layout: MatrixLayout) -> Targets:
    """Targets that are not zero."""
    targets = as_targets(y, layout)
    if not targets.values.any():
        raise InputError("`y` is zero everywhere: it has no direction that a kernel could align with.")
    return targets


LANCZOS_MODES = 10  # of kernels known by products, where nothing is said
PROBES = 64


def checked_top(top: int | None, otherwise: int, size: int) -> int:
    """How many modes: those asked for or, where nothing is said, ``otherwise``; never more than there are."""
    return min(otherwise if top is None else whole_number("top", top), size)


def checked_probes(probes: int) -> int:
    """As many as a standard error needs."""
    return whole_number("probes", probes, least=2)


def checked_ridge(ridge: float) -> float:
    """A finite number that is not negative."""
    return not_negative("ridge", ridge)


def refuse_zero(largest: float) -> None:
    """A kernel without a positive eigenvalue, or without a trace."""
    if largest <= 0:
        raise InputError("the kernel is zero: no chosen parameter changes the outputs.")


def plus_minus(error: float) -> str:
    """A standard error in text; nothing where the value is exact."""
    return f" ± {error:.2g}" if error > 0 else ""
