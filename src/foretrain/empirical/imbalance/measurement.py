"""The imbalance of a model at one moment, as an observable of a training, and over steps of descent."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.empirical.fields.state import check_rate
from foretrain.empirical.imbalance.pairs import (
    Loss,
    Pair,
    PairState,
    find_pairs,
    network,
    pair_states,
)
from foretrain.support.answers import Answer, Figure, Result, dataset_table, labelled, names_axis
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.progress import track
from foretrain.support.threads import on_free_cores

if TYPE_CHECKING:
    import xarray as xr


class Imbalance(Result):
    """The imbalance of every pair of layers, its drift as measured and by the identity.

    ``data`` (pair): ``delta``; ``drift`` from weights and gradients; ``identity``, the right side of (2); their
    ``difference``, and ``roundoff``, the size below which a difference means nothing. ``refused`` says for all other
    layers why they form no pair with the one below.
    """

    def __init__(
        self, states: Sequence[PairState], rates: Mapping[str, float], refused: Mapping[str, str]
    ) -> None:
        self.refused = dict(refused)
        self._states, self._rates = list(states), dict(rates)

    @property
    def pairs(self) -> list[str]:
        """The names of the pairs, from below to above."""
        return [state.name for state in self._states]

    @cached_property
    def data(self) -> xr.Dataset:
        """All scalars, by pair."""
        states = self._states
        # Which Δ it is, in words.
        about = [
            " ".join(f"{'+' if sign > 0 else '-'} |{name}|²" for name, sign in state.parts)
            for state in states
        ]
        drift = np.array([state.drift() for state in states])
        identity = np.array([state.identity() for state in states])
        variables = {
            "delta": [state.delta(self._rates) for state in states],
            "drift": drift,
            "identity": identity,
            "difference": drift - identity,
            "roundoff": [torch.finfo(state.z.dtype).eps * state.scale() for state in states],
        }
        return labelled(
            {name: ("pair", values) for name, values in variables.items()},
            {"meaning": "imbalance of layer norms under gradient flow, identity (2)"},
            pair=self.pairs,
            about=("pair", about),
        )

    def neurons(self, pair: str | int = 0) -> xr.Dataset:
        """The identity neuron by neuron: ‖column of W_{l+1}‖² - ‖row of W_l‖² drifts by 2E[p φ_σ(z)]."""
        found = self._matrices(pair)
        del found["printed"]
        found["delta"] = found.pop("value")
        diagonals = {name: ("unit", np.diagonal(matrix).copy()) for name, matrix in found.items()}
        return labelled(diagonals, unit=np.arange(len(found["delta"])))

    def matrix(self, pair: str | int = 0) -> xr.Dataset:
        """W_{l+1}ᵀW_{l+1} - W_lW_lᵀ and its drift, measured and by the identity, (unit_1, unit_2).

        The identity is E[(σ'p)zᵀ + z(σ'p)ᵀ - pσᵀ - σpᵀ]. ``printed`` is E[pφᵀ + φpᵀ] of Cor. 12: the two agree on the
        diagonal, and everywhere if σ' is constant, but not else; for ReLU only the diagonal is conserved.
        """
        found = self._matrices(pair)
        units = np.arange(len(found["value"]))
        variables = {name: ("unit_1 unit_2", matrix) for name, matrix in found.items()}
        return labelled(variables, unit_1=units, unit_2=units)

    def step(self, lr: float) -> xr.Dataset:
        """How a step of gradient descent changes Δ, exactly: lr (η) times the identity, and a part of order η²."""
        check_rate(lr)
        first = [lr * state.identity() for state in self._states]
        second = [lr**2 * state.second_order(self._rates) for state in self._states]
        return labelled({"first_order": ("pair", first), "second_order": ("pair", second)}, pair=self.pairs)

    def answer(self) -> Answer:
        """Every pair with its imbalance and drift, and why other layers form none."""
        largest = float(abs(self.data["difference"]).max())
        statement = (
            f"Imbalance of {len(self.pairs)} pairs of layers: the drift differs from the identity by at most "
            f"{largest:.1e}. Ask .neurons(pair), .matrix(pair), .step(lr)."
        )
        table = dataset_table(self.data, "pair", ["delta", "drift", "identity", "difference"])
        refused = "\n".join(f"no pair: {name}: {reason}" for name, reason in self.refused.items())
        return Answer(statement, [table, *([refused] if refused else []), self._figure], self.data)

    def _figure(self) -> Figure:
        figure = Figure("Imbalance of neighbouring layers", columns=2)
        for title, names in (("Imbalance", ["delta"]), ("Its drift", ["drift", "identity"])):
            panel = figure.panel(title, y=names_axis(self.pairs, reverse=True), legend="below")
            for number, name in enumerate(names):
                at = np.arange(len(self.pairs)) + 0.4 * (number - (len(names) - 1) / 2)
                label = name if len(names) > 1 else ""
                panel.bars(at, self.data[name].values, label, width=0.8 / len(names), horizontal=True)
        return figure

    def _matrices(self, pair: str | int) -> dict[str, Any]:
        if isinstance(pair, str):
            if pair not in self.pairs:
                raise unknown_name("`pair`", pair, self.pairs)
            pair = self.pairs.index(pair)
        if not -len(self._states) <= pair < len(self._states):
            raise InputError(f"pair is {pair}: there are pairs 0 to {len(self._states) - 1}.")
        state = self._states[pair]
        value, drift = (matrix.numpy() for matrix in state.weight_matrices(self._rates))
        identity, printed = (matrix.numpy() for matrix in state.matrix_identities())
        found = {"value": value, "drift": drift, "identity": identity, "difference": drift - identity}
        return found | {"printed": printed}


@on_free_cores()
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
    rows: list[
        list[list[float]]
    ] = []  # by step: Δ before and after it, and both orders of its change, of all pairs
    for batch in track(batches, "training steps"):
        found = network(moved, *_inputs_and_targets(batch), loss, None)
        if pairs is None:
            pairs, _ = _chosen(*find_pairs(found), None)
        states = pair_states(found, pairs)
        given = _rates(states, rates, found.parameters)
        before = [state.delta(given) for state in states]
        first = [lr * state.identity() for state in states]
        second = [lr**2 * state.second_order(given) for state in states]
        with torch.no_grad():
            for name, gradient in states[0].gradients.items():
                found.parameters[name].sub_(lr * given[name] * gradient)
            after = [replace(state, values=found.parameters).delta(given) for state in states]
        rows.append([before, after, first, second])
    if pairs is None:
        raise InputError("there are no batches: give at least one (x, y).")
    table = np.array(rows)  # (step, what, pair)
    start = table[0, 0]
    delta = np.vstack([start, table[:, 1]])
    first_order, second_order = (np.vstack([0 * start, np.cumsum(table[:, i], axis=0)]) for i in (2, 3))
    variables = {
        "delta": delta,
        "change": delta - start,
        "first_order": first_order,
        "second_order": second_order,
        "difference": delta - start - first_order - second_order,
    }
    by_pair = {name: ("step pair", values) for name, values in variables.items()}
    return labelled(by_pair, {"lr": lr}, step=np.arange(len(delta)), pair=[pair.name for pair in pairs])


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
