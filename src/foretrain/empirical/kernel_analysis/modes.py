"""Leading eigenmodes of kernels that are known by products alone, and norms with the leading modes taken out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.empirical.any_kernel import AnyKernel
from foretrain.operators.estimators.krylov import BlockKrylov, Product, lead
from foretrain.operators.estimators.probes import in_double
from foretrain.support.memory import available_bytes
from foretrain.support.seeds import Seed, generator
from foretrain.support.user_warnings import warn_user

Array: TypeAlias = NDArray[np.float64]
Apply: TypeAlias = Callable[[Array], Array]  # columns (size, many) to columns

BLOCK = (
    16  # a store is read once for a whole block: these find in a few products what vectors find in hundreds
)
_OPERATOR_BLOCK = 4  # columns of others cost one by one, so that depth is better than width
_READINGS, _PRODUCTS = 300, 1000  # with blocks, of a store and of others
_ROOM_ABOVE_ROUNDING = 100.0  # how close to the rounding of products Lanczos vectors can come
_RESIDUAL = 1e-10  # of modes, in units of the largest eigenvalue
_SMALLEST_RESIDUAL = 1e-4  # of the smallest eigenvalue with the ridge, in units of itself
_SHARE = 0.3  # of the available memory, for the basis
_MOST_BLOCKS = 24  # in a basis before it is restarted
_COPIES = 4  # of a block, held while it is made orthogonal


@dataclass(frozen=True)
class Leading:
    """Largest eigenvalues, modes as columns, residuals |A u - value u|, and the number of products."""

    values: Array
    modes: Array
    residuals: Array
    products: int
    converged: bool


def leading_pairs(
    product: Product,
    size: int,
    count: int,
    good: Callable[[Array, Array], bool],
    seed: Seed,
    products: int,
    width: int = BLOCK,
) -> Leading:
    """The largest eigenvalues until ``good(values, residuals)`` says so, or so many products are made."""
    random = generator(seed)

    def draw(rows: int) -> Tensor:
        return torch.from_numpy(np.ascontiguousarray(random.normal(size=(size, rows)).T))

    block = min(size, max(width, count))  # fewer columns would not see all copies of an eigenvalue
    room = int(_SHARE * available_bytes() / (8.0 * size)) - _COPIES * block
    keep = count + block
    most = min(size, max(min(room, max(_MOST_BLOCKS * BLOCK, 4 * keep)), keep + 2 * block))
    krylov = BlockKrylov(product, draw(block), most, draw=draw)
    values, coordinates, residuals, converged = lead(
        krylov,
        count,
        lambda values, _, residuals: good(values.numpy(), residuals.numpy()),
        lambda: min(keep, krylov.count - 1, most - len(krylov.block)),
        lambda: krylov.products < products,
    )
    modes = krylov.vectors(coordinates).numpy().T
    return Leading(values.numpy(), modes, residuals.numpy(), krylov.products, converged)


def leading_modes(kernel: AnyKernel, count: int, seed: Seed) -> Leading:
    """The largest eigenvalues with their modes as columns, to a residual of 1e-10 of the largest.

    For operators in single precision it is what their rounding allows. The kernel of several outputs may have every
    eigenvalue as many times as there are outputs: blocks of at least ``count`` columns find all that belong here.
    """
    tolerance = max(_RESIDUAL, 0.0 if kernel.streamed else _ROOM_ABOVE_ROUNDING * kernel.precision)

    def good(values: Array, residuals: Array) -> bool:
        return bool((residuals <= tolerance * values[0]).all())

    found = leading_pairs(in_double(kernel), kernel.size, count, good, seed, *_budget(kernel))
    if not found.converged:
        warn_user(
            f"block Lanczos left a residual of {found.residuals.max():.2g} in {found.products} "
            f"{'readings' if kernel.streamed else 'products'}: the last of the {count} modes are mixed with others; "
            "ask for fewer, or for more of their neighbours.",
        )
    return found


def extreme_eigenvalues(kernel: AnyKernel, ridge: float, seed: Seed) -> tuple[float, float]:
    """Largest and smallest eigenvalue; the smallest until its error with the ridge is below 1e-4, or it is zero.

    The smallest is the largest of (largest - K), and at most what is found.
    """
    largest, apply = float(leading_modes(kernel, 1, seed).values[0]), in_double(kernel)
    rounding = 0.0 if kernel.streamed else _ROOM_ABOVE_ROUNDING * kernel.precision * largest

    def good(values: Array, residuals: Array) -> bool:
        smallest = largest - float(values[0])
        is_zero = ridge == 0 and smallest <= kernel.resolves(largest)
        return is_zero or float(residuals[0]) <= max(_SMALLEST_RESIDUAL * (smallest + ridge), rounding)

    shifted = leading_pairs(
        lambda rows: largest * rows - apply(rows), kernel.size, 1, good, seed, *_budget(kernel)
    )
    if not shifted.converged:
        warn_user(
            f"the smallest eigenvalue was not resolved in {shifted.products} "
            f"{'readings' if kernel.streamed else 'products'}: the condition number is at least what is given; pass "
            "`ridge=` for that of the regularised kernel.",
        )
    smallest = largest - float(shifted.values[0])
    # A form is better than a difference, but costs a product, which for a store is one more reading.
    return largest, smallest if kernel.streamed else kernel.quadratic(shifted.modes[:, 0])


def _budget(kernel: AnyKernel) -> tuple[int, int]:
    """The most products with blocks, and the width of these."""
    return (_READINGS, BLOCK) if kernel.streamed else (_PRODUCTS, _OPERATOR_BLOCK)


def rest_of_norms(apply: Apply, basis: Array, probes: int, seed: Seed) -> tuple[Array, Array]:
    """z . A z and |A z|^2 of random signs z without their part in the basis (Meyer et al. 2021).

    Their means are the trace and the squared norm of A on what is orthogonal to the basis.
    """
    size = len(basis)
    signs = generator(seed).integers(0, 2, size=(size, probes)) * 2.0 - 1.0
    rest = signs - basis @ (basis.T @ signs)
    applied = apply(rest)
    return np.sum(rest * applied, axis=0), np.sum(applied**2, axis=0)


def centred(columns: Array, samples: int) -> Array:
    """Columns over (sample, output) without their mean over samples."""
    split = columns.reshape(samples, -1, *columns.shape[1:])
    return np.asarray((split - split.mean(axis=0)).reshape(columns.shape))


def all_modes(matrix: Array, *, with_vectors: bool = True) -> tuple[Array, Array]:
    """Eigenvalues from the largest down, and modes as columns (none if they are not wanted)."""
    from scipy.linalg import eigh, eigvalsh

    if not with_vectors:
        return np.asarray(eigvalsh(matrix)[::-1]), np.zeros((len(matrix), 0))
    values, modes = eigh(matrix)
    return np.asarray(values[::-1]), np.asarray(modes[:, ::-1])
