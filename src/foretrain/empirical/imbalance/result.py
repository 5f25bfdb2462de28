"""What is known of all pairs at one moment, labelled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from foretrain.empirical.fields.state import check_rate
from foretrain.empirical.imbalance.identity import PairState
from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    import xarray as xr


class Imbalance:
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

    @property
    def data(self) -> xr.Dataset:
        """All scalars, by pair."""
        import xarray as xr

        states = self._states
        drift = np.array([state.drift() for state in states])
        identity = np.array([state.identity() for state in states])
        resolution = [torch.finfo(state.z.dtype).eps * state.scale() for state in states]
        variables = {
            "delta": [state.delta(self._rates) for state in states],
            "drift": drift,
            "identity": identity,
            "difference": drift - identity,
            "roundoff": resolution,
        }
        return xr.Dataset(
            {name: ("pair", np.asarray(values)) for name, values in variables.items()},
            coords={"pair": self.pairs, "about": ("pair", [_about(state) for state in states])},
            attrs={"meaning": "imbalance of layer norms under gradient flow, identity (2)"},
        )

    def neurons(self, pair: str | int = 0) -> xr.Dataset:
        """The identity neuron by neuron: ‖column of W_{l+1}‖² - ‖row of W_l‖² drifts by 2E[p φ_σ(z)]."""
        import xarray as xr

        values, drift, identity, _ = self._matrices(pair)
        variables = {"delta": values, "drift": drift, "identity": identity, "difference": drift - identity}
        diagonals = {name: ("unit", np.diagonal(matrix).copy()) for name, matrix in variables.items()}
        return xr.Dataset(diagonals, coords={"unit": np.arange(len(values))})

    def matrix(self, pair: str | int = 0) -> xr.Dataset:
        """W_{l+1}ᵀW_{l+1} - W_lW_lᵀ and its drift, measured and by the identity, (unit_1, unit_2).

        The identity is E[(σ'p)zᵀ + z(σ'p)ᵀ - pσᵀ - σpᵀ]. ``printed`` is E[pφᵀ + φpᵀ] of Cor. 12: the two agree on the
        diagonal, and everywhere if σ' is constant, but not else; for ReLU only the diagonal is conserved.
        """
        import xarray as xr

        values, drift, identity, printed = self._matrices(pair)
        variables = {
            "value": values,
            "drift": drift,
            "identity": identity,
            "difference": drift - identity,
            "printed": printed,
        }
        units = np.arange(len(values))
        dims = ("unit_1", "unit_2")
        return xr.Dataset(
            {name: (dims, matrix) for name, matrix in variables.items()}, coords=dict.fromkeys(dims, units)
        )

    def step(self, lr: float) -> xr.Dataset:
        """How a step of gradient descent changes Δ, exactly: lr (η) times the identity, and a part of order η²."""
        import xarray as xr

        check_rate(lr)
        first = [lr * state.identity() for state in self._states]
        second = [lr**2 * state.second_order(self._rates) for state in self._states]
        return xr.Dataset(
            {"first_order": ("pair", first), "second_order": ("pair", second)}, {"pair": self.pairs}
        )

    def __repr__(self) -> str:
        data = self.data
        width = max(len(name) for name in self.pairs) + 2
        lines = [f"Imbalance: {'pair':<{width}}{'delta':>13}{'drift':>13}{'identity':>13}{'difference':>12}"]
        for name in self.pairs:
            row = data.sel(pair=name)
            numbers = (
                f"{float(row['delta']):>13.5g}{float(row['drift']):>13.5g}{float(row['identity']):>13.5g}"
            )
            lines.append(f"           {name:<{width}}{numbers}{float(row['difference']):>12.1e}")
        lines += [f"  no pair: {name}: {reason}" for name, reason in self.refused.items()]
        return "\n".join([*lines, "  ask: .data .neurons(pair) .matrix(pair) .step(lr)"])

    def _matrices(self, pair: str | int) -> tuple[Any, ...]:
        if isinstance(pair, str):
            if pair not in self.pairs:
                raise unknown_name("pair", pair, self.pairs)
            pair = self.pairs.index(pair)
        if not -len(self._states) <= pair < len(self._states):
            raise InputError(f"pair is {pair}: there are pairs 0 to {len(self._states) - 1}.")
        state = self._states[pair]
        found = (
            *state.weight_matrices(self._rates),
            state.matrix_identity(),
            state.printed_matrix_identity(),
        )
        return tuple(matrix.numpy() for matrix in found)


def _about(state: PairState) -> str:
    """Which Δ it is, in words."""
    return " ".join(f"{'+' if sign > 0 else '-'} |{name}|²" for name, sign in state.parts)
