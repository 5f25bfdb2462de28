"""tr A and tr A² of a positive operator, and functions of both, from one product per probe.

Every probe is tested against the Nyström approximation Â of all the others (Epperly, Tropp & Webber 2024, XNysTrace),

    tr A = tr Â + E[w (A - Â) w],    tr A² = tr Â² + E[w (A² - Â²) w],

so that each product serves both to approximate and to test. The first identity is the paper's; the second costs no
further product, since w A² w = |A w|². With 0 <= Â <= A neither residual has a larger Frobenius norm than what it
replaces: where the spectrum is flat nothing is lost against Hutchinson's estimator, where it decays fast much is
gained. Everything follows from three Gram matrices of the basis and its products; the leave-one-out forms are
rank-one changes of one inverse.

In between, as for eigenvalues k^-0.5 to k^-1, a few large modes make most of the variance of tr A², and a sketch is
too noisy to catch them: there a block Krylov space joins the approximation without being tested. Measured for the
participation ratio to 1 % at n = 5000: k^-0.5 takes 270 plain probes, or 170 tested ones, or 16 + 16 with a Krylov
space; k^-1 takes 3200, or 100, or 32 + 32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators.estimators.estimate import Target, blended, jackknife, relative, whole_blocks
from foretrain.operators.estimators.krylov import BlockKrylov
from foretrain.operators.estimators.probes import Counted, Source, gram
from foretrain.support.errors import InputError
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, spawn
from foretrain.support.threads import one_thread_of_blas

Array: TypeAlias = NDArray[np.float64]
Functional: TypeAlias = Callable[[Array, Array], Array]  # of (tr A, tr A²), entry by entry

_SHIFT = 300.0  # times the rounding: the multiple of 1 that keeps the small Gram matrix positive
_FLOOR = 3000.0  # times the rounding: relative errors below are those of the small inverse
# So that the shift is near the root of double precision, where its inverse loses least.
_LEAST_ROUNDING = 3e-11
_AMPLIFIED = 3.0  # times the rounding of the terms of tr A that cancel: the error they leave, measured
_FIRST_PROBES, _FIRST_FEW = (
    24,
    16,
)  # before the first look, the fewer from _COARSE on: fewer make errors too random
_COARSE = 0.03  # accuracy
_MANY = 150  # probes that would still be needed call for the large modes
_WIDTH = 4  # of the Krylov blocks: narrow for depth, but cheaper per vector than single ones
_DEPTH = 8  # blocks at a time
_MOST_KRYLOV = 128  # vectors


@dataclass(frozen=True)
class Grams:
    """Inner products of a basis (B), of B with its products (A B), and of the products; ``fixed`` rows come first."""

    size: int
    fixed: int
    basis: Array
    mixed: Array
    images: Array
    epsilon: float

    @property
    def probes(self) -> int:
        """How many rows are tested."""
        return len(self.basis) - self.fixed

    def per_probe(self) -> tuple[Array, Array]:
        """One estimate of tr A and one of tr A² per probe.

        A is shifted by a small multiple of 1, whose traces are known, because its rounding would make the inverse
        meaningless where the rank is low; on the span outside the other probes, tests are scaled to the right length.
        """
        shift, inverse = self._shifted_inverse()
        if shift == 0:
            return np.zeros(self.probes), np.zeros(self.probes)
        images = self.images + 2 * shift * self.mixed + shift**2 * self.basis
        applied = images @ inverse
        test = slice(self.fixed, None)
        # With v = (A B) times a column of the inverse, Â without probe i is Â - v v^T / inverse_ii.
        heights = 1 / np.diagonal(inverse)[test]
        twice = applied @ applied
        squares = (inverse * applied.T).sum(1)[test]  # |v|²
        quartic = (inverse * twice.T).sum(1)[test]  # v Â v
        overlap = np.diagonal(applied)[test]  # v A w
        free = 1 / np.diagonal(np.linalg.inv(self.basis))[test]  # |w|² outside the other rows
        lengths = np.where(free > 0, (self.size - len(self.basis) + 1) / free, 1.0)
        first = np.trace(applied) - squares * heights + heights * lengths
        second = np.trace(twice) - 2 * quartic * heights + (squares * heights) ** 2
        second += 2 * overlap * heights - squares * heights**2
        return first - shift * self.size, second - 2 * shift * first + shift**2 * self.size

    def _shifted_inverse(self) -> tuple[float, Array]:
        """The shift, in proportion to the rounding of products, and the inverse of B (A + shift) B."""
        test = slice(self.fixed, None)
        length, first, second = (
            float(np.trace(matrix[test, test])) for matrix in (self.basis, self.mixed, self.images)
        )
        typical = math.sqrt(second / length)
        # More probes than modes make the inverse as large as the shift is small: how many more decides on it.
        redundant = max(1.0, second * self.probes**2 / first**2) if first else 1.0
        for stronger in (1.0, 30.0):
            shift = stronger * _SHIFT * max(self.epsilon, _LEAST_ROUNDING) * typical * redundant
            try:
                factor = np.linalg.cholesky(self.mixed + shift * self.basis)
            except np.linalg.LinAlgError:
                continue
            half = np.linalg.inv(factor)
            return shift, half.T @ half
        if typical == 0:
            return 0.0, np.zeros_like(self.basis)
        raise InputError(
            "the operator was declared positive, but has negative eigenvalues: declare it symmetric only."
        )

    @one_thread_of_blas()
    def estimate(self, functional: Functional) -> tuple[float, float]:
        """A function of (tr A, tr A²), free of bias to first order, and its standard error, not below rounding."""

        def tested(probes: NDArray[np.intp]) -> tuple[float, float]:
            """By the jackknife over some of the probes."""
            keep = np.concatenate([np.arange(self.fixed), self.fixed + probes])
            basis, mixed, images = (
                matrix[np.ix_(keep, keep)] for matrix in (self.basis, self.mixed, self.images)
            )
            each = Grams(self.size, self.fixed, basis, mixed, images, self.epsilon).per_probe()
            full = float(functional(*(values.mean(keepdims=True) for values in each))[0])
            if len(probes) == 1:
                return full, math.inf
            return jackknife(functional(*((v.sum() - v) / (len(probes) - 1) for v in each)), full)

        value, error = blended(tested, self.probes)
        first, second = (values.mean(keepdims=True) for values in self.per_probe())
        # The rounding of tr A, relative: where the rank is below the number of probes, large terms cancel in it.
        shift, inverse = self._shifted_inverse()
        images = self.images + 2 * shift * self.mixed + shift**2 * self.basis
        total = float((images * inverse).sum())
        terms = float(np.linalg.norm((np.abs(images) * np.abs(inverse)).sum(1)))
        step = _AMPLIFIED * (self.epsilon * terms / total if total > 0 else 0.0) * first
        moved = float(functional(first + step, second)[0] - functional(first - step, second)[0]) / 2
        return value, math.hypot(error, _FLOOR * max(self.epsilon, _LEAST_ROUNDING) * value, moved)


class Sketch:
    """A growing basis with its products, of which only Gram matrices are asked; each is computed once."""

    def __init__(self, counted: Counted) -> None:
        self._counted = counted
        self._fixed: list[_Block] = []
        self._tested: list[_Block] = []
        self._known: dict[tuple[int, int], tuple[Array, Array, Array]] = {}

    @property
    def probes(self) -> int:
        """How many probes there are."""
        return sum(len(block.rows) for block in self._tested)

    def fix(self, basis: Tensor, images: Tensor) -> None:
        """Let orthonormal rows with known products join what approximates."""
        scale = math.sqrt(self._counted.size)
        self._fixed.append(_Block(basis * scale, images * scale))

    def grow_to(self, count: int, source: Source) -> None:
        """Draw more probes, at one product each."""
        self._counted.require_vectors(2 * (count + sum(len(block.rows) for block in self._fixed)), "a sketch")
        while self.probes < count:
            probes = source.sphere(min(self._counted.block, count - self.probes))
            self._tested.append(_Block(probes, self._counted.apply(probes)))

    def grams(self) -> Grams:
        """Of everything so far."""
        blocks = [*self._fixed, *self._tested]
        table = [[self._products(a, b) for b in blocks] for a in blocks]
        basis, mixed, images = (
            np.block([[cell[part] for cell in row] for row in table]) for part in range(3)
        )
        fixed = sum(len(block.rows) for block in self._fixed)
        return Grams(self._counted.size, fixed, basis, mixed, images, self._counted.epsilon)

    def _products(self, a: _Block, b: _Block) -> tuple[Array, Array, Array]:
        key = (id(a), id(b))
        if key not in self._known:
            inside, outside = gram(a.rows, b.rows), gram(a.images, b.images)
            mixed = (gram(a.rows, b.images) + gram(b.rows, a.images).T) / 2
            found = tuple(matrix.cpu().numpy() for matrix in (inside, mixed, outside))
            self._known[key] = (found[0], found[1], found[2])
            self._known[key[::-1]] = (found[0].T, found[1].T, found[2].T)
        return self._known[key]


@dataclass(frozen=True, eq=False)
class _Block:
    rows: Tensor
    images: Tensor


def tested_moments(counted: Counted, functional: Functional, target: Target, seed: Seed) -> Grams:
    """Gram matrices whose ``estimate(functional)`` is as accurate as asked for, or as the budget allows."""
    source, krylov_source = (Source(counted.operator, own) for own in spawn(seed, 2))
    sketch, draw, step = Sketch(counted), krylov_source.normals, _WIDTH * _DEPTH
    krylov: BlockKrylov | None = None  # lends the sketch its vectors, a step at a time
    deep = 0  # vectors it has lent
    wanted = whole_blocks(_FIRST_FEW if target.accuracy >= _COARSE else _FIRST_PROBES, counted.block)
    with Progress("probes") as bar:
        while True:
            left = target.products - counted.products
            wanted = min(wanted, sketch.probes + left, max(counted.size - deep, 1))
            bar.advance(wanted - sketch.probes)
            sketch.grow_to(wanted, source)
            grams = sketch.grams()
            value, error = grams.estimate(functional)
            left = target.products - counted.products
            if target.reached(value, error) or left < 1 or sketch.probes + deep >= counted.size:
                return grams
            needed = sketch.probes * (relative(error, value) / target.accuracy) ** 2
            useful = min(_MOST_KRYLOV, (counted.size - sketch.probes) // 2)
            if needed <= _MANY or left < step or deep + step > useful:
                wanted = target.next_count(sketch.probes, value, error, counted.block)
                continue
            bar.advance(step)
            if krylov is None:
                krylov = BlockKrylov(counted.apply, draw(_WIDTH), _MOST_KRYLOV, draw=draw, keeps_images=True)
            for _ in range(_DEPTH):
                krylov.extend()
            sketch.fix(krylov.basis[deep:], krylov.images[deep:])
            deep = krylov.count
