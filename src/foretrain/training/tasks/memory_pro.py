"""Memory-Pro: remember an angle through a delay, then answer with it (Hazelden et al., section 4 and figure 3).

Inputs are (cos θ, sin θ, fixation): the angle is shown in the stimulus period only, the fixation is 1 until the
response. Outputs are (cos θ, sin θ, fixation) too: the fixation is repeated, the angle is asked for in the response.
Seen as a matrix (batch * time, outputs), the targets of evenly spread angles have three modes: the fixation, and
the two coordinates of the angle with equal singular values.

``Recurrent`` is a recurrent layer of torch with a linear readout, as the tasks train it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed, generator, torch_generator

Cell = Literal["gru", "rnn", "lstm"]
_CELLS: dict[str, Callable[..., nn.RNNBase]] = {"gru": nn.GRU, "rnn": nn.RNN, "lstm": nn.LSTM}


@dataclass(frozen=True)
class MemoryPro:
    """The task: lengths of its three periods in steps, and the variance of the noise on every input."""

    stimulus: int = 30
    memory: int = 30
    response: int = 30
    noise_variance: float = 0.0

    def __post_init__(self) -> None:
        for name, least in (("stimulus", 1), ("memory", 0), ("response", 1)):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), least))
        if not 0 <= self.noise_variance < math.inf:
            raise InputError(
                f"noise_variance is {self.noise_variance}, but it must be finite and not negative."
            )

    @property
    def steps(self) -> int:
        """Length of a trial."""
        return self.stimulus + self.memory + self.response

    @property
    def periods(self) -> dict[str, slice]:
        """The steps of each period, by name."""
        start = self.stimulus + self.memory
        return {
            "stimulus": slice(0, self.stimulus),
            "memory": slice(self.stimulus, start),
            "response": slice(start, self.steps),
        }

    def angles(self, count: int, seed: Seed | None = None) -> Tensor:
        """Angles spread evenly over the circle, or drawn from it if there is a seed."""
        if count < 1:
            raise InputError(f"count is {count}, but a batch needs at least one angle.")
        if seed is None:
            return 2 * math.pi * torch.arange(count, dtype=torch.float64) / count
        drawn = torch.rand(count, dtype=torch.float64, generator=torch_generator(seed))
        return 2 * math.pi * drawn

    def inputs(self, angles: Tensor, seed: Seed = 0, dtype: torch.dtype = torch.float32) -> Tensor:
        """What the network sees: (batch, time, 3); the seed is that of the noise."""
        angles = _checked(angles)
        x = torch.zeros(len(angles), self.steps, 3, dtype=dtype)
        x[:, self.periods["stimulus"], :2] = _coordinates(angles, dtype)
        x[:, : self.periods["response"].start, 2] = 1
        if self.noise_variance:
            noise = torch.randn(x.shape, dtype=dtype, generator=torch_generator(seed))
            x += math.sqrt(self.noise_variance) * noise
        return x

    def targets(self, angles: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """What it should answer: (batch, time, 3)."""
        angles = _checked(angles)
        y = torch.zeros(len(angles), self.steps, 3, dtype=dtype)
        y[:, self.periods["response"], :2] = _coordinates(angles, dtype)
        y[:, : self.periods["response"].start, 2] = 1
        return y

    def batch(self, count: int, seed: Seed, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Inputs with their noise, and targets, of random angles."""
        drawn = generator(seed).integers(2**63, size=2, dtype=np.uint64)
        which, noise = (np.random.SeedSequence(int(entropy)) for entropy in drawn)
        angles = self.angles(count, which)
        return self.inputs(angles, noise, dtype), self.targets(angles, dtype)


def _checked(angles: Tensor) -> Tensor:
    """One number for every trial; also a list of them, or an array."""
    found = torch.as_tensor(angles)
    if found.ndim != 1:
        raise InputError(f"angles have shape {tuple(found.shape)}: give one angle for every trial, (batch,).")
    return found if found.is_floating_point() else found.double()


def _coordinates(angles: Tensor, dtype: torch.dtype) -> Tensor:
    """(cos θ, sin θ) for every angle, ready to be spread over time: (batch, 1, 2)."""
    return torch.stack([angles.cos(), angles.sin()], dim=1)[:, None].to(dtype)


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
