"""Frobenius norm of an operator, inner product and cosine of two."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import torch
from torch import Tensor

from foretrain.operators.estimators.estimate import (
    Estimate,
    Target,
    exact,
    is_affordable,
    jackknife,
    mean_and_error,
)
from foretrain.operators.estimators.moments import Array, tested_moments
from foretrain.operators.estimators.probes import Counted, ExactIsCheaperError, Source, dots
from foretrain.operators.estimators.ranges import RangeSketch, plain_or_tested
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed

if TYPE_CHECKING:
    from foretrain.operators.operator import Operator

Statistic: TypeAlias = Callable[[Array], tuple[float, float, float]]

_FIRST_PROBES = 24


def frobenius_norm(
    op: Operator, *, accuracy: float | None = None, products: int | None = None, seed: Seed = 0
) -> Estimate:
    """The root of tr(A* A), to a relative standard error of ``accuracy`` or with at most ``products`` products.

    It is exact where that is affordable (see ``estimate``), or where an estimate would take as many products.
    Positive operators take tr A² from tests against a Nyström approximation (Epperly, Tropp & Webber 2024, see
    ``moments``); others take the mean of |A w|² if the first probes show that it will do, else tests outside the
    range of the products, with A* (see ``ranges``).
    """
    target, smaller = Target.of(accuracy, products), op.same_spectrum()
    if is_affordable([smaller], products, accuracy):
        return _exact_norm(Counted(smaller), seed)
    counted = Counted(smaller, up_to_exact=products is None)
    try:
        if op.positive:
            grams = tested_moments(counted, _root_of_second, target, seed)
            found = Estimate(*grams.estimate(_root_of_second), counted.products, seed, "tested Nyström")
        else:
            square, error, tested = plain_or_tested(
                RangeSketch(counted),
                Source(smaller, seed),
                Target(2 * target.accuracy, target.products),
                RangeSketch.squares,
                RangeSketch.squared_norm,
            )
            value = max(square, 0.0) ** 0.5
            error = error / (2 * value) if value else error
            method = "tested range" if tested else "hutchinson"
            found = Estimate(value, error, counted.products, seed, method)
    except ExactIsCheaperError:
        return _exact_norm(counted, seed)
    return target.warn_unless_reached(found.times(counted.unit), "Frobenius norm")


def _exact_norm(counted: Counted, seed: Seed) -> Estimate:
    squares = [float(images.double().square().sum()) for _, images in counted.unit_products()]
    return exact(math.sqrt(math.fsum(squares)) * counted.unit, counted.products, seed)


def _root_of_second(first: Array, second: Array) -> Array:
    return np.asarray(np.sqrt(np.maximum(second, 0.0)))


def inner(
    a: Operator, b: Operator, *, accuracy: float | None = None, products: int | None = None, seed: Seed = 0
) -> Estimate:
    """tr(A* B) as the mean of (A w) · (B w) over probes w on the sphere.

    ``accuracy`` is relative to |A| |B|, since the inner product of unlike operators may vanish. A probe costs two
    products, one with each operator.
    """

    def statistic(samples: Array) -> tuple[float, float, float]:
        return *mean_and_error(samples[2]), float(np.sqrt(samples[0].mean() * samples[1].mean()))

    pair = _Pair(a, b, seed, up_to_exact=products is None)
    found = _paired(pair, lambda sums: sums[2], statistic, "inner product", accuracy, products, seed)
    return found.times(pair.unit)


def cosine(
    a: Operator, b: Operator, *, accuracy: float | None = None, products: int | None = None, seed: Seed = 0
) -> Estimate:
    """tr(A* B) / (|A| |B|), with an absolute standard error of ``accuracy``.

    Numerator and norms come from the same probes, so that their errors cancel the more the closer the operators are;
    value and error are the jackknife's (Tukey 1958). A probe costs two products, one with each operator.
    """

    def statistic(samples: Array) -> tuple[float, float, float]:
        totals = samples.sum(axis=1, keepdims=True)
        full = float(_cosine_of(totals)[0])
        if samples.shape[1] == 1:
            return full, math.inf, 1.0
        value, error = jackknife(_cosine_of(totals - samples), full)
        return min(max(value, -1.0), 1.0), error, 1.0

    pair = _Pair(a, b, seed, up_to_exact=products is None)
    return _paired(pair, _cosine_of, statistic, "cosine", accuracy, products, seed)


def _paired(
    pair: _Pair,
    plain: Callable[[Array], Array],
    statistic: Statistic,
    what: str,
    accuracy: float | None,
    products: int | None,
    seed: Seed,
) -> Estimate:
    """Grow the probes until the statistic's error is small beside its scale: it gives value, error and scale."""
    target = Target.of(accuracy, products)

    def look(count: int) -> tuple[float, float]:
        pair.grow_to(count)
        _, error, scale = statistic(pair.samples)
        return scale, error

    if not is_affordable(pair.operators, products, accuracy):
        target.require(4, f"the {what}")
        try:
            target.pursue(look, _FIRST_PROBES, target.products // 2, pair.block)
            value, error, scale = statistic(pair.samples)
            found = Estimate(value, error, pair.products, seed, "hutchinson")
            return target.warn_unless_reached(found, what, scale)
        except ExactIsCheaperError:
            pass
    return exact(float(plain(pair.all_directions())[0]), pair.products, seed)


class _Pair:
    """Two operators between the same spaces and what probes see of them: rows |A w|², |B w|², (A w) · (B w)."""

    def __init__(self, a: Operator, b: Operator, seed: Seed, *, up_to_exact: bool) -> None:
        from foretrain.operators.algebra import check_same_spaces

        check_same_spaces(a, b)
        self._first, self._second = (Counted(op, up_to_exact=up_to_exact) for op in (a, b))
        self.operators = (a, b)
        self._source = Source(a, seed)
        self.block = min(self._first.block, self._second.block)
        self.samples: Array = np.zeros((3, 0))

    @property
    def unit(self) -> float:
        """Of the inner product."""
        return self._first.unit * self._second.unit

    @property
    def products(self) -> int:
        """Of both operators."""
        return self._first.products + self._second.products

    def grow_to(self, count: int) -> None:
        """Draw more probes."""
        while self.samples.shape[1] < count:
            probes = self._source.sphere(min(self.block, count - self.samples.shape[1]))
            fresh = self._seen(self._first.apply(probes), self._second.apply(probes))
            self.samples = np.concatenate([self.samples, fresh], axis=1)

    def all_directions(self) -> Array:
        """The sums of what the unit vectors see, (3, 1), which are exact."""
        total: Array = np.zeros((3, 1))
        both = (counted.unit_products(self.block) for counted in (self._first, self._second))
        for (_, first), (_, second) in zip(*both, strict=True):
            total += self._seen(first, second).sum(axis=1, keepdims=True)
        return total

    def _seen(self, first: Tensor, second: Tensor) -> Array:
        seen = [dots(first, first), dots(second, second), dots(first, second)]
        return torch.stack(seen).cpu().numpy()


def _cosine_of(sums: Array) -> Array:
    if not sums[:2].all():
        raise InputError("the cosine with an operator that is zero is not defined.")
    return np.asarray(sums[2] / np.sqrt(sums[0] * sums[1]))
