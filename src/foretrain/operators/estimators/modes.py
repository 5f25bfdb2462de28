"""``top_modes``: leading eigenpairs or singular triples to a stated residual."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators.estimators.estimate import MOST_PRODUCTS, is_affordable
from foretrain.operators.estimators.krylov import BlockKrylov, lead
from foretrain.operators.estimators.probes import (
    Counted,
    Source,
    combine,
    dense,
    gram,
    norms,
    squared,
)
from foretrain.operators.spaces import Space, SumSpace, VectorSpace
from foretrain.support.answers import (
    BLUE,
    Answer,
    Axis,
    Figure,
    Result,
    dataset_table,
    labelled,
    picked,
    scale_for,
)
from foretrain.support.errors import InputError
from foretrain.support.memory import available_bytes
from foretrain.support.seeds import Seed
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    from foretrain.operators.operator import Operator

_WIDTH = 2  # of the first block: two copies of an eigenvalue show that there may be more
_BASIS = 64  # vectors kept before a restart, at least
_SHOWN = 20  # rows of a table
_ROUNDING = 100.0  # times the dtype's rounding, relative to the largest value: residuals cannot be smaller


@dataclass(frozen=True, repr=False, eq=False)
class Modes(Result):
    """Modes by falling magnitude; singular values come with left vectors, for eigenvalues ``left`` is ``vectors``.

    ``values, vectors = modes`` takes both out. ``residuals`` are |A v - value v|, for singular modes the larger of
    |A v - value u| and |A* u - value v|.
    """

    values: Tensor  # (k,), float64 on the CPU
    vectors: Tensor  # (k, n), flat, orthonormal
    left: Tensor  # (k, codomain size)
    residuals: Tensor  # (k,)
    products: int
    converged: bool
    tolerance: float
    seed: Seed
    domain: VectorSpace | None = None  # of structured vectors; None: they are flat
    codomain: VectorSpace | None = None

    @property
    def relative_residuals(self) -> Tensor:
        """Residuals over the magnitudes of the values; 0 where both vanish."""
        return torch.where(self.residuals == 0, 0.0, self.residuals / self.values.abs())

    def __len__(self) -> int:
        return len(self.values)

    def __iter__(self) -> Iterator[Tensor]:
        return iter((self.values, self.vectors))

    def answer(self) -> Answer:
        """The values with their residuals; the picture shows how they fall."""
        kind = "eigenvalues" if self.left is self.vectors else "singular values"
        worst = float(self.residuals.max() / max(float(self.values.abs().max()), 1e-300))
        state = "converged" if self.converged else "not converged"
        statement = (
            f"{len(self)} leading {kind}, {state}: residuals up to {worst:.1e} of the largest value; "
            f"{self.products} products, seed {self.seed}. The modes are .vectors (k, n) and .left."
        )
        variables: dict[str, Any] = {"value": ("mode", self.values), "residual": ("mode", self.residuals)}
        variables |= _labelled_vectors("vector", self.vectors, self.domain)
        if self.left is not self.vectors:
            variables |= _labelled_vectors("left", self.left, self.codomain)
        data = labelled(variables, picked(self, "products converged tolerance"), ["mode"])
        picture = partial(spectrum_figure, self.values.numpy(), kind.removesuffix("s"))
        return Answer(statement, [dataset_table(data, "mode").thinned(_SHOWN), picture], data)


def _labelled_vectors(word: str, vectors: Any, space: VectorSpace | None) -> dict[str, Any]:
    """Vectors with the names of their axes; of a direct sum one array for each member, whose name its axes carry."""
    if isinstance(vectors, Mapping):
        members = space.members if isinstance(space, SumSpace) else {}
        return {
            key: part
            for name, own in vectors.items()
            for key, part in _labelled_vectors(f"{word}_{name}", own, members.get(name)).items()
        }
    names = space.names if isinstance(space, Space) else [f"axis_{place}" for place in range(1, vectors.ndim)]
    if word != "vector" or "mode" in names:
        names = [f"{word.removeprefix('vector_')}_{name}" for name in names]
    return {word: (["mode", *names], vectors)}


def spectrum_figure(values: NDArray[np.float64], what: str) -> Figure:
    """Values by rank, on logarithmic axes where they are positive and far apart."""
    ranks = np.arange(1, len(values) + 1)
    x, y = Axis("rank", scale_for(ranks), whole=True), Axis(what, scale_for(values))
    figure = Figure(size=(5.6, 4.0))
    figure.panel("", x, y).curve(ranks, values, "o-" if len(values) <= _SHOWN else ".", color=BLUE)
    return figure


def top_modes(
    op: Operator,
    k: int,
    *,
    tolerance: float = 1e-6,
    seed: Seed = 0,
    products: int | None = None,
) -> Modes:
    """The k modes of largest magnitude: eigenpairs of a symmetric operator, singular triples of any other.

    Where the dense form is affordable (see ``estimate``) it is decomposed, and modes are good to rounding. Beyond
    it: block Krylov with full reorthogonalisation and thick restarts (Golub & Underwood 1977; Wu & Simon 2000; Musco
    & Musco 2015 show why Krylov beats subspace iteration on flat spectra). A mode has converged when its residual is
    below ``tolerance`` times its value, or at rounding. Depth counts more than width, so blocks have two vectors:
    the second shows repeated eigenvalues, of which a block of width b finds no more than b copies. Where so many
    copies appear that others may be missing, random directions join and the iteration goes on. Singular modes are
    those of A* A; values below the root of the rounding, relative to the largest, are lost by this. If ``products``
    (2 per step and vector for A* A) run out, an AccuracyWarning says what was reached.
    """
    _check(op, k, tolerance)
    counted = Counted(op)
    if is_affordable([op], products, decomposed=True):
        return _decomposed(counted, k, tolerance, seed)
    budget = MOST_PRODUCTS + 20 * k if products is None else int(products)
    least = k + 1 if op.symmetric else 4 * k + 2
    if budget < least:
        raise InputError(f"`products` is {products}, but {k} modes take at least {least}: raise `products=`.")
    if op.symmetric:
        found = _by_smaller(counted, k, tolerance, seed, budget)
        found = found or _eigenpairs(counted, k, tolerance, seed, budget - counted.products, cost=1)
        values, vectors, residuals = found
        left = vectors
    else:
        values, vectors, _ = _eigenpairs(squared(counted), k, tolerance, seed, budget - 2 * k, cost=2)
        values, left, residuals = _singular(counted, vectors)
    converged = bool((residuals <= _allowed(values, tolerance, counted.epsilon)).all())
    values, residuals = values * counted.unit, residuals * counted.unit
    modes = Modes(values, vectors, left, residuals, counted.products, converged, tolerance, seed)
    if not converged:
        worst = float(modes.relative_residuals.max())
        warn_user(
            f"of {k} modes the worst has a relative residual of {worst:.1e} after {counted.products} products, but "
            f"{tolerance:.1e} was asked for: raise `products=` (now {budget}) or `tolerance=`.",
        )
    return modes


def _decomposed(counted: Counted, k: int, tolerance: float, seed: Seed) -> Modes:
    """By a dense decomposition in double precision; the vectors are given in the operator's dtype."""
    matrix = dense(counted)
    if counted.operator.symmetric:
        values, columns = torch.linalg.eigh(matrix)
        order = values.abs().argsort(descending=True)[:k]
        values, right = values[order], columns[:, order].T
        left = right
    else:
        columns, values, rows = torch.linalg.svd(matrix, full_matrices=False)
        left, values, right = columns[:, :k].T, values[:k], rows[:k]
    vectors = right.to(counted.dtype).contiguous()
    others = vectors if left is right else left.to(counted.dtype).contiguous()
    forward = norms(vectors.double() @ matrix.T - values[:, None] * others.double())
    backward = norms(others.double() @ matrix - values[:, None] * vectors.double())
    residuals = torch.maximum(forward, backward).cpu() * counted.unit
    values = values.cpu() * counted.unit
    return Modes(values, vectors, others, residuals, counted.products, True, tolerance, seed)


