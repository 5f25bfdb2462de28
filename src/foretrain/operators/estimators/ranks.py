"""``effective_rank``: how many modes an operator has that count, by three definitions.

Functions of a whole spectrum from what probes see of it, outside modes that are resolved one by one.

1. A block Krylov space finds the largest modes; those with small residuals count once each, exactly. Without this,
   a mode would be counted by the square of its overlap with each probe, which varies by twice its mean.
2. Probes orthogonal to them see the rest by Lanczos quadrature (Ubaru, Chen & Saad 2017; Gambhir, Stathopoulos &
   Orginos 2017 on deflation): a measure of nodes and counts, and one more for each probe left out (jackknife).
3. tr B and tr B², with B = A if it is positive and A* A if it is not symmetric, come from ``moments`` at one product
   per probe, often better than from the few probes that were followed to depth. Counts are multiplied by the
   quadratic of least change that gives the measure these moments (calibration, Deville & Särndal 1992): what is left
   to the probes is the part of the function that no quadratic explains.

Small singular values of an operator without symmetry are seen through their squares, which takes depth: the root of
a value near 0 is not smooth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from torch import Tensor

from foretrain.operators.estimators.estimate import (
    Estimate,
    Target,
    exact,
    exact_moments,
    is_affordable,
    jackknife,
    whole_blocks,
)
from foretrain.operators.estimators.krylov import BlockKrylov, Tridiagonal, lanczos
from foretrain.operators.estimators.moments import Array, tested_moments
from foretrain.operators.estimators.probes import (
    Counted,
    ExactIsCheaperError,
    Source,
    combine,
    dense,
    gram,
    squared,
)
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, spawn

if TYPE_CHECKING:
    from foretrain.operators.operator import Operator


_TIE = 1e-5  # of the number of modes: a share that is missed by less counts as reached
_MANY_STEPS = 50.0  # errors, in modes, beyond which a step to a whole number is none
_KRYLOV = 48  # vectors with which the largest modes are looked for
_WIDTH = 2
_RESOLVED = 0.001  # relative residual of a mode that counts as found: its value is then good to the square
_MISSED = 0.6  # of the accuracy: more than this asks for depth rather than for probes
_DEPTH = 20
_LEAST_DEPTH = 8
_DEEPEST = 160
_LEAST_PRODUCTS = 100  # for some modes, and the first probes to the least depth
_FIRST_PROBES = 8
# Products of B: from fewer, the moments are not known better than the probes see them.
_FEWEST_FOR_MOMENTS = 16
_STEP = 1e-3  # relative, for slopes; not more than half of what is outside the modes
_NOISE = 10.0  # times the rounding, relative to the largest value of B: what products make of zero
_ROUNDING = 10.0  # times the dtype's rounding: relative errors of resolved modes alone are not below
_MOST_UNDERSTATED = 4.0  # times: beyond it, rounding makes the difference
# Part of the largest change since half of the depth: what is left falls with its square, or oscillates.
_PART_OF_DEPTH = 0.4
_PART_OF_MOMENTS = 0.7  # of the accuracy, that the error of the moments may take


def measured(
    counted: Counted, function: RankFunction, target: Target, seed: Seed
) -> tuple[tuple[float, float], float]:
    """What to state of the operator's singular values, with its error, and the error of the smooth form.

    What the depth leaves out is included in both.
    """
    krylov_seed, probe_seed, moment_seed = spawn(seed, 3)
    target.require(_LEAST_PRODUCTS * (1 if counted.operator.symmetric else 2), "this effective rank")
    may_be_exact = counted.before_exact < target.products
    target = Target(target.accuracy, int(min(target.products, counted.before_exact)))
    seen = _Seen(counted, krylov_seed, probe_seed, target.products)
    moments: tuple[Array, Array] | None = None
    most = (target.products - counted.products) // seen.price
    wanted = max(2, min(whole_blocks(_FIRST_PROBES, counted.block), max(_FIRST_PROBES, most // 2), most))
    with Progress("Lanczos probes") as bar:
        while True:
            bar.advance(wanted - seen.probes)
            seen.grow_to(wanted)
            affordable = target.products - counted.products >= _FEWEST_FOR_MOMENTS * seen.factor
            if seen.has_moments and moments is None and affordable:
                moments = _tested(counted, seen, function, target, moment_seed)
            full, value, error, missed = _estimate(seen, function, moments)
            total = math.hypot(error, missed, _ROUNDING * counted.epsilon * value)
            left = target.products - counted.products
            if may_be_exact and left < seen.price and not target.reached(value, total):
                raise ExactIsCheaperError
            if target.reached(value, total) or left < seen.price:
                return function.stated(full, value, total), total
            # As many probes as now could be followed twice as deep.
            may_deepen = 2 * seen.depth <= min(_DEEPEST, seen.free) and 2 * seen.price * seen.probes <= left
            if missed > _MISSED * target.accuracy * abs(value) and may_deepen:
                seen.start_over(2 * seen.depth)
            else:
                grown = target.next_count(seen.probes, value, total, counted.block)
                wanted = min(grown, seen.probes + left // seen.price)


def _estimate(
    seen: _Seen, function: RankFunction, moments: tuple[Array, Array] | None
) -> tuple[Measure, float, float, float]:
    """The calibrated measure, the value, its standard error, and what more depth may change.

    The moments to calibrate to are the means of those that the probes have seen and of the tested ones, weighted by
    the variances of their errors: for a spectrum that is almost resolved, the former are the better ones.
    """
    everyone = np.arange(seen.probes)
    own = np.array([seen.moments(seen.measure(np.array([probe]), seen.depth)) for probe in everyone])
    trust, known, spread = np.zeros((2, 2)), own.mean(0), np.zeros((2, 2))
    # The spread of tr B over normal probes on a sphere is 2 (tr B² - (tr B)² / dimensions) outside the modes. By what
    # factor that of a few is less: of few probes, those with a low mean also spread less.
    first, second = seen.outside_moments(seen.measure(everyone, seen.depth))
    expected, found = 2 * (second - first**2 / seen.free), float(own[:, 0].var(ddof=1))
    understated = min(math.sqrt(max(expected / found, 1.0)), _MOST_UNDERSTATED) if found else 1.0
    if moments is not None:
        known, covariance = moments
        own_variance = understated**2 * own.var(0, ddof=1) / len(own)
        both = own_variance + np.diagonal(covariance)
        trust = np.diag(np.divide(own_variance, both, out=np.zeros(2), where=both > 0))
        spread = trust @ covariance @ trust.T

    def calibrated(use: NDArray[np.intp], depth: int) -> Measure:
        seen_here = own[use].mean(0)
        return seen.calibrate(seen.measure(use, depth), *(seen_here + trust @ (known - seen_here)))

    full = calibrated(everyone, seen.depth)
    left_out = [function.smooth(calibrated(np.delete(everyone, out), seen.depth)) for out in everyone]
    value, error = jackknife(np.array(left_out), function.smooth(full))
    shallower = [max(1, seen.depth * eighths // 8) for eighths in range(4, 8)]
    changes = [function.smooth(calibrated(everyone, depth)) - function.smooth(full) for depth in shallower]
    slopes = _slopes(seen, function, full)
    # The variance of Student's t: so few probes, so uncertain a spread.
    few = (seen.probes - 1) / max(seen.probes - 3, 1)
    error = math.sqrt(few * (understated * error) ** 2 + max(float(slopes @ spread @ slopes), 0.0))
    return full, value, error, _PART_OF_DEPTH * float(np.abs(changes).max())


def _slopes(seen: _Seen, function: RankFunction, measure: Measure) -> Array:
    """How the function of a calibrated measure changes with the moments."""
    here, outside = np.array(seen.moments(measure)), seen.outside_moments(measure)
    found = np.zeros(2)
    for which in range(2):
        if outside[which] > 0:
            step = np.zeros(2)
            step[which] = min(_STEP * here[which], outside[which] / 2)
            ends = (function.smooth(seen.calibrate(measure, *(here + side * step))) for side in (1, -1))
            found[which] = (next(ends) - next(ends)) / (2 * step[which])
    return found


def _tested(
    counted: Counted, seen: _Seen, function: RankFunction, target: Target, seed: Seed
) -> tuple[Array, Array]:
    """tr B and tr B² with the covariance of their errors, as good as the function needs them.

    That is said by its slopes in them at what the probes have seen.
    """
    measure = seen.measure(np.arange(seen.probes), seen.depth)
    value, slopes, here = function.smooth(measure), _slopes(seen, function, measure), seen.moments(measure)

    def linear(first: Array, second: Array) -> Array:
        return np.asarray(value + slopes[0] * (first - here[0]) + slopes[1] * (second - here[1]))

    left = (target.products - counted.products) // seen.factor
    wanted = Target(_PART_OF_MOMENTS * target.accuracy, seen.base.products + left // 2)
    grams = tested_moments(seen.base, linear, wanted, seed)
    tests = np.array(grams.per_probe())
    errors = np.array(
        [grams.estimate(lambda first, _: first)[1], grams.estimate(lambda _, second: second)[1]]
    )
    spreads = np.maximum(tests.std(1), 1e-300)
    correlation = np.cov(tests / spreads[:, None], bias=True)
    return tests.mean(1), correlation * np.outer(errors, errors)


class _Seen:
    """The resolved modes of B, which is A if symmetric and A* A otherwise, and what probes have seen of the rest."""

    def __init__(self, counted: Counted, krylov_seed: Seed, probe_seed: Seed, products: int) -> None:
        operator = counted.operator
        self._root = not operator.symmetric
        self.has_moments = operator.positive or self._root
        self.base = squared(counted) if self._root else counted
        self.factor = 2 if self._root else 1  # products of A in one of B
        self._source = Source(operator, probe_seed)
        draw = Source(operator, krylov_seed).normals
        capacity = max(_WIDTH, min(_KRYLOV, products // (4 * self.factor), self.base.size // 2))
        start = draw(min(_WIDTH, self.base.size))
        space = BlockKrylov(self.base.apply, start, capacity, draw=draw, keeps_images=True)
        while space.has_room:
            space.extend()
        values, coordinates, _ = space.ritz(by_magnitude=True)
        vectors, residuals = space.modes(values, coordinates)
        resolved = (residuals <= _RESOLVED * values.abs()).int().cumprod(0).bool()
        self._modes = vectors[resolved.to(vectors.device)]
        self._mode_values, self._mode_residuals = values[resolved].numpy(), residuals[resolved].numpy()
        affordable = (products - counted.products) // (2 * _FIRST_PROBES * self.factor)
        self.start_over(min(max(min(_DEPTH, affordable), _LEAST_DEPTH), self.free))

    def start_over(self, depth: int) -> None:
        """Begin with another depth: the chains of the probes were not kept."""
        self.depth = depth
        self.price = depth * self.factor
        self._followed: list[Tridiagonal] = []

    @property
    def probes(self) -> int:
        """How many have seen the rest."""
        return sum(len(chains.diagonal) for chains in self._followed)

    @property
    def free(self) -> int:
        """Dimensions outside the modes."""
        return self.base.size - len(self._modes)

    def grow_to(self, count: int) -> None:
        """Follow more probes to depth."""
        while self.probes < count:
            probes = self._source.sphere(min(self.base.block, count - self.probes))
            self._followed.append(
                lanczos(lambda rows: self._outside(self.base.apply(rows)), self._outside(probes), self.depth)
            )

    def _outside(self, rows: Tensor) -> Tensor:
        return rows - combine(gram(rows, self._modes), self._modes)

    def measure(self, use: NDArray[np.intp], depth: int) -> Measure:
        """Singular values of A with counts, by some of the probes and so many of their steps."""
        parts = [chains.quadrature(depth) for chains in self._followed]
        nodes, weights = (np.concatenate([part[which] for part in parts])[use].ravel() for which in range(2))
        values = np.concatenate([self._mode_values, nodes])
        values[np.abs(values) <= _NOISE * self.base.epsilon * np.abs(values).max()] = 0.0
        values = np.abs(values) if not self.has_moments else np.maximum(values, 0.0)
        counts = np.concatenate([np.ones(len(self._modes)), weights * self.free / len(use)])
        return Measure(np.sqrt(values) if self._root else values, counts, resolved=len(self._modes))

    def moments(self, measure: Measure) -> tuple[float, float]:
        """tr B and tr B², as a measure has them."""
        hidden = 2 * float(np.square(self._mode_residuals).sum())
        return measure.total(self.factor), measure.total(2 * self.factor) + hidden

    def outside_moments(self, measure: Measure) -> tuple[float, float]:
        """The part of both that is outside the modes."""
        rest = slice(measure.resolved, None)
        outside = Measure(measure.values[rest], measure.counts[rest], resolved=0)
        return outside.total(self.factor), outside.total(2 * self.factor)

    def calibrate(self, measure: Measure, first: float, second: float) -> Measure:
        """The measure with counts outside the modes multiplied by a quadratic, so that it has these moments."""
        now = self.moments(measure)
        values = measure.values[measure.resolved :] ** self.factor
        counts = measure.counts[measure.resolved :]
        scale = float(values.max()) or 1.0
        powers = (values / scale) ** np.arange(3)[:, None]
        missing = np.array([0.0, (first - now[0]) / scale, (second - now[1]) / scale**2])
        factors = np.linalg.lstsq(powers @ (counts * powers).T, missing, rcond=1e-10)[0]
        multiplied = counts * (1 + factors @ powers)
        return replace(measure, counts=np.concatenate([measure.counts[: measure.resolved], multiplied]))


@dataclass(frozen=True)
class Measure:
    """Values with counts, those resolved one by one first, by falling value."""

    values: Array
    counts: Array
    resolved: int

    def total(self, power: int) -> float:
        """Sum of count value^power."""
        return float(self.counts @ self.values**power)


class RankFunction(Protocol):
    """A function of a measure of singular values; 0 if all of them vanish."""

    def smooth(self, measure: Measure) -> float:
        """The form that has a standard error."""
        ...

    def stated(self, measure: Measure, value: float, error: float) -> tuple[float, float]:
        """What to say, with its error, where ``value`` with ``error`` was found for the smooth form."""
        return value, error


@dataclass(frozen=True)
class Participation(RankFunction):
    """(sum s)² / sum s²."""

    def smooth(self, measure: Measure) -> float:
        """Zero if all values vanish."""
        second = measure.total(2)
        return measure.total(1) ** 2 / second if second else 0.0


@dataclass(frozen=True)
class Entropy(RankFunction):
    """exp(- sum p log p) with p = s / sum s."""

    def smooth(self, measure: Measure) -> float:
        """Zero if all values vanish."""
        total = measure.total(1)
        if not total:
            return 0.0
        shares = np.maximum(measure.values, 0.0) / total
        logs = np.log(np.where(shares > 0, shares, 1.0))
        entropy = -float((measure.counts * shares * logs).sum())
        return math.exp(min(entropy, math.log(max(measure.total(0), 1.0))))


@dataclass(frozen=True)
class Share(RankFunction):
    """How many of the largest values hold a share of their sum."""

    share: float

    def smooth(self, measure: Measure) -> float:
        """Interpolated within the value at which the share is reached."""
        return self._reached(measure)[0]

    def stated(self, measure: Measure, value: float, error: float) -> tuple[float, float]:
        """The whole number, with the value at which the share is reached, and the error of the step to it included.

        Among resolved values the number does not need the probes' mean.
        """
        count, place = self._reached(measure)
        number = count if place < measure.resolved else value
        return ceiling(number - _TIE * (1 + number), error)

    def _reached(self, measure: Measure) -> tuple[float, int]:
        """The interpolated count and the place of the value at which the share is reached."""
        order = np.argsort(-measure.values, kind="stable")
        values, counts = measure.values[order], measure.counts[order]
        held = np.cumsum(values * counts)
        if not len(held) or held[-1] <= 0:
            return 0.0, 0
        wanted = self.share * held[-1]
        place = int(np.searchsorted(held, wanted * (1 - 1e-12)))
        missing = wanted - (held[place - 1] if place else 0.0)
        return float(counts[:place].sum() + missing / values[place]), int(order[place])


def ceiling(number: float, error: float) -> tuple[float, float]:
    """The next whole number and its root mean square error if the number has a normal one; not below the latter."""
    whole = float(math.ceil(number))
    if not 0 < error < _MANY_STEPS:
        return whole, error
    reach = math.ceil(8 * error) + 1
    steps = np.arange(-reach, reach + 1)
    up_to = ndtr((whole - number + np.append(steps[0] - 1, steps)) / error)
    return whole, max(error, math.sqrt(float(steps**2 @ np.diff(up_to))))


Kind: TypeAlias = Literal["participation", "entropy"]

_KINDS: dict[str, RankFunction] = {"participation": Participation(), "entropy": Entropy()}


def effective_rank(
    op: Operator,
    *,
    kind: Kind | str = "participation",
    share: float | None = None,
    accuracy: float | None = None,
    products: int | None = None,
    seed: Seed = 0,
) -> Estimate:
    """The participation ratio, or another rank, to a relative error of ``accuracy`` or with at most ``products``.

    With s the eigenvalues of a positive operator, and the singular values of any other (an eigenvalue's magnitude if
    it is symmetric):

    - ``kind="participation"``: (sum s)² / sum s², which is tr(A)² / tr(A²) of a positive operator;
    - ``kind="entropy"``: exp of the entropy of s / sum s, elsewhere named ``entropy_rank``;
    - ``share=0.95``: the number of largest modes that hold this share of sum s (the variance, if the operator is a
      covariance), with the one that reaches it. ``accuracy`` is that of the number interpolated within this mode; the
      stated error is also that of the step to a whole one.

    It is exact where that is affordable (see ``estimate``), or where an estimate would take as many products. The
    participation ratio of a positive operator takes both traces from the same tests against a Nyström approximation,
    at one product per probe, and the jackknife takes its ratio's bias away: w A² w = |A w|² makes tr A² free, and its
    variance 2 tr A⁴ / tr(A²)² is a fourth of that of the two-sided form (w A w')² on as many probes. Everything else
    is stochastic Lanczos quadrature outside the large modes, which a Krylov space finds first; what the probes see is
    then weighted so that its first two moments are the tested ones, which are known much better (see above),
    and what the depth leaves out is part of the stated error.
    """
    target, function = Target.of(accuracy, products), _function(kind, share)
    smaller, by_moments = op.same_spectrum(), _needs_moments_alone(op, function)
    if is_affordable([smaller], products, accuracy, decomposed=not by_moments):
        return _exact(Counted(smaller), function, seed)
    counted = Counted(smaller, up_to_exact=products is None)
    try:
        found, interpolated_error = _estimated(counted, function, target, seed)
    except ExactIsCheaperError:
        return _exact(counted, function, seed)
    target.warn_unless_reached(replace(found, standard_error=interpolated_error), "effective rank")
    return found


def _exact(counted: Counted, function: RankFunction, seed: Seed) -> Estimate:
    if _needs_moments_alone(counted.operator, function):
        first, second = exact_moments(counted)
        return exact(first**2 / second if second else 0.0, counted.products, seed)
    matrix = dense(counted).cpu().numpy()
    if counted.operator.symmetric:
        values = np.sort(np.abs(np.linalg.eigvalsh(matrix)))[::-1]
    else:
        values = np.linalg.svd(matrix, compute_uv=False)
    measure = Measure(values, np.ones(len(values)), resolved=len(values))
    value, _ = function.stated(measure, function.smooth(measure), 0.0)
    return exact(value, counted.products, seed)


def _needs_moments_alone(op: Operator, function: RankFunction) -> bool:
    """tr(A)² / tr(A²) of a positive operator takes no eigenvalues."""
    return op.positive and isinstance(function, Participation)


def _estimated(
    counted: Counted, function: RankFunction, target: Target, seed: Seed
) -> tuple[Estimate, float]:
    """What is stated, and the error to which the target refers."""
    if _needs_moments_alone(counted.operator, function):
        value, error = tested_moments(counted, _participation, target, seed).estimate(_participation)
        stated, method = (value, error), "tested Nyström"
    else:
        stated, error = measured(counted, function, target, seed)
        method = "Lanczos quadrature"
    most = min(counted.size, counted.operator.codomain.size)
    possible = min(max(stated[0], 1.0), float(most)) if stated[0] else 0.0
    return Estimate(possible, stated[1], counted.products, seed, method), error


def _function(kind: str, share: float | None) -> RankFunction:
    if share is not None:
        if not 0 < share < 1:
            raise InputError(f"`share` is {share!r}, but it lies between 0 and 1: give 0.95 for 95 %.")
        return Share(float(share))
    if kind not in _KINDS:
        raise unknown_name("`kind` of effective rank", kind, _KINDS)
    return _KINDS[kind]


def _participation(first: Array, second: Array) -> Array:
    """Zero for the operator that is zero."""
    return np.divide(first**2, second, out=np.zeros_like(first), where=second > 0)
