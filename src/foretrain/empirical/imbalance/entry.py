"""The imbalance of a model at one moment, as an observable of a training, and over steps of descent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.empirical.fields.state import check_rate
from foretrain.empirical.imbalance.identity import PairState, pair_states
from foretrain.empirical.imbalance.pairs import Loss, Network, Pair, find_pairs, network
from foretrain.empirical.imbalance.result import Imbalance
from foretrain.support.answers import labelled
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.progress import track

if TYPE_CHECKING:
    import xarray as xr


def imbalance(
    model: nn.Module | Callable[..., Any],
    x: Any,
    y: Any,
    loss: Loss,
    rates: Mapping[str, float] | None = None,
    *,
    pairs: Sequence[tuple[str, str]] | None = None,
    parameters: Mapping[str, Tensor] | None = None,
) -> Imbalance:
    """Δ = ‖W_{l+1}‖² - ‖W_l‖² of neighbouring layers, and its drift under gradient flow, measured and by (2).

    Parameters
    ----------
    model
        Any module, or with ``parameters`` a function of (parameters, x). Pairs are two linear maps or convolutions
        with nothing but an elementwise activation (any) and a reshape between them, and no other way out of the
        first; all other layers are listed in ``refused`` with the reason.
    loss
        loss(model(x), y), one number; any.
    rates
        ρ by parameter name for Ẇ = -ρ∇, one if not named; a bias that is not named takes the rate of its weight. Then
        Δ = ‖W_{l+1}‖²/ρ_{l+1} - ‖W_l‖²/ρ_l, and the drift is the same (A.2).
    pairs
        (lower weight, upper weight) by name, to insist on some; one that is no pair is an error that says why.

    A bias of the lower layer that learns belongs to Δ, as one more column of W_l; one of the upper layer does not
    matter. With a frozen bias b the identity holds for φ = (z - b)σ'(z) - σ(z).

    Examples
    --------
    >>> model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 1)).double()
    >>> x = torch.randn(20, 3, dtype=torch.float64)
    >>> found = imbalance(model, x, x[:, :1], nn.functional.mse_loss)
    >>> bool(abs(found.data["difference"][0]) < 1e-12)
    True
    """
    found = network(model, x, y, loss, parameters)
    chosen, refused = _chosen(*find_pairs(found), pairs)
    states = pair_states(found, chosen)
    return Imbalance(states, _rates(states, rates, found.parameters), refused)


def observe_imbalance(model: nn.Module, batch: Any, *, loss: Loss) -> xr.Dataset:
    """Δ, drift and identity of all pairs on a batch (x, y): an observable for a recorder of trainings."""
    x, y = _inputs_and_targets(batch)
    return imbalance(model, x, y, loss).data[["delta", "drift", "identity"]]


def record_imbalance(
    model: nn.Module,
    batches: Iterable[tuple[Any, Any]],
    loss: Loss,
    lr: float,
    rates: Mapping[str, float] | None = None,
) -> xr.Dataset:
    """Descend with a copy of the model, one step of ``lr`` (η) for each batch, and hold every Δ against the identity.

    By (step, pair): ``delta``; ``change`` since the start, as measured; ``first_order``, the sum of η times the
    identity; ``second_order``, the sum of η²(ρ_{l+1}‖∇_{l+1}‖² - ρ_l‖∇_l‖²); ``difference``, what is left: round-off.
    """
    check_rate(lr)
    moved = copy.deepcopy(model)
    pairs: list[Pair] | None = None
    rows: list[dict[str, list[float]]] = []
    for batch in track(batches, "training steps"):
        found = network(moved, *_inputs_and_targets(batch), loss, None)
        if pairs is None:
            pairs, _ = _chosen(*find_pairs(found), None)
        rows.append(_descended(found, pairs, lr, rates))
    if pairs is None:
        raise InputError("there are no batches: give at least one (x, y).")
    return _over_steps(rows, [pair.name for pair in pairs], lr)


def _descended(
    found: Network, pairs: Sequence[Pair], lr: float, rates: Mapping[str, float] | None
) -> dict[str, list[float]]:
    """One step of descent: Δ of all pairs before and after it, and what the identity says of its change."""
    states = pair_states(found, pairs)
    given = _rates(states, rates, found.parameters)
    before = [state.delta(given) for state in states]
    first = [lr * state.identity() for state in states]
    second = [lr**2 * state.second_order(given) for state in states]
    with torch.no_grad():
        for name, gradient in states[0].gradients.items():
            found.parameters[name].sub_(lr * given[name] * gradient)
        after = [replace(state, values=found.parameters).delta(given) for state in states]
    return {"before": before, "delta": after, "first_order": first, "second_order": second}


def _over_steps(rows: Sequence[Mapping[str, list[float]]], names: list[str], lr: float) -> xr.Dataset:
    start = np.array(rows[0]["before"])
    delta = np.vstack([start, [row["delta"] for row in rows]])
    sums = {
        name: np.vstack([0 * start, np.cumsum([row[name] for row in rows], axis=0)])
        for name in ("first_order", "second_order")
    }
    change = delta - start
    difference = change - sums["first_order"] - sums["second_order"]
    variables = {"delta": delta, "change": change, **sums, "difference": difference}
    by_pair = {name: ("step pair", values) for name, values in variables.items()}
    return labelled(by_pair, {"lr": lr}, step=np.arange(len(delta)), pair=names)


def _chosen(
    found: list[Pair], refused: dict[str, str], asked: Sequence[tuple[str, str]] | None
) -> tuple[list[Pair], dict[str, str]]:
    if asked is not None:
        by_name = {pair.name: pair for pair in found}
        for lower, upper in asked:
            if f"{lower} -> {upper}" not in by_name:
                reason = refused.get(upper, f"{upper} is not a layer that takes the output of {lower}")
                raise NotSupportedError(f"{lower} and {upper} are no pair of the identity: {reason}.")
        return [by_name[f"{lower} -> {upper}"] for lower, upper in asked], refused
    if not found:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
        raise NotSupportedError(f"no two layers of the model form a pair of the identity ({reasons}).")
    return found, refused


def _rates(
    states: Sequence[PairState], rates: Mapping[str, float] | None, parameters: Mapping[str, Tensor]
) -> dict[str, float]:
    given = dict(rates or {})
    unknown = sorted(set(given) - set(parameters))
    if unknown or any(not rate > 0 for rate in given.values()):
        raise InputError(
            f"`rates` must be positive and named after parameters{': unknown ' + str(unknown) if unknown else ''}."
        )
    known = {name: float(given.get(name, 1.0)) for name in parameters}
    for state in states:
        for site in (state.lower, state.upper):
            if site.bias is not None and site.bias not in given:
                known[site.bias] = known[site.weight]
    return known


def _inputs_and_targets(batch: Any) -> tuple[Any, Any]:
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise InputError("a batch must be a pair (x, y) of inputs and targets.")
    return batch[0], batch[1]
