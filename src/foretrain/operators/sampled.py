"""Operators that are the mean of independent random ones, and estimates that carry the error of this mean.

With A = E[A_i], tr(A_i* A_j) of different members has the expectation |A|², free of what noise adds to the norm of
their mean. The jackknife over members gives the errors.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators import estimators
from foretrain.operators.estimators import Estimate
from foretrain.operators.estimators.estimate import jackknife
from foretrain.operators.estimators.probes import orthonormal_rows
from foretrain.operators.operator import Operator
from foretrain.operators.vectors import basis_rows, random_normals
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
