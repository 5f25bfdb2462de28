"""Correlators of preactivations of random networks, with standard errors, and how far from Gaussian they are.

Neurons are named by a pattern with one letter per leg, equal letters for the same neuron and different
letters for different ones: "11" is the two-point function of one neuron, "1122" the four-point function of
two, and "112233" the six-point function of three. Two estimators have the same mean. "neurons" averages over
the neurons of the layer and holds for every network. "wick" does the average over the layer's own weights
exactly, so it has less noise and needs no neurons to spare, but only holds for Gaussian parameters without a
skip connection into the layer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.gaussian.wick import set_partitions
from foretrain.support.answers import labelled
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.ensembles.moments import (
    BatchSums,
    MetricContractions,
    Moment,
    MomentReader,
    NeuronAverages,
    canonical,
    sign_weight,
)
from foretrain.theory.ensembles.networks import check_layers
from foretrain.theory.ensembles.sampling import Ensemble

if TYPE_CHECKING:
    import xarray

Inputs = tuple[int, ...]
Terms = dict[tuple[Moment, ...], int]  # a polynomial in moments: coefficient of each product

_LONGEST = 8
_MOST_ENTRIES = 100_000
_ESTIMATORS = ("wick", "neurons")


def correlator(
    ensemble: Ensemble,
    neurons: str,
    *,
    layers: Sequence[int] | None = None,
    inputs: Sequence[Sequence[int]] | None = None,
    estimator: str = "wick",
) -> xarray.Dataset:
    """Full correlator E[z z ...]: ``value`` and ``standard_error`` for a pattern of neurons such as "1122".

    ``inputs`` lists the entries wanted, one row of input numbers each (result dims: layer, entry); None gives
    all (dims: layer, input_1, ...).
    """

    def terms(pattern: str, entry: Inputs) -> Terms:
        return {(canonical(_blocks(pattern, entry)),): 1}

    return _measure(ensemble, neurons, layers, inputs, estimator, terms)


def connected_correlator(
    ensemble: Ensemble,
    neurons: str,
    *,
    layers: Sequence[int] | None = None,
    inputs: Sequence[Sequence[int]] | None = None,
    estimator: str = "wick",
) -> xarray.Dataset:
    """Connected correlator, the joint cumulant of the legs (1.56); arguments as in :func:`correlator`.

    The lower correlators it subtracts are those of the same sample, which has the smaller variance.
    """
    even = not ensemble.mlp.is_residual

    def terms(pattern: str, entry: Inputs) -> Terms:
        return _connected_terms(pattern, entry, even)

    return _measure(ensemble, neurons, layers, inputs, estimator, terms)


def moment_sums(
    ensemble: Ensemble, layers: tuple[int, ...], moments: Sequence[Moment], estimator: str
) -> BatchSums:
    """Many moments in one pass over all draws, as batch sums of shape (layers, moments).

    A moment is one tuple of inputs per neuron, like ((0, 1), (2, 2)); ``.estimate(function)`` gives the value
    and standard error of any function of the means.
    """
    sums = BatchSums(ensemble.draws, (len(layers), len(moments)))
    with Progress("networks", total=ensemble.draws) as bar:
        for readers in _readers(ensemble, layers, estimator):
            by_layer = [np.stack([reader.read(moment) for moment in moments], axis=-1) for reader in readers]
            sums.add(np.stack(by_layer, axis=1))
            bar.advance(len(by_layer[0]))
    return sums


def _readers(ensemble: Ensemble, layers: tuple[int, ...], estimator: str) -> Iterator[list[MomentReader]]:
    """For each chunk of draws one reader per layer."""
    if estimator == "wick":
        for metrics in ensemble.metrics(layers):
            yield [MetricContractions(metrics[layer]) for layer in layers]
    else:
        for preactivations in ensemble.preactivations(layers):
            yield [NeuronAverages(preactivations[layer]) for layer in layers]


def _measure(
    ensemble: Ensemble,
    neurons: str,
    layers: Sequence[int] | None,
    inputs: Sequence[Sequence[int]] | None,
    estimator: str,
    expand: Callable[[str, Inputs], Terms],
) -> xarray.Dataset:
    kept = check_layers(ensemble.mlp, layers)
    if not 2 <= len(neurons) <= _LONGEST:
        raise InputError(
            f"neurons is {neurons!r}: give 2 to {_LONGEST} letters like '1122', equal for the same neuron."
        )
    _check_estimator(ensemble, neurons, kept, estimator)
    entries = _entries(neurons, inputs, len(ensemble.X))
    # Entries that differ by a symmetry of the pattern share their polynomial and are computed once.
    keys = [canonical(_blocks(neurons, entry)) for entry in entries]
    distinct = {key: expand(neurons, entry) for key, entry in zip(keys, entries, strict=True)}
    moments = sorted({moment for terms in distinct.values() for part in terms for moment in part})
    sums = moment_sums(ensemble, kept, moments, estimator)
    value, error = sums.estimate(_evaluator(list(distinct.values()), moments))
    column = {key: index for index, key in enumerate(distinct)}
    columns = [column[key] for key in keys]
    labels = {"neurons": neurons, "estimator": estimator, **ensemble.labels}
    shape = None if inputs is not None else (len(ensemble.X),) * len(neurons)
    return _dataset(value[:, columns], error[:, columns], kept, entries, shape, labels)


def _evaluator(polynomials: list[Terms], moments: list[Moment]) -> Callable[[FloatArray], FloatArray]:
    """The function that turns means of moments (..., moments) into values of polynomials (..., entries)."""
    index = {moment: position for position, moment in enumerate(moments)}
    compiled = [
        [(weight, [index[moment] for moment in part]) for part, weight in terms.items()]
        for terms in polynomials
    ]

    def evaluate(means: FloatArray) -> FloatArray:
        columns = [
            sum(
                (weight * means[..., part].prod(axis=-1) for weight, part in terms),
                np.zeros(means.shape[:-1]),
            )
            for terms in compiled
        ]
        return np.stack(columns, axis=-1)

    return evaluate


def _connected_terms(neurons: str, entry: Inputs, even: bool) -> Terms:
    """Joint cumulant in terms of moments; lower moments that vanish by symmetry are left out.

    A single leg has mean zero. Without skip connections each neuron's law is even by itself.
    """
    terms: Counter[tuple[Moment, ...]] = Counter()
    for partition in set_partitions(len(entry)):
        parts = [
            _blocks("".join(neurons[leg] for leg in legs), tuple(entry[leg] for leg in legs))
            for legs in partition
        ]
        vanishes = any(
            sum(map(len, blocks)) == 1 or (even and any(len(block) % 2 for block in blocks))
            for blocks in parts
        )
        if len(parts) == 1 or not vanishes:
            terms[tuple(sorted(canonical(blocks) for blocks in parts))] += sign_weight(len(parts))
    return dict(terms)


def _blocks(neurons: str, entry: Inputs) -> list[list[int]]:
    """Inputs of each neuron of the pattern."""
    blocks: dict[str, list[int]] = {}
    for name, index in zip(neurons, entry, strict=True):
        blocks.setdefault(name, []).append(index)
    return list(blocks.values())


def _check_estimator(ensemble: Ensemble, neurons: str, layers: tuple[int, ...], estimator: str) -> None:
    if estimator not in _ESTIMATORS:
        raise unknown_name("`estimator`", estimator, _ESTIMATORS)
    if estimator == "neurons":
        needed = len(set(neurons))
        for layer in layers:
            if ensemble.mlp.widths[layer] < needed:
                raise InputError(
                    f"pattern {neurons!r} needs {needed} neurons but layer {layer} has "
                    f"{ensemble.mlp.widths[layer]}: leave the layer out or use `estimator='wick'`."
                )
    elif ensemble.law != "gaussian" or any(ensemble.mlp.gamma[layer - 1] for layer in layers):
        raise InputError(
            "estimator 'wick' needs Gaussian parameters and layers without a skip connection: "
            "use `estimator='neurons'`."
        )


def _entries(neurons: str, inputs: Sequence[Sequence[int]] | None, count: int) -> list[Inputs]:
    legs = len(neurons)
    if inputs is None:
        if count**legs > _MOST_ENTRIES:
            raise InputError(
                f"{count} inputs give {count**legs:,} entries: list the wanted ones in `inputs=`."
            )
        return list(product(range(count), repeat=legs))
    rows = np.asarray(inputs)
    if rows.ndim != 2 or rows.shape[1] != legs or not len(rows) or not np.issubdtype(rows.dtype, np.integer):
        raise InputError(f"inputs has shape {rows.shape}: give rows of {legs} input numbers, one per leg.")
    if rows.min() < 0 or rows.max() >= count:
        raise InputError(f"inputs names {rows.min()}..{rows.max()}: X has inputs 0 to {count - 1}.")
    return [tuple(int(index) for index in row) for row in rows]


def _dataset(
    value: FloatArray,
    error: FloatArray,
    layers: tuple[int, ...],
    entries: list[Inputs],
    shape: tuple[int, ...] | None,
    labels: dict[str, str | int],
) -> xarray.Dataset:
    """Value and standard error by layer, and by input for a full table or by entry for a list of them."""
    legs = [f"input_{leg + 1}" for leg in range(len(entries[0]))]
    coords: dict[str, Any]
    if shape is None:
        dims = ["layer", "entry"]
        coords = {leg: ("entry", [entry[index] for entry in entries]) for index, leg in enumerate(legs)}
    else:
        dims, coords = ["layer", *legs], {}
        value, error = (array.reshape(len(layers), *shape) for array in (value, error))
    variables = {"value": (dims, value), "standard_error": (dims, error)}
    return labelled(variables, labels, layer=list(layers), **coords)


_NAMES = ("second_moment", "excess_kurtosis", "neuron_correlation")


def diagnose(
    mlp: MLP, X: ArrayLike, draws: int = 10_000, *, law: str = "gaussian", seed: Seed = 0
) -> xarray.Dataset:
    """Departure from a Gaussian with independent neurons, for every layer and input, with standard errors.

    ``second_moment`` is E[z²], ``excess_kurtosis`` is κ_4/κ_2² of one neuron, ``neuron_correlation`` is the
    correlation of z_i² and z_j² of two neurons. ``inverse_width`` is Σ 1/n over the hidden layers before, the
    scale of both; the attribute ``depth_to_width`` is that of the whole network. For Gaussian parameters
    without skip connections the average over each layer's own weights is exact; otherwise it runs over the
    layer's neurons, and a layer with one neuron has no correlation (nan).
    """
    exact = law == "gaussian" and not mlp.is_residual
    method = "conditional" if law == "gaussian" else "weights"
    ensemble = Ensemble(mlp, X, draws, method=method, law=law, seed=seed)
    layers = check_layers(mlp, None)
    estimator = "wick" if exact else "neurons"
    # For each input: z² of one neuron, z⁴ of one neuron, z² z² of two neurons.
    moments: list[Moment] = []
    for a in range(len(ensemble.X)):
        moments += [((a, a),), ((a,) * 4,), ((a, a), (a, a))]
    value, error = moment_sums(ensemble, layers, moments, estimator).estimate(_statistics)
    before = np.concatenate([[0.0], np.cumsum([1.0 / n for n in mlp.hidden_widths])])
    variables = {"inverse_width": ("layer", before)}
    for index, name in enumerate(_NAMES):
        variables[name] = ("layer input", value[..., index])
        variables[f"{name}_standard_error"] = ("layer input", error[..., index])
    notes = {"depth_to_width": mlp.depth_to_width, "estimator": estimator, **ensemble.labels}
    return labelled(variables, notes, layer=list(layers))


def _statistics(means: FloatArray) -> FloatArray:
    second, fourth, pair = np.moveaxis(means.reshape(*means.shape[:-1], -1, 3), -1, 0)
    with np.errstate(invalid="ignore", divide="ignore"):  # a layer that is identically zero has neither
        kurtosis = fourth / second**2 - 3.0
        correlation = (pair - second**2) / (fourth - second**2)
    return np.stack([second, kurtosis, correlation], axis=-1)
