"""Probes that test outside the range of one another's products (Epperly, Tropp & Webber 2024, XTrace).

With Q an orthonormal basis of the products A w of all probes but one, that one tests what Q leaves out:

    tr A = tr(Q A Q) + E[w (1 - QQ) A (1 - QQ) w],    |A|² = |Q A|² + E[|(1 - QQ) A w|²].

The first is the paper's, the second its analogue for the Frobenius norm, where the products themselves are the tests
and A* Q takes the place of A Q. Both need a second product per probe. All that follows happens in the coordinates of
one basis of all products, where leaving a probe out removes one direction.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators.estimators.estimate import Target, blended, mean_and_error, relative, whole_blocks
from foretrain.operators.estimators.probes import (
    Counted,
    ExactIsCheaperError,
    Source,
    dots,
    gram,
    orthonormal_rows,
)
from foretrain.support.progress import Progress

Array: TypeAlias = NDArray[np.float64]

_FIRST_PLAIN = 24  # probes before the first look at the error: fewer make it too random to stop by
_FIRST_TESTED = 16  # the error of tests against an approximation is steadier
_HOPELESS = 100  # times the dimension, in probes still needed: the terms of a trace cancel too well
_PATIENCE = 4  # times the first probes: beyond that, a sketch of the range is worth its second product


class RangeSketch:
    """Growing probes with their products, and products with a basis of those made when they are asked for."""

    def __init__(self, counted: Counted) -> None:
        self.counted = counted
        empty = Source(counted.operator, seed=0).normals(0)
        self._probes = empty
        self._images = empty.new_empty(0, counted.operator.codomain.size)
        self._basis = self._images
        self._basis_images = self._images
        self._basis_adjoints = empty

    @property
    def probes(self) -> int:
        """How many there are."""
        return len(self._probes)

    def grow_to(self, count: int, source: Source) -> None:
        """Draw more probes, at one product each."""
        if count > self.probes:
            self.counted.require_vectors(4 * count, "a sketch")
            probes = source.sphere(count - self.probes)
            self._probes = torch.cat([self._probes, probes])
            self._images = torch.cat([self._images, self.counted.apply(probes)])

    def forms(self) -> Tensor:
        """w A w of every probe."""
        return dots(self._probes, self._images).cpu()

    def squares(self) -> Tensor:
        """|A w|² of every probe."""
        return dots(self._images, self._images).cpu()

    def trace(self) -> tuple[float, float]:
        """tr A and its standard error."""
        self._grow_basis()
        if len(self._basis_images) < len(self._basis):
            fresh = self.counted.apply(self._basis[len(self._basis_images) :])
            self._basis_images = torch.cat([self._basis_images, fresh])
        # In coordinates of the basis; columns of images, probes and pulled belong to probes.
        size, all_forms = self.counted.size, self.forms().numpy()
        all_images, all_probes, all_compressed = (
            _numpy(gram(self._basis, rows)) for rows in (self._images, self._probes, self._basis_images)
        )
        all_pulled = _numpy(gram(self._basis_images, self._probes))

        def tested(use: NDArray[np.intp]) -> tuple[float, float]:
            """Mean and spread of the tests of some probes against the products of the same."""
            rotation, images, only = _own_basis(all_images[:, use])
            compressed = rotation.T @ all_compressed @ rotation
            probes, pulled = rotation.T @ all_probes[:, use], rotation.T @ all_pulled[:, use]
            inside = probes - only * (only * probes).sum(0)
            forms = all_forms[use] - ((pulled + images) * inside).sum(0)
            forms += (inside * (compressed @ inside)).sum(0)
            free = np.maximum(size - np.square(inside).sum(0), 1e-300)
            forms *= (size - len(use) + 1) / free
            return mean_and_error(np.trace(compressed) - (only * (compressed @ only)).sum(0) + forms)

        return blended(tested, self.probes)

    def squared_norm(self) -> tuple[float, float]:
        """|A|² (Frobenius) and its standard error."""
        self._grow_basis()
        if len(self._basis_adjoints) < len(self._basis):
            fresh = self.counted.apply_adjoint(self._basis[len(self._basis_adjoints) :])
            self._basis_adjoints = torch.cat([self._basis_adjoints, fresh])
        all_images = _numpy(gram(self._basis, self._images))
        all_squares = _numpy(gram(self._basis_adjoints, self._basis_adjoints))

        def tested(use: NDArray[np.intp]) -> tuple[float, float]:
            """Mean and spread of the tests of some probes against the products of the same."""
            rotation, images, only = _own_basis(all_images[:, use])
            squares = rotation.T @ all_squares @ rotation
            outside = np.square((only * images).sum(0))
            return mean_and_error(np.trace(squares) - (only * (squares @ only)).sum(0) + outside)

        return blended(tested, self.probes)

    def _grow_basis(self) -> None:
        fresh = self._images[len(self._basis) :]
        if len(fresh):
            self._basis = torch.cat([self._basis, orthonormal_rows(fresh, self._basis)])


def plain_or_tested(
    sketch: RangeSketch,
    source: Source,
    target: Target,
    plain: Callable[[RangeSketch], Tensor],
    tested: Callable[[RangeSketch], tuple[float, float]],
) -> tuple[float, float, bool]:
    """Value, standard error and whether tests made it.

    The mean of ``plain`` numbers, one product each, where the first probes say that few more will do; otherwise the
    tests against each other's range, which take a second product of the same probes.
    """
    block = sketch.counted.block
    wanted = min(whole_blocks(_FIRST_PLAIN, block), target.products)
    most = min(_PATIENCE * wanted, target.products)
    with Progress("probes") as bar:
        while True:
            bar.advance(wanted - sketch.probes)
            sketch.grow_to(wanted, source)
            value, error = mean_and_error(plain(sketch))
            if target.reached(value, error) or wanted >= target.products:
                return value, error, False
            needed = wanted * (relative(error, value) / target.accuracy) ** 2
            if needed > most and 2 * wanted <= target.products:
                return *grow_tested(sketch, source, target, tested), True
            wanted = min(target.next_count(wanted, value, error, block), target.products)


def grow_tested(
    sketch: RangeSketch,
    source: Source,
    target: Target,
    tested: Callable[[RangeSketch], tuple[float, float]],
) -> tuple[float, float]:
    """Value and standard error of tests, with as many probes as the accuracy takes."""
    counted = sketch.counted

    def look(count: int) -> tuple[float, float]:
        sketch.grow_to(count, source)
        value, error = tested(sketch)
        needed = sketch.probes * (relative(error, value) / target.accuracy) ** 2
        if counted.up_to_exact and count < most and needed > _HOPELESS * counted.size:
            raise ExactIsCheaperError
        return value, error

    most = max(1, min(target.products // 2, counted.size), sketch.probes)
    return target.pursue(look, max(_FIRST_TESTED, sketch.probes), most, counted.block)


def _own_basis(images: Array) -> tuple[Array, Array, Array]:
    """A basis of some products, these in it, and per product the direction (column) that only it has."""
    rotation, upper = np.linalg.qr(images)
    rounding = np.finfo(np.float64).eps * float(np.abs(upper).max()) or 1.0
    diagonal = np.diagonal(upper)
    safe = upper + np.diag(np.where(np.abs(diagonal) < rounding, rounding, 0.0))
    only = np.linalg.inv(safe).T
    return rotation, upper, only / np.linalg.norm(only, axis=0)


def _numpy(matrix: Tensor) -> Array:
    return np.asarray(matrix.cpu().numpy(), dtype=np.float64)
