"""Frobenius norm of an operator, inner product and cosine of two."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from foretrain.operators.estimators.estimate import (
    SMALL,
    Estimate,
    Target,
    exact,
    jackknife,
    mean_and_error,
    whole_blocks,
)
from foretrain.operators.estimators.moments import tested_moments
from foretrain.operators.estimators.nystrom import Array
from foretrain.operators.estimators.probes import Counted, OperatorLike, Source, dense, dots
from foretrain.operators.estimators.ranges import RangeSketch, plain_or_tested
from foretrain.support.errors import InputError
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed

Statistic: TypeAlias = Callable[[Array], tuple[float, float, float]]

_FIRST_PROBES = 24


def frobenius_norm(
    op: OperatorLike, *, accuracy: float = 0.01, products: int | None = None, seed: Seed = 0
) -> Estimate:
    """The root of tr(A* A), to a relative standard error of ``accuracy`` or with at most ``products`` products.

    Small operators (see ``trace``) are exact. Positive ones take tr A² from tests against a Nyström approximation
    (Epperly, Tropp & Webber 2024, see ``nystrom``); others take the mean of |A w|² if the first probes show that it
    will do, else tests outside the range of the products, with A* (see ``ranges``).
    """
    target, counted = Target.of(accuracy, products), Counted(op)
    if counted.size <= (SMALL if products is None else products):
        return exact(float(torch.linalg.matrix_norm(dense(counted))), counted.products, seed)
    if op.positive:
        grams = tested_moments(counted, _root_of_second, target, seed)
        value, error = grams.estimate(_root_of_second)
        method = "tested Nyström"
    else:
        squared = Target(2 * target.accuracy, target.products)
        value, error, tested = plain_or_tested(
            RangeSketch(counted),
            Source(op, seed),
            squared,
            RangeSketch.squares,
            RangeSketch.squared_norm,
        )
        value = max(value, 0.0) ** 0.5
        error, method = (error / (2 * value) if value else error), "tested range" if tested else "hutchinson"
    found = Estimate(value, error, counted.products, seed, method)
    return target.warn_unless_reached(found, "Frobenius norm")


def _root_of_second(first: Array, second: Array) -> Array:
    return np.asarray(np.sqrt(np.maximum(second, 0.0)))


def inner(
    a: OperatorLike, b: OperatorLike, *, accuracy: float = 0.01, products: int | None = None, seed: Seed = 0
) -> Estimate:
    """tr(A* B) as the mean of (A w) · (B w) over probes w on the sphere.

    ``accuracy`` is relative to |A| |B|, since the inner product of unlike operators may vanish. A probe costs two
    products, one with each operator.
    """
    return _paired(
        a, b, _inner_of, _inner_statistic, "inner product", Target.of(accuracy, products), products, seed
    )


def cosine(
    a: OperatorLike, b: OperatorLike, *, accuracy: float = 0.01, products: int | None = None, seed: Seed = 0
) -> Estimate:
    """tr(A* B) / (|A| |B|), with an absolute standard error of ``accuracy``.

    Numerator and norms come from the same probes, so that their errors cancel the more the closer the operators are;
    value and error are the jackknife's (Tukey 1958). A probe costs two products, one with each operator.
    """
    return _paired(
        a, b, _cosine_of, _cosine_statistic, "cosine", Target.of(accuracy, products), products, seed
    )


def _paired(
    a: OperatorLike,
    b: OperatorLike,
    plain: Callable[[Array], Array],
    statistic: Statistic,
    what: str,
    target: Target,
    products: int | None,
    seed: Seed,
) -> Estimate:
    """Grow the probes until the statistic's error is small beside its scale."""
    pair = _Pair(a, b, seed)
    if 2 * a.domain.size <= (2 * SMALL if products is None else products):
        sums = pair.all_directions().sum(axis=1, keepdims=True)
        return exact(float(plain(sums)[0]), pair.products, seed)
    target.require(4, f"the {what}")
    most = target.products // 2
    wanted = whole_blocks(_FIRST_PROBES, pair.block)
    with Progress("probes") as bar:
        while True:
            wanted = min(wanted, most)
            bar.advance(wanted - pair.samples.shape[1])
            pair.grow_to(wanted)
            value, error, scale = statistic(pair.samples)
            if target.reached(scale, error) or wanted >= most:
                found = Estimate(value, error, pair.products, seed, "hutchinson")
                return target.warn_unless_reached(found, what, scale)
            wanted = target.next_count(wanted, scale, error, pair.block)


class _Pair:
    """Two operators between the same spaces and what probes see of them: rows |A w|², |B w|², (A w) · (B w)."""

    def __init__(self, a: OperatorLike, b: OperatorLike, seed: Seed) -> None:
        sizes = [(op.domain.size, op.codomain.size) for op in (a, b)]
        if sizes[0] != sizes[1] or a.dtype != b.dtype or a.device != b.device:
            raise InputError(
                f"two operators can be compared when both go between the same spaces in one dtype on one device, but "
                f"these go from and to dimensions {sizes[0]} in {a.dtype} on {a.device} and {sizes[1]} in {b.dtype} "
                f"on {b.device}."
            )
        self._first, self._second = Counted(a), Counted(b)
        self._source = Source(a, seed)
        self.block = min(self._first.block, self._second.block)
        self.samples: Array = np.zeros((3, 0))

    @property
    def products(self) -> int:
        """Of both operators."""
        return self._first.products + self._second.products

    def grow_to(self, count: int) -> None:
        """Draw more probes."""
        while self.samples.shape[1] < count:
            probes = self._source.sphere(min(self.block, count - self.samples.shape[1]))
            self.samples = np.concatenate([self.samples, self._see(probes)], axis=1)

    def all_directions(self) -> Array:
        """What the unit vectors see: the sums over them are exact."""
        unit = torch.eye(self._first.size, dtype=self._first.dtype, device=self._first.operator.device)
        return self._see(unit)

    def _see(self, probes: Tensor) -> Array:
        first, second = self._first.apply(probes), self._second.apply(probes)
        seen = [dots(first, first), dots(second, second), dots(first, second)]
        return torch.stack(seen).cpu().numpy()


def _inner_statistic(samples: Array) -> tuple[float, float, float]:
    """Value, standard error and the scale to which the error is relative."""
    value, error = mean_and_error(samples[2])
    return value, error, float(np.sqrt(samples[0].mean() * samples[1].mean()))


def _cosine_statistic(samples: Array) -> tuple[float, float, float]:
    count = samples.shape[1]
    totals = samples.sum(axis=1, keepdims=True)
    full = float(_cosine_of(totals)[0])
    if count == 1:
        return full, math.inf, 1.0
    value, error = jackknife(_cosine_of(totals - samples), full)
    return min(max(value, -1.0), 1.0), error, 1.0


def _inner_of(sums: Array) -> Array:
    return np.asarray(sums[2])


def _cosine_of(sums: Array) -> Array:
    if not sums[:2].all():
        raise InputError("the cosine with an operator that is zero is not defined.")
    return np.asarray(sums[2] / np.sqrt(sums[0] * sums[1]))
