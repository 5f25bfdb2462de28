"""The linear operator: a map between two spaces that is known by its products with blocks of vectors.

A new kind of operator overrides ``_apply`` (and ``_apply_adjoint`` unless it is symmetric) on flat blocks, and
inherits everything else:

>>> import torch
>>> from foretrain.operators import Operator, Space
>>> class Shift(Operator):
...     def _apply(self, flat):
...         return flat.roll(1, dims=1)
...     def _apply_adjoint(self, flat):
...         return flat.roll(-1, dims=1)
>>> shift = Shift(Space.of(time=4), dtype=torch.float64)
>>> shift.check().adjointness < 1e-12
True
>>> (shift @ shift.T).positive
True
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators import estimators
from foretrain.operators.linear_map import LinearMap
from foretrain.operators.spaces import VectorSpace
from foretrain.operators.vectors import adopt, holds_one_vector
from foretrain.support.answers import Answer
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    from foretrain.operators.checks import OperatorCheck, OperatorComparison
    from foretrain.operators.estimators import Modes

_DRAWN = 20  # leading values of a picture


class Operator(LinearMap):
    """A linear map from ``domain`` to ``codomain`` (the same space unless given), real, in one dtype on one device.

    ``symmetric`` and ``positive`` (symmetric and positive semi-definite) are declarations that choose algorithms:
    ``check`` tests them. ``best_block`` is how many vectors the operator takes at once; longer blocks are cut.
    """

    __array_ufunc__ = None  # numpy scalars leave products with an operator to the operator
    _adjoint_of: Operator | None = None
    _adjoint_made: weakref.ref[Operator] | None = None

    def __matmul__(self, other: Any) -> Any:
        """Composition with an operator, or the product with a vector or a block (vectors along the first axis).

        What can be read as one vector is one vector.
        """
        from foretrain.operators.algebra import compose

        if isinstance(other, Operator):
            return compose(self, other)
        given = adopt(self, other, self.domain)
        return self.matvec(given) if holds_one_vector(self.domain, given) else self.matmat(given)

    def __add__(self, other: Operator) -> Operator:
        from foretrain.operators.algebra import add

        return add(self, other) if isinstance(other, Operator) else NotImplemented

    def __radd__(self, other: int) -> Operator:
        """``sum(operators)`` starts from the number 0."""
        return self if isinstance(other, int) and other == 0 else NotImplemented

    def __sub__(self, other: Operator) -> Operator:
        return self + (-other) if isinstance(other, Operator) else NotImplemented

    def __neg__(self) -> Operator:
        return self * -1.0

    def __mul__(self, factor: Any) -> Operator:
        from foretrain.operators.algebra import scale

        return NotImplemented if isinstance(factor, Operator) else scale(self, factor)

    __rmul__ = __mul__

    def __truediv__(self, divisor: Any) -> Operator:
        from foretrain.operators.algebra import real_number

        number = real_number(divisor)
        if number == 0:
            raise InputError("an operator cannot be divided by zero.")
        return self * (1 / number)

    def adjoint(self) -> Operator:
        """The adjoint: the transpose of the dense form; a symmetric operator is its own."""
        if self.symmetric:
            return self
        if self._adjoint_of is not None:
            return self._adjoint_of
        known = self._adjoint_made() if self._adjoint_made is not None else None
        if known is None:
            known = self._make_adjoint()
            known._adjoint_of = self
            # Weak, or the two would keep each other (and a model's memory) alive until the next collection.
            self._adjoint_made = weakref.ref(known)
        return known

    def _make_adjoint(self) -> Operator:
        from foretrain.operators.algebra import Adjoint

        return Adjoint(self)

    @property
    def T(self) -> Operator:
        """The adjoint."""
        return self.adjoint()

    def declare(self, *, symmetric: bool = False, positive: bool = False) -> Operator:
        """This operator with a structure it has but could not know; ``check`` tests the claim."""
        from foretrain.operators.algebra import declare

        return declare(self, symmetric=symmetric, positive=positive)

    def compress(self, basis: Operator) -> Operator:
        """Q* A Q for Q from a smaller space: the operator as that space sees it."""
        from foretrain.operators.algebra import compress

        return compress(self, basis)

    def restrict(self, **indices: Any) -> Operator:
        """Keep only some indices of axes, on both sides: ``op.restrict(time=-1, unit=[0, 3])``.

        A number drops its axis; a slice, a list or a mask keeps it.
        """
        from foretrain.operators.subspaces import restrict

        return restrict(self, indices)

    def restrict_to(self, part: str | Tensor) -> Operator:
        """Keep one member of a direct sum (by name) or the entries of a mask over the space, on both sides."""
        from foretrain.operators.subspaces import restrict_to

        return restrict_to(self, part)

    def lift(self, space: VectorSpace) -> Operator:
        """This operator on its own axes of a larger space, the identity on the others."""
        from foretrain.operators.composites import lift

        return lift(self, space)

    def tensor_like(self, reference: Operator | VectorSpace) -> Operator:
        """This operator between the reference's spaces: axes matched by name, or flat forms where sizes agree."""
        from foretrain.operators.subspaces import operator_like

        return operator_like(self, reference)

    def partial_trace(
        self,
        over: str | Iterable[str],
        *,
        normalize: bool = False,
        method: Literal["auto", "exact", "stochastic"] = "auto",
        accuracy: float = 0.01,
        probes: int | None = None,
        seed: Seed = 0,
    ) -> Any:
        """Sum over equal indices of some axes: an operator on the others, or an Estimate if none is left.

        ``normalize`` divides by the traced dimension. See ``foretrain.operators.partial_trace``.
        """
        from foretrain.operators.reductions import partial_trace

        return partial_trace(
            self, over, normalize=normalize, method=method, accuracy=accuracy, probes=probes, seed=seed
        )

    def pair_sum(self, over: str | Iterable[str], *, normalize: bool = False) -> Operator:
        """Sum over all pairs of indices of some axes, unlike the partial trace; ``normalize`` averages."""
        from foretrain.operators.reductions import pair_sum

        return pair_sum(self, over, normalize=normalize)

    def compare(
        self, other: Operator, *, tolerance: float | None = None, probes: int = 32, seed: Seed = 0
    ) -> OperatorComparison:
        """How far this operator is from another: relative Frobenius difference and cosine, with error bars."""
        from foretrain.operators.checks import compare

        return compare(self, other, tolerance=tolerance, probes=probes, seed=seed)

    def check(self, *, tolerance: float | None = None, seed: Seed = 0) -> OperatorCheck:
        """Test products, adjoint and declared structure on random vectors; the error names what fails."""
        from foretrain.operators.checks import check

        return check(self, tolerance=tolerance, seed=seed)

    trace = estimators.trace
    frobenius_norm = estimators.frobenius_norm
    inner = estimators.inner
    cosine = estimators.cosine
    effective_rank = estimators.effective_rank
    spectral_density = estimators.spectral_density

    def top_modes(
        self, k: int, *, tolerance: float = 1e-6, products: int | None = None, seed: Seed = 0
    ) -> Modes:
        """The k leading eigen or singular modes, structured; see ``foretrain.operators.estimators.top_modes``."""
        found = estimators.top_modes(self, k, tolerance=tolerance, products=products, seed=seed)
        vectors = self.domain.unflatten_block(found.vectors)
        is_eigen = found.left is found.vectors
        left = vectors if is_eigen else self.codomain.unflatten_block(found.left)
        return dataclasses.replace(
            found, vectors=vectors, left=left, domain=self.domain, codomain=self.codomain
        )

    def same_spectrum(self) -> Operator:
        """This operator, or a smaller one with the same eigenvalues apart from zeros, where its kind knows one."""
        return self

    def carried_back(self, vectors: Tensor) -> Tensor:
        """Eigenvectors (k, size) of ``same_spectrum`` as those of this operator, of any length."""
        return vectors

    def matrix_in_memory(self, what: str = "an exact answer") -> NDArray[np.float64] | None:
        """The matrix in double precision, of kinds that hold it: then what is asked of its spectrum is exact."""
        return None

    def trace_by_structure(self, most_flops: float) -> tuple[float, int] | None:
        """The exact trace and the products it took, where a kind knows a way for at most so many operations."""
        return None

    def trace_draws(self, count: int, generator: torch.Generator) -> Tensor | None:
        """Independent unbiased draws of the trace, of kinds that have them for less than a product each.

        (count, parts): parts that add up, where these are independent too.
        """
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_adjoint_made": None}  # weak references cannot be sent to other processes

    def answer(self) -> Answer:
        """Its spaces and what is declared of it; nothing is computed, and ``to_dataset`` writes it out."""
        spaces = f"on {self.domain.describe()}"
        if self.domain != self.codomain:
            spaces = f"from {self.domain.describe()} to {self.codomain.describe()}"
        structure = (
            "positive" if self.positive else "symmetric" if self.symmetric else "no declared structure"
        )
        statement = f"{type(self).__name__} {spaces}: {structure}, {self.dtype} on {self.device}"
        record = {"type": type(self).__name__, "rows": self.codomain.size, "columns": self.size}
        record |= {"structure": structure, "dtype": str(self.dtype), "device": str(self.device)}
        return Answer(statement, data=self.to_xarray, record=record)

    def plot(self, ax: Any = None, *, path: str | Path | None = None) -> Any:
        """Draw its leading eigenvalues or singular values, which takes products: see ``top_modes``."""
        return self.top_modes(min(_DRAWN, *self.matrix_shape)).plot(ax, path=path)
