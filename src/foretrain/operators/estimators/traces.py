"""``trace`` and its methods; which one to take is decided by structure and by what a few probes show.

| method | products per probe | good for | standard error |
|---|---|---|---|
| hutchinson (Hutchinson 1989) | 1 | any operator; flat spectra | spread of the probes |
| hutch++ (Meyer, Musco, Musco & Woodruff 2021) | 3 | any operator whose spectrum decays | spread of its tests |
| xtrace (Epperly, Tropp & Webber 2024) | 2 | the same; every probe sketches and tests | spread and jackknife |
| xnystrace (the same) | 1 | positive operators: never worse than hutchinson | spread and jackknife |
| exact | one per dimension, or by structure | as far as it is affordable (see ``estimate``) | none |
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, TypeAlias

import torch

from foretrain.operators.estimators.estimate import (
    Estimate,
    Target,
    affordable,
    exact,
    is_affordable,
    mean_and_error,
    relative,
)
from foretrain.operators.estimators.moments import Sketch
from foretrain.operators.estimators.probes import (
    Counted,
    ExactIsCheaperError,
    Source,
    dots,
    gram,
    orthonormal_rows,
)
from foretrain.operators.estimators.ranges import RangeSketch, grow_tested, plain_or_tested
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed, torch_generator

if TYPE_CHECKING:
    from foretrain.operators.operator import Operator

Method: TypeAlias = Literal["auto", "hutchinson", "hutch++", "xtrace", "xnystrace", "exact"]
Algorithm: TypeAlias = Callable[[Counted, Target, Seed], Estimate]

_FIRST_PROBES = 24  # before the first look at the error: fewer make it too random to stop by
_MOST_DRAWS = 96  # of which it takes more, a sketch of the spectrum is worth its products
_FIRST_SKETCHED = 12  # of each kind, in hutch++
_FIRST_TESTED = 16  # the error of tests against an approximation is steadier


def trace(
    op: Operator,
    *,
    method: Method | str = "auto",
    accuracy: float | None = None,
    products: int | None = None,
    seed: Seed = 0,
) -> Estimate:
    """The trace, to a relative standard error of ``accuracy`` (1 %) or with at most ``products`` products.

    "auto" is exact as far as that is affordable: by structure where the operator knows a way, or by products with all
    unit vectors (see ``estimate``; up to ``products``, if given). Beyond it is the mean of the operator's own draws,
    where it has any and few will do, else xnystrace for positive operators, and otherwise hutchinson if a first block
    of probes shows that it will do, else xtrace on top of the same products; if these would take as many products as
    there are dimensions, and ``products`` is not given, it is exact after all.
    ``method="exact"`` is exact at any cost, and any other name an estimate at any size.
    """
    if op.domain != op.codomain:
        raise InputError(
            f"a trace needs one space, but this operator goes from {op.domain.describe()} to "
            f"{op.codomain.describe()}: bring both sides together with tensor_like(space), or use A* A or A A*."
        )
    target = Target.of(accuracy, products)
    if method == "auto":
        return target.warn_unless_reached(_automatic(op, products, accuracy, seed), "trace")
    if method == "exact":
        known = op.trace_by_structure(math.inf)
        return _by_unit_vectors(Counted(op.same_spectrum()), seed) if known is None else exact(*known, seed)
    if method not in _METHODS:
        raise unknown_name("`method`", method, ["auto", "exact", *_METHODS])
    if method == "xnystrace" and not op.positive:
        raise InputError("xnystrace needs an operator declared positive: use `method='xtrace'`.")
    target.require(_LEAST.get(method, 2), f"method={method!r}")
    counted = Counted(op)
    found = _METHODS[method](counted, target, seed)
    return target.warn_unless_reached(found.times(counted.unit), "trace")


def _automatic(op: Operator, products: int | None, accuracy: float | None, seed: Seed) -> Estimate:
    target = Target.of(accuracy, products)
    known = op.trace_by_structure(affordable(accuracy)) if products is None else None
    if known is not None:
        return exact(*known, seed)
    smaller = op.same_spectrum()
    if is_affordable([smaller], products, accuracy):
        return _by_unit_vectors(Counted(smaller), seed)
    counted = Counted(smaller, up_to_exact=products is None)
    try:
        if products is None and (drawn := _by_draws(op, target, seed)) is not None:
            return drawn
        if op.positive:
            return _xnystrace(counted, target, seed).times(counted.unit)
        # Hutchinson's estimator, with probes on the sphere, or xtrace on top of it.
        sketch, source = RangeSketch(counted), Source(smaller, seed)
        value, error, tested = plain_or_tested(sketch, source, target, RangeSketch.forms, RangeSketch.trace)
        method = "xtrace" if tested else "hutchinson"
        return Estimate(value, error, counted.products, seed, method).times(counted.unit)
    except ExactIsCheaperError:
        return _by_unit_vectors(counted, seed)


def _by_draws(op: Operator, target: Target, seed: Seed) -> Estimate | None:
    """The mean of the operator's own draws; None where it has none, or where they are too many."""
    generator = torch_generator(seed)
    draws = op.trace_draws(2, generator)
    if draws is None:
        return None
    wanted = 1 + math.ceil(_FIRST_PROBES / draws.shape[1])
    while True:
        while len(draws) < wanted:
            more = op.trace_draws(min(wanted - len(draws), op.best_block), generator)
            assert more is not None
            draws = torch.cat([draws, more])
        value = float(draws.sum(1).mean())
        error = math.sqrt(float(draws.var(0).sum()) / wanted)
        if target.reached(value, error):
            return Estimate(value, error, wanted, seed, "random directions")
        if wanted * (relative(error, value) / target.accuracy) ** 2 > _MOST_DRAWS:
            return None
        wanted = target.next_count(wanted, value, error, 1)


