"""``foretrain.compare`` at initialisation: real random torch networks against the flow, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.comparison import Comparison
from foretrain.compare.ensembles import METHODS, Ensemble
from foretrain.compare.initial.measurement import measure, reader_bytes, theory, unit_of
from foretrain.compare.initial.observables import (
    check_observables,
    entries_of,
    refuse_empty,
    refuse_kinks,
)
from foretrain.compare.judging import ladder as ladders
from foretrain.compare.judging.entries import BatchValues, Entry
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.seeds import Seed, seed_text, spawn
from foretrain.theory.architecture import MLP, FloatArray, check_network
from foretrain.theory.tensors import DIFFERENTIALS, TANGENT

_BATCHES = 1000
_FEWEST_BATCHES = 50
_TANGENT_WIDTH_OVER_DEPTH = 4.0  # carrying NTKs costs n³: as narrow as a quadratic in 1/n can be trusted
_MOST_NUMBERS = 1e10  # random numbers beyond which weights are not drawn one by one unless asked for


def compare_initial(
    mlp: MLP,
    X: ArrayLike,
    observables: Sequence[str] | None = None,
    draws: int = 20_000,
    *,
    widths: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    method: str = "auto",
    estimator: str = "metric",
    seed: Seed = 0,
) -> Comparison:
    """Draw random torch networks of several widths and compare their statistics with the flow.

    Parameters
    ----------
    X
        Inputs (N, n_in); V, D, F, A, B and P to U need N ≤ 4, because their full tensors are compared.
    observables
        Any of ``K``, ``V``, ``G1`` (or ``kurtosis``, with estimator "neurons"), and for residual networks ``K``,
        ``V``, ``three_point``. By default all of these that the network, the estimator and the number of inputs
        allow. Statistics of the NTK and of its differentials are compared only if named, of networks without skip
        connections, with every weight drawn: ``Theta``, ``H1``, ``D``, ``F``, ``A``, ``B`` at a cost of n³ per layer,
        ``P``, ``Q`` (dNTK) and ``R``, ``S``, ``T``, ``U`` (ddNTKs) at about 400 n². Kinks count as automatic
        derivatives see them, with no second derivative.
    draws
        Networks per width, on average; they are shared out so that the limit is as sharp as their time allows.
    widths, scales
        Hidden widths to draw, or multipliers of the network's own, at least three; by default (1/4, 1/2, 1),
        (1/2, 1, 2) or (1, 2, 4) times the own ones, the narrowest at least six times as wide as the network is deep
        if possible (four times for the NTK).
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
    names = check_observables(mlp, len(inputs), observables, estimator)
    if {*names} & {*TANGENT, *DIFFERENTIALS}:
        refuse_kinks(mlp, inputs)
    multipliers = ladders.scales_of_widths(mlp, widths, scales)
    ladder = _plan(mlp, len(inputs), draws, multipliers, method, names)
    ladder.warn_if_too_deep()
    predicted = theory(mlp, inputs, names)
    # All but those of the vertex in layers of one neuron, if two of them would have to be read.
    entries = [
        entry
        for name in names
        for entry in entries_of(name, mlp, len(inputs))
        if not (estimator == "neurons" and name == "V" and mlp.widths[entry.layer] < 2)
    ]
    if observables is not None:
        refuse_empty(mlp, names, entries)
    return Comparison(
        mlp,
        tuple(entries),
        ladder,
        estimator,
        seed_text(seed),
        np.array([predicted[e.observable][(e.layer - 1, *e.inputs)] for e in entries]),
        _units(predicted, names, entries),
        _measured(ladder, inputs, names, predicted, estimator, entries, seed),
    )


def _plan(
    mlp: MLP, inputs: int, draws: int, scales: Sequence[float] | None, method: str, names: Sequence[str]
) -> ladders.Ladder:
    """Widths and draws for the observables asked for; NTKs and their differentials are carried by weights."""
    tangent = bool({*names} & {*TANGENT})
    carried = tangent or bool({*names} & {*DIFFERENTIALS})
    narrow = tangent and not {*names} & {*DIFFERENTIALS}
    rungs = ladders.rungs_of(mlp, scales, _TANGENT_WIDTH_OVER_DEPTH if narrow else ladders.WIDTH_OVER_DEPTH)
    if method not in ("auto", *METHODS):
        raise unknown_name("sampling `method`", str(method), ("auto", *METHODS))
    if carried and method == "conditional":
        raise NotSupportedError("the NTK is carried by weights: use `method='weights'`.")
    whole_number("draws", draws, least=10 * _FEWEST_BATCHES)
    allowed = (method,) if method != "auto" else ("weights",) if carried else METHODS
    for chosen in allowed:
        # Random numbers of one network, up to the last hidden layer.
        numbers = [
            inputs * sum(network.hidden_widths)
            if chosen == "conditional"
            else sum(n * fan_in for fan_in, n in pairwise(network.widths[:-1]))
            for network in rungs.networks
        ]
        costs = np.array(numbers, dtype=float)
        if tangent:  # products of matrices n × n take the time
            costs *= [max(network.hidden_widths) for network in rungs.networks]
        shares = ladders.share_draws(rungs.inverse, costs, int(draws))
        if np.dot(numbers, shares) <= _MOST_NUMBERS:
            break
    batches = max(_FEWEST_BATCHES, min(_BATCHES, min(shares) // 4))
    return ladders.Ladder(*rungs, ladders.rounded_up(shares, batches), chosen, batches)


def _units(predicted: dict[str, FloatArray], names: Sequence[str], entries: Sequence[Entry]) -> FloatArray:
    """Natural sizes of the entries, not all zero."""
    units = np.array([unit_of(predicted, entry) for entry in entries])
    if not units.any():
        raise InputError(
            f"there is nothing to compare, since {', '.join(names)} is zero in theory and in every network: give "
            "inputs that are not zero and positive variances and learning rates."
        )
    return units


def _measured(
    ladder: ladders.Ladder,
    inputs: FloatArray,
    names: Sequence[str],
    predicted: dict[str, FloatArray],
    estimator: str,
    entries: list[Entry],
    seed: Seed,
) -> tuple[BatchValues, ...]:
    """Batch values of all entries, width by width."""
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
            reader_bytes(network, len(inputs), names),
        )
        found.append(measure(ensemble, predicted, estimator, entries))
    return tuple(found)
