"""Theory beside measurement: the entries of K, V, G1 and of the NTK's statistics, from networks of several widths.

Every entry is measured at each width and extrapolated to 1/n = 0 with a quadratic in 1/n, where the recursions of
the theory are exact. A z-score is (limit − theory) / standard error.

Entries of one ensemble are correlated, those of V strongly: one fluctuation shows in all of them, and the root mean
square of so many z-scores is no better known than that of ten. The verdict therefore rests on uncorrelated
combinations of them (:func:`foretrain.compare.agreement.decorrelated`); the largest |z| is judged among both.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.compare.agreement import Judgement, decorrelated, judge
from foretrain.compare.ensembles import METHODS, Ensemble
from foretrain.compare.estimators import (
    OBSERVABLES,
    TANGENT,
    BatchValues,
    Entry,
    batch_values,
    entries_of,
    tangent_batch_values,
)
from foretrain.compare.statistics import ESTIMATORS, collect
from foretrain.compare.tangent_kernels import bytes_per_network
from foretrain.compare.tangent_statistics import collect_tangents
from foretrain.compare.widths import (
    TRUSTED_DEPTH_TO_WIDTH,
    WIDTH_OVER_DEPTH,
    check_scales,
    extrapolation_weights,
    inverse_widths,
    scaled,
    share_draws,
)
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError, unknown_name
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.flow import flow
from foretrain.theory.flow.entry import check_network, inputs_on_kinks

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

BATCHES = 1000
_FEWEST_BATCHES = 50
_MOST_INPUTS = 4
_EXACT, _EQUAL = 1e-9, 1e-6  # relative: what fluctuates less does not fluctuate, and is then compared to this
_TANGENT_WIDTH_OVER_DEPTH = 4.0  # carrying NTKs costs n³: as narrow as a quadratic in 1/n can be trusted
_MOST_NUMBERS = 1e10  # random numbers beyond which weights are not drawn one by one unless asked for


@dataclass(frozen=True, eq=False)
class Ladder:
    """The networks that were measured, from narrow to wide."""

    scales: tuple[float, ...]
    inverse: Array  # 1/n in units of the own width
    networks: tuple[MLP, ...]
    draws: tuple[int, ...]
    method: str
    batches: int


@dataclass(frozen=True, eq=False, repr=False)
class Comparison:
    """Measured values at every width, their limit, the theory, and how far they are apart."""

    mlp: MLP
    entries: tuple[Entry, ...]
    ladder: Ladder
    estimator: str
    seed: str
    theory: Array  # (entries,)
    unit: Array  # (entries,): natural size, from the kernel
    batches: tuple[BatchValues, ...]  # by width

    @cached_property
    def measured(self) -> Array:
        """(widths, entries)."""
        return np.stack([batch.estimate for batch in self.batches])

    @cached_property
    def measured_error(self) -> Array:
        """Standard errors (widths, entries)."""
        return np.stack([batch.standard_error for batch in self.batches])

    @cached_property
    def _weights(self) -> Array:
        return extrapolation_weights(self.ladder.inverse, self.measured_error)

    @cached_property
    def limit(self) -> Array:
        """Extrapolated to infinite width: (entries,)."""
        return np.asarray((self._weights * self.measured).sum(axis=0))

    @cached_property
    def covariance(self) -> Array:
        """Of the limits: (entries, entries)."""
        parts = [
            weight[:, None] * weight * batch.covariance for weight, batch in zip(self._weights, self.batches)
        ]
        return np.asarray(sum(parts))

    @cached_property
    def standard_error(self) -> Array:
        """Of the limits: (entries,)."""
        return np.sqrt(np.diagonal(self.covariance))

    @cached_property
    def fluctuates(self) -> NDArray[np.bool_]:
        """Entries with noise; the others are the same in every network and are compared exactly."""
        return np.asarray(self.standard_error > _EXACT * self.unit)

    @cached_property
    def z(self) -> Array:
        """(limit − theory) / standard error, nan where nothing fluctuates: (entries,)."""
        error = np.where(self.fluctuates, self.standard_error, np.nan)
        return np.asarray((self.limit - self.theory) / error)

    @cached_property
    def independent_scores(self) -> Array:
        """z-scores of the uncorrelated combinations on which the verdict rests."""
        chosen = self.fluctuates
        return decorrelated(self.z[chosen], self.covariance[np.ix_(chosen, chosen)], self._freedom)

    @cached_property
    def _freedom(self) -> float:
        """Degrees of freedom of the limits' covariance, after Welch and Satterthwaite; the mean over entries."""
        if not self.fluctuates.any():
            return np.inf
        parts = (self._weights * self.measured_error)[:, self.fluctuates] ** 2
        each = np.stack([batch.freedom[self.fluctuates] for batch in self.batches])
        return float(np.mean(parts.sum(axis=0) ** 2 / (parts**2 / each).sum(axis=0)))

    @cached_property
    def judgement(self) -> Judgement:
        """Spread and largest of the scores, with their bounds."""
        return judge([(self.z[self.fluctuates], self.independent_scores)])

    @property
    def exact_agrees(self) -> bool:
        """Whether entries that do not fluctuate equal the theory."""
        return bool((np.abs(self.limit - self.theory) <= _EQUAL * self.unit)[~self.fluctuates].all())

    @property
    def agrees(self) -> bool:
        """Whether the judgement is good and entries that do not fluctuate equal the theory."""
        return self.judgement.agrees and self.exact_agrees

    @property
    def verdict(self) -> str:
        """One sentence."""
        word = "agrees" if self.agrees else "does NOT agree"
        found = self.judgement.told(exact_agrees=self.exact_agrees)
        return f"{self.mlp.activation.label}: theory {word} with networks ({found})."

    @cached_property
    def own(self) -> int:
        """The number of the width nearest to the network's own."""
        return int(np.argmin(np.abs(np.log(self.ladder.inverse))))

    @cached_property
    def corrected(self) -> Array:
        """K + G1 / fan-in and Θ + H1 / fan-in, the means of theory at each width, else nan: (widths, entries)."""
        found = np.full_like(self.measured, np.nan)
        known = dict(zip(self.entries, self.theory))
        measured = {entry.observable for entry in self.entries}
        for column, entry in enumerate(self.entries):
            name = {"K": "G1", "Theta": "H1"}.get(entry.observable)
            if name in measured:
                fan_in = np.array([network.widths[entry.layer - 1] for network in self.ladder.networks])
                shift = known.get(Entry(name, entry.layer, entry.inputs), 0.0)
                found[:, column] = self.theory[column] + shift / fan_in
        return found

    def to_dataset(self) -> xarray.Dataset:
        """Every number, labelled; ``foretrain.save`` stores it."""
        from foretrain.compare.presentation import comparison_dataset

        return comparison_dataset(self)

    def rows(self) -> list[dict[str, object]]:
        """One dictionary per entry."""
        columns = zip(
            self.entries, self.theory, self.limit, self.standard_error, self.z, self.measured[self.own]
        )
        return [
            {
                "layer": entry.layer,
                "entry": entry.label,
                "theory": float(theory),
                "limit": float(limit),
                "standard_error": float(error),
                "z": None if np.isnan(z) else float(z),
                "own_width": float(own),
            }
            for entry, theory, limit, error, z, own in columns
        ]

    def __repr__(self) -> str:
        from foretrain.compare.presentation import comparison_text

        return comparison_text(self)