def _check(op: Operator, k: int, tolerance: float) -> None:
    most = min(op.domain.size, op.codomain.size)
    if isinstance(k, bool) or k != int(k) or not 1 <= k <= most:
        raise InputError(f"`k` is {k!r}, but an operator of this size has from 1 to {most} modes.")
    if not (math.isfinite(tolerance) and tolerance > 0):
        raise InputError(
            f"`tolerance` is {tolerance!r}, but it is a relative residual: give 1e-4, for example."
        )


def _allowed(values: Tensor, tolerance: float, epsilon: float) -> Tensor:
    magnitudes = values.abs()
    return torch.clamp(tolerance * magnitudes, min=_ROUNDING * epsilon * float(magnitudes.max()))


def _eigenpairs(
    counted: Counted,
    k: int,
    tolerance: float,
    seed: Seed,
    budget: int,
    cost: int,
    *,
    keeps_images: bool = True,
) -> tuple[Tensor, Tensor, Tensor]:
    """Values, flat vectors and residuals; ``cost`` is how many products one image takes.

    The residuals are those of the products, which takes as much memory again as the basis does, or without
    ``keeps_images`` those of the recurrence.
    """
    draw, begun = Source(counted.operator, seed).normals, counted.products
    # Vectors to keep: enough for depth, fewer where memory is short.
    wanted, least = (min(counted.size, count) for count in (max(_BASIS, 3 * k + 16), 2 * k + 12))
    bytes_each = (1 + keeps_images) * counted.size * torch.finfo(counted.dtype).bits / 8
    capacity = max(least, min(wanted, int(0.4 * available_bytes() / bytes_each)))
    start = draw(min(_WIDTH, counted.size))
    space = BlockKrylov(counted.apply, start, capacity, draw=draw, keeps_images=keeps_images)
    patient_until = 0

    def settled(values: Tensor, coordinates: Tensor, estimates: Tensor) -> bool:
        """Whether all residuals are small, by the recurrence first and then in truth, and no copy is missing."""
        nonlocal patient_until
        allowed = _allowed(values, tolerance, counted.epsilon)
        if space.products < patient_until or bool((estimates > allowed).any()):
            return False
        if keeps_images and bool((space.modes(values, coordinates)[1] > allowed).any()):
            return False
        if not _may_miss_copies(values, len(space.block), tolerance):
            return True
        patient_until = space.products + -(-space.products // 2)
        space.widen(k)
        return False

    def keep() -> int:
        """Those wanted and about as many again, with room for some blocks."""
        return max(1, min(2 * k + 4, space.capacity - 2 * len(space.block), space.count - 1))

    def affordable() -> bool:
        return cost * (counted.products - begun + len(space.block)) <= budget

    values, coordinates, estimates, _ = lead(space, k, settled, keep, affordable, by_magnitude=True)
    vectors = space.vectors(coordinates)
    if not keeps_images:
        return values, vectors, estimates
    found = _polished(vectors, combine(coordinates.T, space.images), counted.epsilon)
    assert found is not None  # Ritz vectors are orthonormal but for rounding
    return found


def _by_smaller(
    counted: Counted, k: int, tolerance: float, seed: Seed, budget: int
) -> tuple[Tensor, Tensor, Tensor] | None:
    """The same from a smaller operator with the same spectrum; None if there is none, or it does not do.

    Its vectors take less time to be kept orthogonal, and less memory: for the states of a network the parameters.
    """
    op, smaller = counted.operator, counted.operator.same_spectrum()
    if smaller is op or budget < 2 * k + 1:
        return None
    inner = Counted(smaller)
    rows = _eigenpairs(inner, k, tolerance, seed, budget - k, cost=1, keeps_images=False)[1]
    counted.products += inner.products
    vectors = op.carried_back(rows)
    del rows
    lengths = norms(vectors)
    if not bool((lengths > 0).all()):  # more modes were asked for than there are
        return None
    vectors = vectors / lengths.to(vectors)[:, None]
    found = _polished(vectors, counted.apply(vectors), counted.epsilon)
    is_good = found is not None and bool((found[2] <= _allowed(found[0], tolerance, counted.epsilon)).all())
    return found if is_good else None


def _polished(vectors: Tensor, images: Tensor, epsilon: float) -> tuple[Tensor, Tensor, Tensor] | None:
    """The eigenpairs in the span of rows whose products are ``images``: values, vectors and residuals.

    The small problem is solved in double precision, so that the vectors are orthonormal, and the values right, to the
    rounding of single numbers, whatever long sums in single precision have left. None where rows depend on others.
    """
    products = gram(vectors, images)
    spread, turns = torch.linalg.eigh(gram(vectors, vectors))
    if float(spread[0]) <= epsilon**0.5:
        return None
    # Of all square roots of the inverse this one moves the vectors least.
    root = turns / spread.sqrt() @ turns.T
    values, coordinates = torch.linalg.eigh(root @ (products + products.T) / 2 @ root)
    order = values.abs().argsort(descending=True)
    values, weights = values[order], (root @ coordinates[:, order]).T
    vectors, images = combine(weights, vectors), combine(weights, images)
    return values.cpu(), vectors, norms(images - values.to(images)[:, None] * vectors).cpu()


def _may_miss_copies(values: Tensor, width: int, tolerance: float) -> bool:
    """Whether as many equal values as the block is wide stand above the last: there may be more of them."""
    last = values[-1]
    for first in range(len(values) - width):
        same = (values[first : first + width] - values[first]).abs() <= tolerance * values[first].abs()
        apart = (last - values[first]).abs() > tolerance * values[first].abs()
        if bool(same.all()) and bool(apart):
            return True
    return False


def _singular(counted: Counted, vectors: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Singular values, left vectors and residuals from right vectors: one more product with A and with A* each."""
    images = counted.apply(vectors)
    left, upper = torch.linalg.qr(images.double().T)
    left = (left * torch.where(upper.diagonal() < 0, -1.0, 1.0).to(left)).T.to(images).contiguous()
    values = upper.diagonal().abs().cpu()
    scaled = values.to(images)[:, None]
    forward = norms(images - scaled * left)
    backward = norms(counted.apply_adjoint(left) - scaled * vectors)
    return values, left, torch.maximum(forward, backward).cpu()
