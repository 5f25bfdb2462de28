"""Operators with some axes summed away: partial traces and sums over pairs.

For A with entries A[(x, y), (x', y')], tracing out y leaves

    T[x, x'] = sum_y A[(x, y), (x', y)]                 partial_trace, equal indices
    S[x, x'] = sum_{y, y'} A[(x, y), (x', y')]          pair_sum, all pairs

Code that expands a vector along the axis and averages the result computes S / |y|, which is not T / |y|.
Both are sums over probes, sum_i (I ⊗ l_i)* A (I ⊗ r_i): the basis of y for T, the vector of ones for S. Random signs
in place of the basis give T on average; the probes are drawn once, so that the estimate is one fixed operator.

Estimates of an operator that is the mean of random ones A_i carry the error of this mean: tr(A_i* A_j) of different
members has the expectation |A|² with A = E[A_i], free of what noise adds to the norm of the mean, and the jackknife
over members gives the errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators import estimators
from foretrain.operators.algebra import Derived
from foretrain.operators.estimators import Estimate
from foretrain.operators.estimators.estimate import jackknife
from foretrain.operators.estimators.probes import orthonormal_rows
from foretrain.operators.operator import Operator
from foretrain.operators.spaces import Space, Vector, axis_indices, axis_names
from foretrain.operators.subspaces import between
from foretrain.operators.vectors import basis_rows, random_normals, random_signs
from foretrain.support.answers import Answer
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, spawn
from foretrain.support.user_warnings import warn_user

Array: TypeAlias = NDArray[np.float64]

_EVERY_DIRECTION = 256  # dimensions up to which members are seen by all unit vectors
_LEADING, _TESTS = 32, 64  # vectors beyond: leading ones of the mean, and random ones outside of these


class Members:
    """What products of all members A_i with the same vectors say of tr A_i and of tr(A_i* A_j), i and j different.

    The vectors are an orthonormal basis, which holds what the mean does most, and random ones outside of it, which
    stand for all the rest: their spread is part of the stated errors.
    """

    def __init__(self, vectors: Tensor, tests: int, seed: Seed, drawn: str, price: int = 1) -> None:
        """The last of the vectors, as many as there are ``tests``, are random ones.

        ``drawn`` is what members are called, and ``price`` how many products one of them takes.
        """
        self.vectors, self._tests, self._seed, self.drawn, self._price = vectors, tests, seed, drawn, price
        self._images: list[Tensor] = []

    def __len__(self) -> int:
        return sum(len(block) for block in self._images)

    def add(self, images: Tensor) -> None:
        """Products (members, vectors, codomain size) of more members."""
        self._images.append(images)

    def trace(self) -> Estimate:
        """E[tr A_i]."""
        forms = self._forms_with_vectors()
        each = self._summed(forms)
        spread = self._of_tests(forms.mean(0))
        return self._estimate(float(each.mean()), math.hypot(_error(each), spread))

    def norm(self) -> Estimate:
        """|A|: the root of the mean over pairs."""
        count = len(self)
        _, others = self._squares()
        sums = self._summed(others)
        if count < 3:
            return self._estimate(_root(float(sums.sum()), count), math.inf)
        one_out = np.array([_root(float(sums.sum() - 2 * own), count - 1) for own in sums])
        value, error = jackknife(one_out, _root(float(sums.sum()), count))
        spread = self._of_tests(others.sum(0)) / (2 * float(sums.sum())) if value else math.inf
        return self._estimate(value, math.hypot(error, value * spread))

    def participation(self) -> Estimate:
        """tr(A)² / tr(A²) of positive members."""
        forms, (_, others) = self._forms_with_vectors(), self._squares()
        traces, second = self._summed(forms), self._summed(others)
        first = traces * (traces.sum() - traces)
        if len(self) < 3 or not first.any():
            value = float(first.sum() / second.sum()) if second.any() else 0.0
            return self._estimate(value, math.inf if first.any() else 0.0)
        one_out = (first.sum() - 2 * first) / (second.sum() - 2 * second)
        value, error = jackknife(one_out, float(first.sum() / second.sum()))
        by_test = 2 * forms.sum(0) / traces.sum() - others.sum(0) / second.sum()
        return self._estimate(value, math.hypot(error, value * self._of_tests(by_test)))

    def relative_error(self) -> float:
        """Of the mean, in Frobenius norm, without the share that noise has in the norm."""
        count = len(self)
        own, others = (float(self._summed(part).sum()) for part in self._squares())
        squared = others / (count * (count - 1)) if count > 1 else 0.0
        noise = (own + others) / count**2 - squared
        if noise <= 0:
            return 0.0
        return math.sqrt(noise / squared) if squared > 0 else math.inf

    def _forms_with_vectors(self) -> Array:
        """x A_i x, (members, vectors)."""
        return _numpy([(block.double() * self.vectors.double()).sum(2) for block in self._images])

    def _squares(self) -> tuple[Array, Array]:
        """|A_i x|², and A_i x times the sum of all other A_j x, (members, vectors)."""
        total = torch.stack([block.double().sum(0) for block in self._images]).sum(0)
        own = _numpy([block.double().square().sum(2) for block in self._images])
        return own, _numpy([(block.double() * total).sum(2) for block in self._images]) - own

    def _summed(self, by_vector: Array) -> Array:
        """Sums over the vectors of the basis, with the mean of those outside."""
        inside = by_vector.shape[1] - self._tests
        rest = by_vector[:, inside:].mean(1) if self._tests else 0.0
        return np.asarray(by_vector[:, :inside].sum(1) + rest)

    def _of_tests(self, by_vector: Array) -> float:
        """The standard error that the random vectors bring."""
        return _error(by_vector[-self._tests :]) if self._tests else 0.0

    def _estimate(self, value: float, error: float) -> Estimate:
        return Estimate(value, error, len(self) * self._price, self._seed, self.drawn)


def probing_vectors(
    mean: Callable[[Tensor], Tensor], like: Operator, seed: Seed, *, share: int = 1
) -> tuple[Tensor, int]:
    """Vectors for ``Members``, and how many of them are random; ``mean``: products with the mean of some members.

    With a ``share`` there are so many times fewer, where products with members are dear.
    """
    size, dtype, device = like.domain.size, like.dtype, like.device
    if size <= _EVERY_DIRECTION:
        return basis_rows(0, size, size, dtype=dtype, device=device), 0
    for_basis, for_tests = spawn(seed, 2)
    basis = random_normals(min(_LEADING // share, size // 2), size, for_basis, dtype=dtype, device=device)
    if like.symmetric:
        basis = mean(basis)
    basis = orthonormal_rows(basis, basis[:0])
    outside = random_normals(_TESTS // share, size, for_tests, dtype=dtype, device=device)
    return torch.cat([basis, outside - (outside @ basis.T) @ basis]), len(outside)


def _error(values: Array) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def _root(pairs: float, count: int) -> float:
    return math.sqrt(max(pairs, 0.0) / (count * (count - 1))) if count > 1 else 0.0


def _numpy(blocks: list[Tensor]) -> Array:
    return np.asarray(torch.cat(blocks).cpu().numpy())


class SampledOperator(Operator):
    """The mean of independent random operators, which stands for their expectation.

    Its products, modes and spectrum are those of the mean. Trace, norm and effective rank are of the expectation,
    with the standard error that the members show; an ``accuracy`` that they do not have is warned of.
    """

    remedy = "take more members"  # where an accuracy is not reached

    @property
    def members(self) -> Members | None:
        """What was seen of all members; None where there is but one, which is exact."""
        raise NotImplementedError(f"{type(self).__name__} must define its members.")

    def trace(self, *, accuracy: float | None = None, **options: Any) -> Estimate:
        """The trace of the expectation."""
        if (members := self.members) is None or self.domain != self.codomain:
            return estimators.trace(self, accuracy=accuracy, **options)
        return self._known_to(members.trace(), accuracy, "trace")

    def frobenius_norm(self, *, accuracy: float | None = None, **options: Any) -> Estimate:
        """The norm of the expectation."""
        if (members := self.members) is None:
            return estimators.frobenius_norm(self, accuracy=accuracy, **options)
        return self._known_to(members.norm(), accuracy, "Frobenius norm")

    def effective_rank(self, *, accuracy: float | None = None, **options: Any) -> Estimate:
        """The participation ratio of a positive expectation.

        Others are those of the mean, and its distance from the expectation counts as an error of theirs.
        """
        members = self.members
        asked = options.get("kind", "participation"), options.get("share")
        if members is not None and self.positive and asked == ("participation", None):
            return self._known_to(members.participation(), accuracy, "effective rank")
        found = estimators.effective_rank(self, accuracy=accuracy, **options)
        if members is None:
            return found
        error = math.hypot(found.standard_error, found.value * members.relative_error())
        return self._known_to(replace(found, standard_error=error), accuracy, "effective rank")

    def _known_to(self, found: Estimate, accuracy: float | None, what: str) -> Estimate:
        members = self.members
        if members is not None and accuracy is not None and found.relative_error > accuracy:
            warn_user(
                f"the {what} has a relative standard error of {found.relative_error:.2g} from {len(members)} "
                f"{members.drawn}, but {accuracy:.2g} was asked for: {self.remedy}."
            )
        return found


Method = Literal["auto", "exact", "stochastic"]

# Traced dimensions up to this, and operators up to the size below, are never sampled.
_ALWAYS_EXACT_TRACED = 256
_ALWAYS_EXACT_SIZE = 4096
_PILOT_PROBES = 16
_TEST_VECTORS = 4
_SHARE_OF_TESTS = 4  # every vector takes a product for each probe


class _Side:
    """One space cut into contracted axes y and kept axes x: where the entry (y, x) stands, and the way back."""

    def __init__(self, space: Space, over: tuple[str, ...], device: torch.device) -> None:
        places = axis_indices(space, over).reshape(-1)
        self.kept = space.without(over)
        self.places, self.back = places.to(device), torch.argsort(places).to(device)

    def spread(self, flat: Tensor, probes: Tensor) -> Tensor:
        """x ⊗ probe for k vectors (k, x) and b probes (b, y), as (k b, size)."""
        grid = probes[None, :, :, None] * flat[:, None, None, :]
        return grid.reshape(flat.shape[0] * probes.shape[0], -1)[:, self.back]

    def contract(self, products: Tensor, probes: Tensor) -> Tensor:
        """The kept part of (k b, size) seen through each probe (b, y), as (k, b, x)."""
        grid = products[:, self.places].reshape(-1, *probes.shape, self.kept.size)
        return torch.einsum("kbyx,by->kbx", grid, probes)


class AxisContraction(Derived):
    """weight × the sum over probes of (I ⊗ l_i)* A (I ⊗ r_i); kinds differ in their probes."""

    def __init__(self, parent: Operator, over: tuple[str, ...], count: int, weight: float) -> None:
        self._entry = _Side(parent.domain.plain("a reduction over axes"), over, parent.device)
        self._exit = _Side(parent.codomain.plain("a reduction over axes"), over, parent.device)
        super().__init__(
            [parent],
            self._entry.kept,
            self._exit.kept,
            symmetric=parent.symmetric,
            positive=parent.positive,
        )
        self.parent = parent
        self.over = over
        self.weight = weight
        self.probe_count = count
        self.flops = count * parent.flops

    def _probes(self, side: _Side, start: int, stop: int) -> Tensor:
        """Some of the probes (count, y) on one side."""
        raise NotImplementedError(f"{type(self).__name__} must define its probes.")

    def _apply(self, flat: Tensor) -> Tensor:
        return self._summed(self.parent.apply, flat, self._entry, self._exit)

    def _apply_adjoint(self, flat: Tensor) -> Tensor:
        return self._summed(self.parent.apply_adjoint, flat, self._exit, self._entry)

    def _summed(
        self, product: Callable[[Tensor], Tensor], flat: Tensor, source: _Side, target: _Side
    ) -> Tensor:
        total = flat.new_zeros(flat.shape[0], target.kept.size)
        for part in self._contributions(product, flat, source, target):
            total += part.sum(1)
        return self.weight * total

    def _contributions(
        self, product: Callable[[Tensor], Tensor], flat: Tensor, source: _Side, target: _Side
    ) -> Iterator[Tensor]:
        """What each probe adds, (k, some probes, kept); as many products at once as the parent likes."""
        step = max(1, self.parent.best_block // flat.shape[0])
        for start in range(0, self.probe_count, step):
            stop = min(start + step, self.probe_count)
            products = product(source.spread(flat, self._probes(source, start, stop)))
            yield target.contract(products, self._probes(target, start, stop))


class PartialTrace(AxisContraction):
    """The exact partial trace: one product costs as many products of the parent as the traced dimension."""

    def __init__(self, parent: Operator, over: tuple[str, ...], *, normalize: bool) -> None:
        traced = _traced_dimension(parent, over)
        super().__init__(parent, over, traced, 1 / traced if normalize else 1.0)

    def _probes(self, side: _Side, start: int, stop: int) -> Tensor:
        return basis_rows(start, stop, self.probe_count, dtype=self.dtype, device=self.device)


class SampledPartialTrace(AxisContraction, SampledOperator):
    """The partial trace estimated with fixed random signs; unbiased, with standard errors from their spread."""

    remedy = "state more `probes=`"

    def __init__(
        self, parent: Operator, over: tuple[str, ...], *, normalize: bool, probes: int, seed: Seed
    ) -> None:
        if probes < 2:
            raise InputError(f"`probes` is {probes}, but a standard error needs at least 2 of them.")
        traced = _traced_dimension(parent, over)
        super().__init__(parent, over, probes, 1 / (probes * traced) if normalize else 1 / probes)
        self.seed = seed
        require_memory(probes * traced, f"{probes} probes of dimension {traced}", "state fewer probes=")
        self._signs = random_signs(probes, traced, seed, dtype=torch.int8, device=self.device)

    def _probes(self, side: _Side, start: int, stop: int) -> Tensor:
        return self._signs[start:stop].to(self.dtype)

    @cached_property
    def members(self) -> Members:
        """The partial traces by every probe alone."""
        vectors, tests = probing_vectors(self.apply, self, self.seed, share=_SHARE_OF_TESTS)
        found = Members(vectors, tests, self.seed, "probes", price=len(vectors))
        parts = [
            torch.cat([*self._contributions(self.parent.apply, block, self._entry, self._exit)], 1)
            for block in torch.split(found.vectors, self.best_block)
        ]
        found.add(self.weight * self.probe_count * torch.cat(parts).transpose(0, 1))
        return found

    def standard_error(self, vector: Vector) -> Vector:
        """The standard error of every entry of the product with one vector."""
        flat = self._flat_vector(vector, self.domain)
        return self.codomain.unflatten(self._with_error(flat)[1])

    def relative_error(self, *, seed: Seed = 0) -> float:
        """The expected Frobenius distance from the true partial trace over its norm, from random vectors."""
        tests = random_normals(_TEST_VECTORS, self.size, seed, dtype=self.dtype, device=self.device)
        spread, signal = 0.0, 0.0
        for row in torch.split(tests, 1):
            value, error = self._with_error(row)
            spread += float(error.square().sum())
            signal += float(value.square().sum())
        if spread == 0:
            return 0.0
        # The noise adds to the norm of the estimate, so it is taken off before comparing.
        return math.sqrt(spread / (signal - spread)) if signal > spread else float("inf")

    def _with_error(self, flat: Tensor) -> tuple[Tensor, Tensor]:
        """The product with one flat vector and its standard error, both (1, kept)."""
        parts = self._contributions(self.parent.apply, flat, self._entry, self._exit)
        first = next(parts)
        shift, count = first.mean(1, keepdim=True), self.probe_count  # without it the squares would cancel
        total, squares = (first - shift).sum(1), (first - shift).square().sum(1)
        for part in parts:
            total += (part - shift).sum(1)
            squares += (part - shift).square().sum(1)
        variance = (squares - total.square() / count).clamp(min=0) / (count - 1)
        scale = self.weight * count
        return scale * (shift[:, 0] + total / count), scale * (variance / count).sqrt()

    def answer(self) -> Answer:
        """As any operator, with the probes it is made of."""
        found = super().answer()
        return replace(found, statement=f"{found.statement}, {self.probe_count} probes (seed {self.seed})")


class PairSum(AxisContraction):
    """The sum over all pairs of indices of some axes: one product of the parent each."""

    def __init__(self, parent: Operator, over: tuple[str, ...], *, normalize: bool) -> None:
        pairs = 1
        for side in (parent.domain, parent.codomain):
            pairs *= side.plain("a sum over pairs").only(over).size
        super().__init__(parent, over, 1, 1 / pairs if normalize else 1.0)

    def _probes(self, side: _Side, start: int, stop: int) -> Tensor:
        contracted = len(side.places) // side.kept.size
        return torch.ones(stop - start, contracted, dtype=self.dtype, device=self.device)


def partial_trace(
    operator: Operator,
    over: str | Iterable[str],
    *,
    normalize: bool = False,
    method: Method = "auto",
    accuracy: float = 0.01,
    probes: int | None = None,
    seed: Seed = 0,
) -> Operator | Estimate:
    """The sum over equal indices of the axes in ``over``: an operator on the axes that stay.

    ``normalize`` divides by the traced dimension. Tracing out every axis gives the trace as an Estimate.
    ``method="exact"`` probes the traced axes with their basis; ``"stochastic"`` with random signs, as many as
    ``probes`` or as the relative ``accuracy`` asks for (the result has ``standard_error`` and
    ``relative_error``); ``"auto"`` is exact unless the operator is large and fewer random probes reach the accuracy.

    >>> import torch
    >>> from foretrain.operators import Space, dense_operator, identity, kron
    >>> A = dense_operator([[2.0, 1.0], [1.0, 3.0]], Space.of(time=2))
    >>> kron(A, identity(Space.of(unit=4))).partial_trace(over="unit", normalize=True).dense()
    tensor([[2., 1.],
            [1., 3.]], dtype=torch.float64)
    """
    names = _checked_axes(operator, over)
    if method not in ("auto", "exact", "stochastic"):
        raise unknown_name("`method`", str(method), ("auto", "exact", "stochastic"))
    if not accuracy > 0:
        raise InputError(f"`accuracy` is {accuracy!r}, but it is a positive relative error such as 0.01.")
    if set(names) == set(operator.domain.plain("a partial trace").names):
        return _full_trace(operator, normalize, method, accuracy, probes, seed)
    small = _traced_dimension(operator, names) <= _ALWAYS_EXACT_TRACED or operator.size <= _ALWAYS_EXACT_SIZE
    if method == "exact" or (method == "auto" and probes is None and small):
        return PartialTrace(operator, names, normalize=normalize)
    count = probes if probes is not None else _probes_needed(operator, names, accuracy, seed)
    if count is not None:
        return SampledPartialTrace(operator, names, normalize=normalize, probes=count, seed=seed)
    if method == "auto":
        return PartialTrace(operator, names, normalize=normalize)
    raise InputError(
        f"random probes would need more products than the exact partial trace for a relative accuracy of "
        f"{accuracy:g}: use `method='exact'`, a larger `accuracy`, or state `probes=`."
    )


def pair_sum(operator: Operator, over: str | Iterable[str], *, normalize: bool = False) -> Operator:
    """The sum over all pairs of indices of the axes in ``over``; ``normalize`` divides by the number of pairs.

    It equals the partial trace only where different indices do not couple.
    """
    names = axis_names(over)
    for side in (operator.domain, operator.codomain):
        side.plain("a sum over pairs").only(names)
    return PairSum(operator, names, normalize=normalize)


def _full_trace(
    operator: Operator, normalize: bool, method: Method, accuracy: float, probes: int | None, seed: Seed
) -> Estimate:
    square = between(operator, operator.domain, operator.domain)
    sampled = "xnystrace" if operator.positive else "hutchinson"
    found = estimators.trace(
        square,
        method=sampled if method == "stochastic" else method,
        accuracy=accuracy,
        products=probes,
        seed=seed,
    )
    share = 1 / operator.size if normalize else 1.0
    return found.times(share)


def _probes_needed(operator: Operator, over: tuple[str, ...], accuracy: float, seed: Seed) -> int | None:
    """How many random probes reach the accuracy; None where the exact partial trace is no dearer."""
    probing, testing = spawn(seed, 2)
    count = _PILOT_PROBES
    while count < _traced_dimension(operator, over):
        pilot = SampledPartialTrace(operator, over, normalize=False, probes=count, seed=probing)
        error = pilot.relative_error(seed=testing)
        if error <= accuracy:
            return count
        count = max(count + 1, math.ceil(min(1.1 * count * (error / accuracy) ** 2, 2.0**62)))
    return None


def _checked_axes(operator: Operator, over: str | Iterable[str]) -> tuple[str, ...]:
    """The traced axes, which must be the same on both sides."""
    names = axis_names(over)
    domain, codomain = (side.plain("a partial trace") for side in (operator.domain, operator.codomain))
    if set(domain.only(names).axes) != set(codomain.only(names).axes):
        raise InputError(
            f"a trace needs axes that are equal on both sides, but the operator goes from {domain.describe()} to "
            f"{codomain.describe()}."
        )
    if set(names) == set(domain.names) and set(domain.axes) != set(codomain.axes):
        raise InputError(
            f"tracing out all of {domain.describe()} leaves no operator, since the codomain has more axes, "
            f"{codomain.describe()}: name fewer axes."
        )
    return names


def _traced_dimension(operator: Operator, over: tuple[str, ...]) -> int:
    return operator.domain.plain("a partial trace").only(over).size