def compare(
    mlp: MLP,
    X: ArrayLike,
    observables: Sequence[str] | None = None,
    draws: int = 20_000,
    *,
    scales: Sequence[float] | None = None,
    method: str = "auto",
    estimator: str = "metric",
    seed: Seed = 0,
) -> Comparison:
    """Draw random torch networks of several widths and compare their statistics with the flow.

    Parameters
    ----------
    X
        Inputs (N, n_in); V, D, F, A, B need N ≤ 4, because their full tensors are compared.
    observables
        Any of ``K``, ``V``, ``G1`` (or ``kurtosis``, with estimator "neurons"), and for residual networks ``K``,
        ``V``, ``three_point``. By default all of these that the network, the estimator and the number of inputs
        allow. Statistics of the NTK are compared only if named: ``Theta``, ``H1``, ``D``, ``F``, ``A``, ``B``, of
        networks without skip connections, with every weight drawn, at a cost of n³ per layer.
    draws
        Networks per width, on average; they are shared out so that the limit is as sharp as their time allows.
    scales
        Multipliers of the hidden widths, at least three; by default (1/4, 1/2, 1), (1/2, 1, 2) or (1, 2, 4), the
        narrowest at least six times as wide as the network is deep if possible (four times for the NTK).
    method
        ``"weights"`` draws every weight of every network; ``"conditional"`` draws each layer from its law given
        the one before, the same statistics at a cost of n instead of n² per layer. ``"auto"`` draws weights
        unless that takes more than 10¹⁰ random numbers; the result says which was used.
    estimator
        ``"metric"`` averages over a layer's own weights exactly; ``"neurons"`` uses its preactivations only.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = ft.compare(ft.MLP("relu", depth=3, width=32, C_W=2.0), [[1.0, 0.5], [0.2, -1.0]], draws=1000)
    >>> found.agrees
    True
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    mlp = mlp.with_inputs(inputs)
    names = _check_observables(mlp, len(inputs), observables, estimator)
    tangent = bool(set(names) & set(TANGENT))
    if tangent:
        _refuse_kinks(mlp, inputs)
    narrowest = _TANGENT_WIDTH_OVER_DEPTH if tangent else WIDTH_OVER_DEPTH
    ladder = _plan(mlp, len(inputs), draws, check_scales(mlp, scales, narrowest), method, tangent)
    _warn_if_too_deep(ladder)
    predicted = _theory(mlp, inputs, names)
    entries = [
        entry
        for name in names
        for entry in entries_of(name, mlp, len(inputs))
        if not (estimator == "neurons" and name == "V" and mlp.widths[entry.layer] < 2)
    ]
    if observables is not None:
        _refuse_empty(mlp, names, entries)
    units = np.array([_unit(predicted, e) for e in entries])
    if not units.any():
        raise InputError(
            f"there is nothing to compare, since {', '.join(names)} is zero in theory and in every network: give "
            "inputs that are not zero and positive variances and learning rates."
        )
    found = []
    for network, count, own_seed in zip(ladder.networks, ladder.draws, spawn(seed, len(ladder.networks))):
        ensemble = Ensemble(
            network,
            inputs,
            count // ladder.batches,
            ladder.batches,
            ladder.method,
            own_seed,
            estimator == "neurons",
            bytes_per_network(network, len(inputs)) if tangent else 0,
        )
        found.append(_measure(ensemble, predicted, estimator, entries))
    return Comparison(
        mlp,
        tuple(entries),
        ladder,
        estimator,
        " ".join(repr(seed).split()),
        np.array([predicted[e.observable][(e.layer - 1, *e.inputs)] for e in entries]),
        units,
        tuple(found),
    )


def _refuse_kinks(mlp: MLP, inputs: FloatArray) -> None:
    numbers = inputs_on_kinks(mlp, inputs)
    if numbers:
        raise InputError(
            f"the kernel of input {', '.join(map(str, numbers))} is exactly zero, at the kink of "
            f"{mlp.activation.label}, where the NTK depends on what torch takes for the slope: leave the input "
            "out, or give C_b > 0."
        )


def _refuse_empty(mlp: MLP, names: Sequence[str], entries: Sequence[Entry]) -> None:
    """Observables without an entry would otherwise be missing from the answer without a word."""
    measured = {entry.observable for entry in entries}
    empty = [name for name in names if name not in measured]
    if empty and empty[0] in ("G1", "H1"):
        raise InputError(
            f"{empty[0]} vanishes in layers 1 and 2, and the network has depth {mlp.depth}: leave it out, or give "
            "more layers."
        )
    if empty:
        raise InputError(
            f"{empty[0]} of two different neurons cannot be read from one output: leave it out, or give n_out of 2 "
            "or more, more layers or estimator='metric'."
        )


def _measure(
    ensemble: Ensemble, predicted: dict[str, Array], estimator: str, entries: list[Entry]
) -> BatchValues:
    """All entries from the same networks; those of the NTK come last."""
    K, tangent = predicted["K"], [e for e in entries if e.observable in TANGENT]
    others, columns = [e for e in entries if e.observable not in TANGENT], []
    if others:
        statistics = collect(ensemble, K, estimator, any(e.observable == "G1" for e in others))
        columns.append(batch_values(ensemble.mlp, K, statistics, others).values)
    if tangent:
        kernels = collect_tangents(ensemble, K, predicted["Theta"])
        found = tangent_batch_values(ensemble.mlp, K, predicted["Theta"], kernels, tangent)
        columns.append(found.values)
    return BatchValues(np.concatenate(columns, axis=1))


def _check_observables(
    mlp: MLP, inputs: int, observables: Sequence[str] | None, estimator: str
) -> tuple[str, ...]:
    if estimator not in ESTIMATORS:
        raise unknown_name("estimator", str(estimator), ESTIMATORS)
    if observables is None:
        few = ("V",) if inputs <= _MOST_INPUTS else ()
        if mlp.is_residual:
            return ("K", *few, *(("three_point",) if few else ()))
        return ("K", *few, "G1" if estimator == "metric" else "kurtosis")
    if not isinstance(observables, str | Iterable):
        raise InputError(f"observables is {observables!r}: give a list of names such as ['K', 'V'].")
    names = tuple(dict.fromkeys([observables] if isinstance(observables, str) else observables))
    for name in names:
        if name not in OBSERVABLES:
            raise unknown_name("observable", str(name), OBSERVABLES)
    if not names:
        raise InputError(f"ask for at least one observable of: {', '.join(OBSERVABLES)}.")
    if "G1" in names:
        _refuse_unmeasured("G1", mlp, estimator, "metric")
    if "kurtosis" in names:
        _refuse_unmeasured("kurtosis", mlp, estimator, "neurons")
    if "three_point" in names and not mlp.is_residual:
        raise InputError("three_point vanishes without skip connections: leave it out, or give gamma.")
    tangent = [name for name in TANGENT if name in names]
    if tangent:
        _refuse_unmeasured(tangent[0], mlp, estimator, "metric")
    large = [name for name in ("V", "three_point", "D", "F", "A", "B") if name in names]
    if large and inputs > _MOST_INPUTS:
        raise InputError(
            f"the full {large[0]} of {inputs} inputs would be compared: give at most {_MOST_INPUTS} inputs at a time."
        )
    return *(name for name in names if name not in TANGENT), *tangent


def _refuse_unmeasured(name: str, mlp: MLP, estimator: str, needed: str) -> None:
    """What some estimators and networks do not allow, with the way out that this request has."""
    if mlp.is_residual:
        raise NotSupportedError(
            f"{name} of networks with skip connections is not measured: leave {name} out of the observables, or "
            "gamma out of the network."
        )
    if estimator != needed:
        raise NotSupportedError(
            f"{name} is measured with estimator={needed!r} only: give that, or leave {name} out of the observables."
        )


def _plan(mlp: MLP, inputs: int, draws: int, scales: tuple[float, ...], method: str, tangent: bool) -> Ladder:
    if method not in ("auto", *METHODS):
        raise unknown_name("sampling method", str(method), ("auto", *METHODS))
    if tangent and method == "conditional":
        raise NotSupportedError("the NTK is carried by weights: use method='weights'.")
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or draws < 10 * _FEWEST_BATCHES:
        raise InputError(f"draws is {draws!r}: give a whole number of at least {10 * _FEWEST_BATCHES}.")
    networks = tuple(scaled(mlp, scale) for scale in scales)
    inverse = inverse_widths(mlp, scales)
    for chosen in _allowed_methods(method, tangent):
        numbers = [_numbers_per_draw(network, inputs, chosen) for network in networks]
        costs = np.array(numbers, dtype=float)
        if tangent:  # products of matrices n × n take the time
            costs *= [max(network.hidden_widths) for network in networks]
        shares = share_draws(inverse, costs, int(draws))
        if np.dot(numbers, shares) <= _MOST_NUMBERS:
            break
    batches = max(_FEWEST_BATCHES, min(BATCHES, min(shares) // 4))
    return Ladder(
        scales, inverse, networks, tuple(-(-count // batches) * batches for count in shares), chosen, batches
    )


def _allowed_methods(method: str, tangent: bool) -> tuple[str, ...]:
    if method != "auto":
        return (method,)
    return ("weights",) if tangent else METHODS


def _numbers_per_draw(mlp: MLP, inputs: int, method: str) -> int:
    """Random numbers of one network, up to the last hidden layer."""
    if method == "conditional":
        return inputs * sum(mlp.hidden_widths)
    return sum(n * fan_in for fan_in, n in pairwise(mlp.widths[:-1]))


def _warn_if_too_deep(ladder: Ladder) -> None:
    ratio = ladder.networks[0].depth_to_width
    if ratio > TRUSTED_DEPTH_TO_WIDTH:
        warnings.warn(
            f"the narrowest network has depth over width {ratio:.2g}: a quadratic in 1/n may not reach the limit, "
            "so give wider networks or larger scales.",
            AccuracyWarning,
            stacklevel=3,
        )


def _theory(mlp: MLP, inputs: FloatArray, names: Sequence[str]) -> dict[str, Array]:
    """By name; the excess of one neuron's fourth moment is 3 V_(aa)(aa) (4.77)."""
    base = ("K", "Theta") if set(names) & set(TANGENT) else ("K",)
    wanted = list(
        dict.fromkeys("norm_covariance" if name == "kurtosis" else name for name in (*base, *names))
    )
    tensors = flow(mlp, inputs, wanted)
    found = {name: np.asarray(tensors[name].values, dtype=np.float64) for name in wanted}
    if "kurtosis" in names:
        found["kurtosis"] = 3 * np.diagonal(found["norm_covariance"], axis1=1, axis2=2)
    return found


def _unit(predicted: dict[str, Array], entry: Entry) -> float:
    """√K_aa for each index of z and √Θ_aa for each of the NTK: the size of the entry without any cancellation."""
    legs = 4 * entry.inputs if entry.observable == "kurtosis" else entry.inputs
    kinds = _LEGS.get(entry.observable, ("K",) * len(legs))
    return float(np.prod([np.sqrt(predicted[kind][entry.layer - 1, i, i]) for kind, i in zip(kinds, legs)]))


_LEGS = {
    "Theta": ("Theta",) * 2,
    "H1": ("Theta",) * 2,
    "D": ("K", "K", "Theta", "Theta"),
    "F": ("K", "Theta", "K", "Theta"),
    "A": ("Theta",) * 4,
    "B": ("Theta",) * 4,
}
