"""What is known of all pairs at one moment, labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foretrain.empirical.fields.state import check_rate
from foretrain.empirical.imbalance.identity import PairState
from foretrain.support.answers import Answer, Figure, Result, dataset_table, labelled, names_axis
from foretrain.support.errors import InputError, unknown_name

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
            about=("pair", [_about(state) for state in states]),
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
        identity, printed = state.matrix_identity().numpy(), state.printed_matrix_identity().numpy()
        found = {"value": value, "drift": drift, "identity": identity, "difference": drift - identity}
        return found | {"printed": printed}


def _about(state: PairState) -> str:
    """Which Δ it is, in words."""
    return " ".join(f"{'+' if sign > 0 else '-'} |{name}|²" for name, sign in state.parts)
