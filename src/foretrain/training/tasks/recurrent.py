"""A recurrent layer of torch with a linear readout, as the tasks train it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor, nn

from foretrain.support.errors import unknown_name
from foretrain.support.seeds import Seed, torch_generator

Cell = Literal["gru", "rnn", "lstm"]
_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"gru": nn.GRU, "rnn": nn.RNN, "lstm": nn.LSTM}


class Recurrent(nn.Module):
    """``readout(recurrent(x))`` for inputs (batch, time, n_in): outputs (batch, time, n_out).

    Matrices are drawn by Xavier's rule, each gate by itself; the gain is that of the recurrent ones; biases are zero.
    """

    def __init__(
        self,
        n_in: int,
        units: int,
        n_out: int,
        cell: Cell = "gru",
        *,
        gain: float = 1.0,
        seed: Seed = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if cell not in _CELLS:
            raise unknown_name("`cell`", cell, _CELLS)
        self.recurrent = _CELLS[cell](n_in, units, batch_first=True, dtype=dtype)
        self.readout = nn.Linear(units, n_out, dtype=dtype)
        xavier(self, gain=gain, seed=seed)

    def forward(self, x: Tensor) -> Tensor:
        """The readout of every step."""
        states, _ = self.recurrent(x)
        found: Tensor = self.readout(states)
        return found


def xavier(model: Recurrent, *, gain: float = 1.0, seed: Seed = 0) -> None:
    """Draw all matrices anew: variance 2 gain² / (fan_in + fan_out), the gain for recurrent ones; biases zero."""
    source = torch_generator(seed)
    units = model.recurrent.hidden_size
    for name, parameter in model.recurrent.named_parameters():
        if parameter.dim() < 2:
            nn.init.zeros_(parameter)
            continue
        for gate in torch.split(parameter.data, units):
            drawn = torch.empty(gate.shape, dtype=gate.dtype)
            own = gain if name.startswith("weight_hh") else 1.0
            gate.copy_(nn.init.xavier_normal_(drawn, gain=own, generator=source))
    drawn = torch.empty(model.readout.weight.shape, dtype=model.readout.weight.dtype)
    with torch.no_grad():
        model.readout.weight.copy_(nn.init.xavier_normal_(drawn, generator=source))
        nn.init.zeros_(model.readout.bias)
