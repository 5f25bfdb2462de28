"""``foretrain.compare`` at initialisation: real random torch networks against the flow, entry by entry."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike

from foretrain.compare.comparison import Comparison
from foretrain.compare.ensembles import Ensemble
from foretrain.compare.initial.measurement import measure, reader_bytes, theory, unit_of
from foretrain.compare.initial.observables import (
    DIFFERENTIAL,
    TANGENT,
    check_observables,
    entries_of,
    refuse_empty,
    refuse_kinks,
)
from foretrain.compare.initial.plan import plan
from foretrain.compare.judging.entries import BatchValues, Entry
from foretrain.compare.judging.ladder import Ladder, scales_of_widths
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, seed_text, spawn
from foretrain.theory.architecture import MLP, FloatArray, check_network


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
    if {*names} & {*TANGENT, *DIFFERENTIAL}:
        refuse_kinks(mlp, inputs)
    multipliers = scales_of_widths(mlp, widths, scales)
    ladder = plan(mlp, len(inputs), draws, multipliers, method, names)
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
    ladder: Ladder,
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
