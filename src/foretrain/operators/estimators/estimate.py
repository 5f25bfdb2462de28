"""What every estimator returns, when an answer is exact instead, and the rules by which adaptive ones go on or stop.

When an answer is exact: as long as that takes no more than a second or two, or no more than a good estimate.

An exact answer takes products with all unit vectors, of the operator or of a smaller one with the same spectrum (J*
J for J J*, where there are fewer parameters than states). With a budget it is given where the budget has one product
for each of them, so that ``products`` forces either. Without one it is given up to dimension 256, and beyond as long
as the products take no more than 2e10 operations by the operator's ``flops``: for a matrix, up to dimension 2000. An
``accuracy`` that is asked for bounds the work: then it is 5e8 operations, about what an estimate costs at least.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators.estimators.probes import Counted
from foretrain.support.answers import Answer, Result, labelled
from foretrain.support.errors import InputError
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, integer
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    from foretrain.operators.operator import Operator


USUAL_ACCURACY = 0.01  # unless the caller asks for another
MOST_PRODUCTS = 1000  # unless the caller sets a budget
_FASTEST_GROWTH = 1.5
_SLOWEST_GROWTH = 1.25
_GROUPS = 16  # of probes left out together for the jackknife


@dataclass(frozen=True, repr=False, eq=False)
class Estimate(Result, float):
    """A number that knows its standard error, and what it took: operator products, seed, method.

    It counts, compares and is written like the float ``value``; what is computed from it is a plain float.
    """

    value: float
    standard_error: float
    products: int
    seed: Seed
    method: str

    def __new__(cls, value: float, *_: Any, **__: Any) -> Self:
        """The number itself; the fields are the dataclass's."""
        return super().__new__(cls, value)

    @property
    def relative_error(self) -> float:
        """Standard error over value; 0 where both vanish."""
        return relative(self.standard_error, self.value)

    def times(self, factor: float) -> Estimate:
        """The same in other units."""
        return replace(self, value=self.value * factor, standard_error=self.standard_error * factor)

    def answer(self) -> Answer:
        """The number, how sure it is, and what it took."""
        cost = f"{self.products} product{'s' if self.products != 1 else ''}"
        said = f"{self.value:.6g}, exact up to rounding; {cost}"
        if self.method != "exact":
            size = f"{self.relative_error:.2%}" if math.isfinite(self.relative_error) else "value 0"
            error = f"{self.value:.6g} ± {self.standard_error:.2g} ({size})"
            said = f"{error}; {self.method}, {cost}, seed {self.seed}"
        return Answer(f"Estimate({said})", data=lambda: labelled({"value": self}), record=asdict(self))


@dataclass(frozen=True, repr=False, eq=False)
class KernelEstimate(Result):
    """A mean over random probes with its standard error: a number, or one entry per (sample, output).

    Without probes it is exact.
    """

    value: Any
    standard_error: Any
    probes: int
    seed: Seed

    @classmethod
    def of(cls, draws: NDArray[Any], seed: Seed) -> Self:
        """The mean of independent draws along the first axis."""
        mean, error = draws.mean(0), standard_error(draws)
        if mean.ndim == 0:
            mean, error = float(mean), float(error)
        return cls(mean, error, len(draws), seed)

    def answer(self) -> Answer:
        """The number with its error, or how many there are and between which ends they lie."""
        value, error = np.asarray(self.value, dtype=float), np.asarray(self.standard_error, dtype=float)
        drawn = f"{self.probes} random-sign probes, seed {self.seed}" if self.probes else "exact"
        said = f"{float(value):.6g} ± {float(error):.2g}" if value.ndim == 0 else f"shape {value.shape}"
        if value.size > 1:
            said += f", from {value.min():.6g} to {value.max():.6g}, errors up to {error.max():.2g}"
        axes = ("sample", "output")[: value.ndim]
        data = labelled({"value": (axes, value), "value_error": (axes, error)})
        return Answer(f"KernelEstimate({said}; {drawn})", data=data, record=vars(self))


@dataclass(frozen=True)
class Target:
    """The relative standard error asked for, and the number of products it may cost."""

    accuracy: float
    products: int

    @classmethod
    def of(cls, accuracy: float | None, products: int | None) -> Target:
        """Checked; where none is asked for it is USUAL_ACCURACY, and without a budget MOST_PRODUCTS."""
        accuracy = USUAL_ACCURACY if accuracy is None else accuracy
        if not (math.isfinite(accuracy) and accuracy > 0):
            raise InputError(
                f"`accuracy` is {accuracy!r}, but it is a relative standard error: give 0.01 for 1 %."
            )
        if products is not None and (isinstance(products, bool) or products != int(products) or products < 1):
            raise InputError(f"`products` is {products!r}, but a budget is a whole number from 1 on.")
        return cls(float(accuracy), MOST_PRODUCTS if products is None else int(products))

    def require(self, least: int, what: str) -> None:
        """Refuse budgets that do not even allow a first look."""
        if self.products < least:
            raise InputError(
                f"`products` is {self.products}, but {what} takes at least {least}: raise `products=`."
            )

    def reached(self, value: float, standard_error: float) -> bool:
        """Whether the error is small enough; 0 ± 0 is."""
        return standard_error <= self.accuracy * abs(value)

    def next_count(
        self, count: int, value: float, standard_error: float, block: int, fastest: float = _FASTEST_GROWTH
    ) -> int:
        """How many probes to have next.

        Growth is geometric, so that the few looks at a random error hardly favour those that are small by luck, and
        is slower when the prediction by 1 / sqrt(count) says that little is missing; whole blocks are filled.
        Where a look is not free, a larger ``fastest`` saves some.
        """
        missing = (relative(standard_error, value) / self.accuracy) ** 2
        factor = min(max(missing, _SLOWEST_GROWTH), fastest)
        return whole_blocks(math.ceil(count * factor), block)

    def pursue(
        self,
        look: Callable[[int], tuple[float, float]],
        first: int,
        most: int,
        block: int,
        what: str = "probes",
    ) -> tuple[float, float]:
        """Value and standard error of ``look(count)`` at the first count of probes that is enough, or at the most."""
        wanted, seen = whole_blocks(first, block), 0
        with Progress(what) as bar:
            while True:
                wanted = min(wanted, most)
                bar.advance(wanted - seen)
                seen = wanted
                value, error = look(wanted)
                if self.reached(value, error) or wanted >= most:
                    return value, error
                wanted = self.next_count(wanted, value, error, block)

    def warn_unless_reached(self, estimate: Estimate, what: str, scale: float | None = None) -> Estimate:
        """The estimate, with an AccuracyWarning that says what was reached if it is less than asked for.

        The error is relative to the value unless another scale is given.
        """
        scale = estimate.value if scale is None else scale
        if not self.reached(scale, estimate.standard_error):
            warn_user(
                f"the {what} has a relative standard error of {relative(estimate.standard_error, scale):.2g} after "
                f"{estimate.products} products, but {self.accuracy:.2g} was asked for: raise `products=` (now "
                f"{self.products}) or `accuracy=`.",
            )
        return estimate