def _by_unit_vectors(counted: Counted, seed: Seed) -> Estimate:
    parts = [float(images[:, place].diagonal().double().sum()) for place, images in counted.unit_products()]
    return exact(math.fsum(parts) * counted.unit, counted.products, seed)


def _hutchinson(counted: Counted, target: Target, seed: Seed) -> Estimate:
    """Mean of z A z over random signs z (Hutchinson 1989)."""
    source = Source(counted.operator, seed)
    values = torch.zeros(0, dtype=torch.float64)

    def look(count: int) -> tuple[float, float]:
        nonlocal values
        while len(values) < count:
            probes = source.signs(min(counted.block, count - len(values)))
            values = torch.cat([values, dots(probes, counted.apply(probes)).cpu()])
        return mean_and_error(values)

    found = target.pursue(look, _FIRST_PROBES, target.products, counted.block, "trace probes")
    return Estimate(*found, counted.products, seed, "hutchinson")


def _hutch_plus_plus(counted: Counted, target: Target, seed: Seed) -> Estimate:
    """tr(Q A Q) + mean of g (1 - QQ) A (1 - QQ) g, Q from products with other probes (Meyer et al. 2021)."""
    source = Source(counted.operator, seed)
    tests = test_images = basis = images = source.signs(0)

    def look(count: int) -> tuple[float, float]:
        nonlocal tests, test_images, basis, images
        more = count - len(tests)
        counted.require_vectors(5 * count, "a sketch")
        fresh = orthonormal_rows(counted.apply(source.signs(more)), basis)
        basis, images = torch.cat([basis, fresh]), torch.cat([images, counted.apply(fresh)])
        drawn = source.signs(more)
        tests, test_images = torch.cat([tests, drawn]), torch.cat([test_images, counted.apply(drawn)])
        # g (1 - QQ) A (1 - QQ) g of every test, from products that are known: tests outlive a growing basis.
        inside = gram(tests, basis)
        forms = dots(tests, test_images) - (inside * (gram(tests, images) + gram(test_images, basis))).sum(1)
        forms += torch.einsum("ta,ab,tb->t", inside, gram(basis, images), inside)
        outside, error = mean_and_error(forms.cpu())
        return float(dots(basis, images).sum()) + outside, error

    most = min(max(1, target.products // 3), counted.size)
    found = target.pursue(look, _FIRST_SKETCHED, most, counted.block, "trace probes")
    return Estimate(*found, counted.products, seed, "hutch++")


def _xtrace(counted: Counted, target: Target, seed: Seed) -> Estimate:
    """Every probe tests outside the range of the products with all others (Epperly, Tropp & Webber 2024)."""
    sketch, source = RangeSketch(counted), Source(counted.operator, seed)
    value, error = grow_tested(sketch, source, target, RangeSketch.trace)
    return Estimate(value, error, counted.products, seed, "xtrace")


def _xnystrace(counted: Counted, target: Target, seed: Seed) -> Estimate:
    """Every probe tests the Nyström approximation by all others (Epperly, Tropp & Webber 2024)."""
    sketch, source = Sketch(counted), Source(counted.operator, seed)

    def look(count: int) -> tuple[float, float]:
        sketch.grow_to(count, source)
        return sketch.grams().estimate(lambda first, second: first)

    most = min(target.products, counted.size)
    found = target.pursue(look, _FIRST_TESTED, most, counted.block, "trace probes")
    return Estimate(*found, counted.products, seed, "xnystrace")


_METHODS: dict[str, Algorithm] = {
    "hutchinson": _hutchinson,
    "hutch++": _hutch_plus_plus,
    "xtrace": _xtrace,
    "xnystrace": _xnystrace,
}
_LEAST = {"hutch++": 6, "xtrace": 4}  # products: two tests, for an error
