"""Expectations of products under a Gaussian, their derivatives by the covariance, and the usual moments.

``expectation([f_1, ..., f_n], K)`` is <f_1(z_1) ... f_n(z_n)>_K (1.68), each f_i any product of activations,
their derivatives and polynomials of z_i. Closed forms come first; smooth products go to grids, kinked ones
to panels; delta functions of kinked activations are taken out exactly before any rule sees them. K may be
singular: null directions are dropped and nothing is ever inverted.

``products_at`` does so on chosen index sets of N inputs, each distinct product once: entries that differ by
exchanging inputs with the same factor are one, and repeated inputs become one input with a product of factors. All
products on the same set of inputs are integrated together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property, lru_cache
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.gaussian.covariance import check_covariance, check_gram
from foretrain.gaussian.factors import Factor, as_factor, factor, one, z
from foretrain.gaussian.quadrature import Products, Stack, sizes_of, sort
from foretrain.support.answers import Answer, Result, labelled
from foretrain.support.errors import InputError
from foretrain.support.progress import track

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

MOST_INPUTS = 4
_CHUNK = 256
_FINEST = 1e-13
_FEW = 100  # products: where 3 inputs or one quadruple of tanh or gelu break even


class Expectation(Result):
    """A value, an honest estimate of its absolute error, and the rule that gave it.

    ``np.asarray`` and ``float`` give the value.
    """

    def __init__(
        self, value: NDArray[Any], error: NDArray[Any] | Callable[[], NDArray[Any]], rule: str
    ) -> None:
        self.value = value
        self.rule = rule
        self._error = error

    @cached_property
    def error(self) -> NDArray[Any]:
        """The error estimate, of the shape of the value (made when first asked for)."""
        return self._error() if callable(self._error) else self._error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = np.asarray(self.value, dtype=dtype)
        return array.copy() if copy else array

    def __float__(self) -> float:
        return float(self.value)

    def answer(self) -> Answer:
        """The value and its error."""
        if np.ndim(self.value) == 0:
            return Answer(f"Expectation({float(self.value):.12g} ± {float(self.error):.1e}, by {self.rule})")
        worst = float(np.max(self.error, initial=0.0))
        statement = f"Expectation of shape {np.shape(self.value)}, error at most {worst:.1e}, by {self.rule}"
        return Answer(statement, [f"{self.value!r}"], record=self.__dict__ | {"error": self.error})


def default_tolerance(inputs: int) -> float:
    """Accuracy relative to sqrt(prod <f_i^2>): 1e-10 for one and two inputs, 1e-8 for three and four."""
    return 1e-10 if inputs <= 2 else 1e-8


def expectation(
    factors: Sequence[Any],
    K: ArrayLike,
    *,
    mean: ArrayLike | None = None,
    tolerance: float | None = None,
) -> Expectation:
    """``<f_1(z_1) ... f_n(z_n)>`` for z normal with covariance K (1 to 4 inputs), with an error estimate.

    Parameters
    ----------
    factors
        One per input: a name, an activation, any callable, ``(activation, derivative order)``, a
        ``numpy.polynomial.Polynomial``, or products of these built with :func:`factor` and :data:`z`.
    K
        Covariance (n, n), or a stack of them (..., n, n). May be singular.
    mean
        Mean of z, zero by default; shape (n,) or (..., n).
    tolerance
        Wanted accuracy relative to sqrt(prod <f_i^2>). Loosen it for speed. A result that misses it comes
        with an :class:`AccuracyWarning`; ``error`` is always an estimate of what was reached.

    Examples
    --------
    >>> expectation(["tanh", "tanh"], [[1, 0.5], [0.5, 1]])
    Expectation(0.186324413203 ± ..., by grids)
    """
    if isinstance(factors, str) or not isinstance(factors, Sequence):
        raise InputError("give a list of factors, one for each input, such as ['tanh', 'tanh'].")
    parts = [as_factor(f) for f in factors]
    if not 1 <= len(parts) <= MOST_INPUTS:
        raise InputError(
            f"a product of {len(parts)} inputs was asked for, but 1 to {MOST_INPUTS} are offered; "
            "for more, use expectation_of, which samples."
        )
    K = check_covariance(K, inputs=len(parts))
    tolerance = check_tolerance(tolerance, default_tolerance(len(parts)))
    shape = K.shape[:-2]
    centre = np.zeros(K.shape[:-1])
    if mean is not None:
        try:
            centre = np.broadcast_to(np.asarray(mean, dtype=float), centre.shape).copy()
        except ValueError:
            raise InputError(
                f"the mean has shape {np.shape(mean)}, but the covariance needs {centre.shape}."
            ) from None
    if not np.isfinite(centre).all():
        raise InputError("the mean has entries that are not finite.")
    stack = Stack(K.reshape(-1, len(parts), len(parts)), centre.reshape(-1, len(parts)), tolerance)
    value, error = stack.total(parts)
    stack.warn_if_short(Products([tuple(parts)]), value[None], error[None])
    rule = " and ".join(sorted(stack.rules)) or "symmetry"
    return Expectation(value.reshape(shape), error.reshape(shape), rule)


def expectations(products: Sequence[Sequence[Factor]], K: Array, tolerance: float) -> Array:
    """The values (P, B) of several products on a stack of covariances (B, n, n), sharing the work.

    A warning says where the tolerance, relative to sqrt(prod <f_i^2>), was missed.
    """
    wanted = Products(map(tuple, products))
    stack = Stack(check_covariance(K), np.zeros(K.shape[:2]), tolerance)
    value, error = stack.totals(wanted) if len(K) else np.empty((2, len(wanted), 0))
    if len(K):
        stack.warn_if_short(wanted, value, error)
    return value


def pair_tolerance(tolerance: float) -> float:
    """Of one or two inputs beside products of more: their errors feed those of all later layers."""
    return max(1e-2 * tolerance, min(_FINEST, tolerance))


def check_tolerance(tolerance: float | None, default: float) -> float:
    """The tolerance asked for, or the default."""
    if tolerance is None:
        return default
    if not isinstance(tolerance, int | float) or not 1e-14 <= tolerance <= 0.1:
        raise InputError(f"the tolerance must lie between 1e-14 and 0.1, but is {tolerance!r}.")
    return float(tolerance)


def moments(activation: Any, K: ArrayLike, *, tolerance: float | None = None) -> xr.Dataset:
    """Moments of an activation at one or several variances K, each with its error estimate and rule.

    A dataset with dimensions ``moment`` and ``K``; with s the activation, the moments are ``mean`` <s>, ``square``
    <s^2>, ``fourth`` <s^4>, ``derivative_square`` <s'^2> and ``radial_derivative`` <z s s'>. C_W times the last but
    one, and C_W / K times the last, are the susceptibilities.

    Examples
    --------
    >>> round(float(moments("relu", 1.0).value.sel(moment="square")), 12)
    0.5
    """
    variance = np.atleast_1d(np.asarray(K, dtype=float))
    if variance.ndim != 1:
        raise InputError(f"K must be one variance or a list of them, but has shape {variance.shape}.")
    s, slope = factor(activation), factor(activation, order=1)
    products = {
        "mean": s,
        "square": s**2,
        "fourth": s**4,
        "derivative_square": slope**2,
        "radial_derivative": z * s * slope,
    }
    found = [expectation([f], variance[:, None, None], tolerance=tolerance) for f in products.values()]
    table = labelled(
        {
            "value": ("moment K", np.array([e.value for e in found])),
            "error": ("moment K", np.array([e.error for e in found])),
            "rule": ("moment", [e.rule for e in found]),
        },
        {"activation": s.terms[0].activation.label},
        moment=list(products),
        K=variance,
    )
    return table.squeeze("K") if np.ndim(K) == 0 else table


def covariance_gradient(
    factors: Sequence[Any], K: ArrayLike, *, tolerance: float | None = None
) -> Expectation:
    """Derivatives of ``<f_1 ... f_n>_K`` with respect to K, each off-diagonal pair as one symmetric parameter.

    Entry (i, j), i != j, is <d_i d_j F> and entry (i, i) is <d_i^2 F> / 2 (Price). Kinks are exact: their second
    derivatives are delta functions, which the expectation takes out analytically. Shape (..., n, n).

    Examples
    --------
    >>> covariance_gradient(["relu", "relu"], [[1, 0.5], [0.5, 1]]).value[0, 1].round(6)
    np.float64(0.333333)
    """
    parts = [as_factor(f) for f in factors]
    n = len(parts)
    K = check_covariance(K, inputs=n)
    stack = Stack(
        K.reshape(-1, n, n),
        np.zeros((K[..., 0, 0].size, n)),
        check_tolerance(tolerance, default_tolerance(n)),
    )
    value, error = np.empty((len(stack.K), n, n)), np.empty((len(stack.K), n, n))
    for i in range(n):
        for j in range(i, n):
            # The products whose sum is d_i d_j of the product.
            changed: dict[int, list[Factor]] = {k: [f] for k, f in enumerate(parts)}
            for k in (i, j):
                changed[k] = [slope for f in changed[k] for slope in f.derivative()]
            total, doubts = np.zeros(len(stack.K)), np.zeros(len(stack.K))
            for choice in product(*changed.values()):
                found, doubt = stack.total(list(choice))
                stack.warn_if_short(Products([choice]), found[None], doubt[None])
                total, doubts = total + found, doubts + doubt
            share = 0.5 if i == j else 1.0
            value[:, i, j] = value[:, j, i] = share * total
            error[:, i, j] = error[:, j, i] = share * doubts
    return Expectation(
        value.reshape(K.shape), error.reshape(K.shape), " and ".join(sorted(stack.rules)) or "symmetry"
    )


def expectations_at(
    factors: Sequence[Any], K: ArrayLike, indices: ArrayLike, *, tolerance: float | None = None
) -> Expectation:
    """``<prod_s f_s(z_{indices[..., s]})>_K`` for every row of ``indices``.

    Parameters
    ----------
    factors
        One per slot, 1 to 4 of them, as in :func:`expectation`.
    K
        Covariance (N, N) of all inputs.
    indices
        Integers (..., number of slots), each naming an input.

    Examples
    --------
    >>> expectations_at(["sin"] * 4, np.eye(3), [[0, 0, 1, 1], [1, 0, 1, 0]]).value.round(6)
    array([0.186911, 0.186911])
    """
    return products_at([(factors, indices)], K, tolerance=tolerance)[0]


def products_at(
    requests: Sequence[tuple[Sequence[Any], ArrayLike]], K: ArrayLike, *, tolerance: float | None = None
) -> list[Expectation]:
    """Several products at once, ``(factors, indices)`` each as in :func:`expectations_at`, sharing the work.

    Those with fewer slots than others count as products with ones.

    Examples
    --------
    >>> same, mixed = products_at([(["sin"] * 2, [0, 1]), (["sin", ("sin", 1)], [0, 1])], [[1.0, 0.5], [0.5, 1.0]])
    >>> float(same), float(mixed)
    (0.191700..., 0.0)
    """
    products = [[as_factor(f) for f in factors] for factors, _ in requests]
    slots = max(map(len, products), default=0)
    K = check_gram(K).astype(float)
    checked = [_check_indices(at, len(f), len(K), slots) for f, (_, at) in zip(products, requests)]
    tolerance = check_tolerance(tolerance, default_tolerance(slots))
    parts = tuple((*factors, *[one] * (slots - len(factors))) for factors in products)
    plan = _plan(parts, tuple(rows.tobytes() for rows, _ in checked))
    value, error = np.zeros((2, plan.distinct))  # what vanishes by symmetry is not integrated
    rules = set[str]()
    sizes = (
        sizes_of(plan.factors, np.diagonal(K), np.zeros(len(K))) if plan.factors else np.empty((0, len(K)))
    )
    of_input = dict(zip(plan.factors, sizes, strict=True))
    for task in track(plan.tasks, "expectations of products"):
        found, doubt = _integrate(task, K, tolerance, of_input, rules)
        asked = task.place >= 0
        value[task.place[asked]], error[task.place[asked]] = found[asked], doubt[asked]
    rule = " and ".join(sorted(rules)) or "symmetry"
    return [
        Expectation(value[at].reshape(shape), error[at].reshape(shape), rule)
        for at, (_, shape) in zip(plan.places, checked, strict=True)
    ]


def _check_indices(
    indices: ArrayLike, slots: int, size: int, all_slots: int
) -> tuple[Indices, tuple[int, ...]]:
    """The rows of index sets, their last input repeated up to ``all_slots``, and the shape of what they stand for."""
    rows = np.asarray(indices)
    if not 1 <= slots <= MOST_INPUTS:
        raise InputError(f"1 to {MOST_INPUTS} factors are offered on index sets, not {slots}.")
    if rows.dtype.kind not in "iu" or rows.ndim < 1 or rows.shape[-1] != slots:
        raise InputError(
            f"the index sets must be integers of shape (..., {slots}), one column for each factor, "
            f"but are {rows.dtype} of shape {rows.shape}."
        )
    if rows.size and (rows.min() < 0 or rows.max() >= size):
        raise InputError(f"the index sets name inputs {rows.min()} to {rows.max()}, but there are {size}.")
    flat = rows.reshape(-1, slots).astype(np.intp)
    return np.concatenate([flat, *[flat[:, -1:]] * (all_slots - slots)], axis=1), rows.shape[:-1]


class _Task(NamedTuple):
    """Products that are integrated together on some sets of distinct inputs."""

    sets: Indices  # (S, n)
    products: Products
    place: Indices  # (P, S): places among all distinct products, -1 where a product is not asked for
    fewest: int  # inputs of the smallest product


class _Plan(NamedTuple):
    """What to integrate for requests, and where to find it."""

    distinct: int
    factors: tuple[Factor, ...]  # all that stand at an input in products without a closed form
    tasks: list[_Task]
    places: list[Indices]  # for each request, of every row the place among all distinct products


@lru_cache(maxsize=32)
def _plan(parts: tuple[tuple[Factor, ...], ...], requests: tuple[bytes, ...]) -> _Plan:
    """Each distinct product once, by sets of inputs; kept, since a flow asks for the same at every layer."""
    kinds = list(dict.fromkeys(f for factors in parts for f in factors))
    codes = []
    for factors, request in zip(parts, requests, strict=True):
        legs = np.frombuffer(request, dtype=np.intp).reshape(-1, len(factors))
        # Ones stand at the first input: there they tell no products apart.
        varies = np.array([f != one for f in factors])
        first = legs.min(axis=1, where=varies, initial=legs.max(initial=0))
        legs = np.where(varies, legs, first[:, None])
        codes.append(np.sort(legs * len(kinds) + np.array([kinds.index(f) for f in factors]), axis=1))
    distinct, where = np.unique(np.concatenate(codes), axis=0, return_inverse=True)
    places = np.split(where.ravel(), np.cumsum([len(rows) for rows in codes])[:-1])
    inputs, kind = distinct // len(kinds), distinct % len(kinds)
    fresh = np.diff(inputs, axis=1, prepend=-1) != 0
    tasks, smooth = list[_Task](), list[_Task]()
    for size in np.unique(fresh.sum(axis=1)):
        rows = np.flatnonzero(fresh.sum(axis=1) == size)
        sets, which_set = np.unique(inputs[rows][fresh[rows]].reshape(-1, size), axis=0, return_inverse=True)
        signature = np.concatenate([np.cumsum(fresh[rows], axis=1) - 1, kind[rows]], axis=1)
        patterns, which_product = np.unique(signature, axis=0, return_inverse=True)
        products = []
        # One factor for each distinct input, from the place and the kind of every slot.
        for pattern in patterns:
            merged = [one] * size
            for slot, which in zip(*np.split(pattern, 2), strict=True):
                merged[slot] = merged[slot] * kinds[which]
            products.append(tuple(merged))
        place = np.full((len(products), len(sets)), -1)
        place[which_product.ravel(), which_set.ravel()] = rows
        # Products without delta functions cost little more together than alone, so that all sets get all of them;
        # others are done where they are needed only.
        known = sort(Products(products))
        pointwise = {*known.smooth, *known.kinked} - {*known.singular}
        alone = [[k] for k in range(len(products)) if k not in pointwise]
        pointwise -= {*known.odd}
        integrals, closed = pointwise - {*known.closed}, pointwise & {*known.closed}
        grids = [k for k in known.smooth if k in integrals]
        for together in [grids, [k for k in known.kinked if k in integrals], [*closed], *alone]:
            members = np.flatnonzero((place[together] >= 0).any(axis=0))
            if members.size:
                some = Products(products[k] for k in together)
                task = _Task(sets[members], some, place[together][:, members], size)
                (smooth if together is grids else tasks).append(task)
    tasks = [part for task in [*tasks, *_nested(smooth)] for part in _parts(task)]
    open_tasks = [task for task in tasks if len(sort(task.products).closed) < len(task.products)]
    factors_of = dict.fromkeys(f for task in open_tasks for f in sort(task.products).factors)
    return _Plan(len(distinct), tuple(factors_of), tasks, places)


def _nested(tasks: list[_Task]) -> list[_Task]:
    """Products of smooth factors on one set of inputs, with ones at some of them, if all sets lie in the last.

    A grid for its inputs knows the expectations of fewer as well: where few sets leave little to compute, calls are
    what costs.
    """
    used = np.concatenate([task.sets.ravel() for task in tasks]) if tasks else np.empty(0)
    count = sum(np.count_nonzero(task.place >= 0) for task in tasks)
    if count > _FEW or not tasks or len(tasks[-1].sets) > 1 or not np.isin(used, tasks[-1].sets).all():
        return tasks
    (whole,) = tasks[-1].sets
    products, place = [], []
    for task in tasks:
        for inputs, column in zip(task.sets, task.place.T, strict=True):
            slots = np.searchsorted(whole, inputs)
            for factors, row in zip(task.products, column, strict=True):
                if row >= 0:
                    of_slot = dict(zip(slots.tolist(), factors, strict=True))
                    products.append(tuple(of_slot.get(slot, one) for slot in range(len(whole))))
                    place.append([row])
    return [_Task(whole[None], Products(products), np.array(place), tasks[0].fewest)]


def _parts(task: _Task) -> Iterator[_Task]:
    """Not too many sets at a time."""
    for part in np.array_split(np.arange(len(task.sets)), -(-len(task.sets) // _CHUNK)):
        yield task._replace(sets=task.sets[part], place=task.place[:, part])


def _integrate(
    task: _Task, K: Array, tolerance: float, sizes: Mapping[Factor, Array], rules: set[str]
) -> tuple[Array, Array]:
    """Values and errors (P, S); those of one or two inputs, which cost little, to more digits."""
    own = pair_tolerance(tolerance) if task.fewest < 3 else tolerance
    where = task.sets
    own_sizes = {f: sizes[f][where] for f in sort(task.products).factors if f in sizes}
    stack = Stack(K[where[:, :, None], where[:, None, :]], np.zeros(where.shape), own, own_sizes)
    value, error = stack.totals(task.products)
    stack.warn_if_short(task.products, value, error, tolerance)
    rules |= stack.rules
    return value, error