def relative(standard_error: float, value: float) -> float:
    """Their ratio; 0 where both vanish, infinite where only the value does."""
    if standard_error == 0:
        return 0.0
    return standard_error / abs(value) if value else math.inf


def whole_blocks(count: int, block: int) -> int:
    """The next multiple of the block."""
    return -(-count // block) * block


def exact(value: float, products: int, seed: Seed) -> Estimate:
    """What dense arithmetic found."""
    return Estimate(value, 0.0, products, seed, "exact")


def mean_and_error(values: NDArray[np.float64] | Tensor) -> tuple[float, float]:
    """The mean of independent values and its standard error, infinite for one value."""
    error = (
        float(np.std(np.asarray(values), ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf
    )
    return float(values.mean()), error


def standard_error(draws: NDArray[Any]) -> Any:
    """Of the mean of independent draws along the first axis."""
    return np.std(draws, axis=0, ddof=1) / np.sqrt(len(draws))


def plus_minus(error: float) -> str:
    """A standard error in text; nothing where the value is exact."""
    return f" ± {error:.2g}" if error > 0 else ""


def stated_seed(seed: Seed) -> int:
    """A number that gives the same probes again: the seed itself, or one that is drawn from it."""
    return int(seed) if isinstance(seed, int | np.integer) else integer(seed)


def jackknife(leave_one_out: NDArray[np.float64], full: float) -> tuple[float, float]:
    """Value free of its bias of order 1 / count, and standard error (Quenouille 1956; Tukey 1958)."""
    count = len(leave_one_out)
    mean = float(leave_one_out.mean())
    spread = float(np.sqrt((count - 1) / count * np.square(leave_one_out - mean).sum()))
    return count * full - (count - 1) * mean, spread


def blended(tested: Callable[[NDArray[np.intp]], tuple[float, float]], count: int) -> tuple[float, float]:
    """Value and standard error where every probe tests what all others approximate; ``tested`` takes those to use.

    The spread of the tests is too small, because they share what approximates, and the jackknife over groups of
    probes is too large, because it counts what they share more than once (Efron & Stein 1981; Epperly & Tropp 2024):
    on decaying spectra by factors of 0.5 to 1 and of 1 to 2. Their geometric mean is what is stated.
    """
    everyone = np.arange(count)
    value, spread = tested(everyone)
    if count < 3:
        return value, math.inf if count < 2 else spread
    groups = np.array_split(everyone, min(_GROUPS, count))
    left_out = np.array([tested(np.setdiff1d(everyone, group))[0] for group in groups])
    return value, math.sqrt(spread * jackknife(left_out, value)[1])


AFFORDABLE = 2e10  # floating-point operations: a second or two on one core
QUICK = 5e8  # a few hundredths of a second
SMALL = 256  # up to this dimension the dense form costs less than a good estimate
_DECOMPOSITION = 10.0  # times the cube of the dimension: operations of a symmetric eigensolver


def affordable(accuracy: float | None) -> float:
    """The floating-point operations that an exact answer may take."""
    return AFFORDABLE if accuracy is None else QUICK


def is_affordable(
    operators: Iterable[Operator],
    products: int | None,
    accuracy: float | None = None,
    *,
    decomposed: bool = False,
) -> bool:
    """Whether products of all of them with all unit vectors, and a decomposition, are worth their cost."""
    every = list(operators)
    size = max(op.domain.size for op in every)
    if products is not None:
        return len(every) * size <= products
    if size <= SMALL and accuracy is None:
        return True
    flops = size * sum(op.flops for op in every)
    return flops + (_DECOMPOSITION * size**3 if decomposed else 0.0) <= affordable(accuracy)


def exact_moments(counted: Counted) -> tuple[float, float]:
    """tr A and tr(A* A), in units of the products, from products with all unit vectors that are not kept."""
    first, second = [], []
    for place, images in counted.unit_products():
        first.append(float(images[:, place].diagonal().double().sum()))
        second.append(float(images.double().square().sum()))
    return math.fsum(first), math.fsum(second)
