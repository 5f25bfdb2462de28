"""A student network learns what a random teacher network computes, step by step (Hazelden et al., figure 5).

Both are vanilla networks h(t) = tanh(W h(t-1) + W_in x(t)), y(t) = W_out h(t), without biases. W is ``gain`` times a
random orthogonal matrix, or one with normal entries of variance gain² / units; all other matrices follow Xavier's
rule, variance 2 / (fan_in + fan_out). The student draws the matrices that it trains by itself, times its gain; the
others are those of the teacher, so that the teacher can be reached, unless ``own_untrained`` asks for new ones.

Inputs are white in time and Gaussian in a random subspace of dimension ``input_rank``. Each of its directions has
variance power / input_rank, so that the mean of |x(t)|² is ``power`` for every rank.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor, nn

from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed, spawn, torch_generator

Trainable = Literal["recurrent", "input", "all"]
Draw = Literal["orthogonal", "normal"]
_MATRICES = ("recurrent", "input", "readout")
_TRAINED: dict[str, tuple[str, ...]] = {"recurrent": _MATRICES[:1], "input": _MATRICES[1:2], "all": _MATRICES}
_DRAWS = ("orthogonal", "normal")


class VanillaNetwork(nn.Module):
    """``readout(recurrent(x))`` with a tanh layer: inputs (batch, time, n_in), outputs (batch, time, n_out)."""

    def __init__(self, n_in: int, units: int, n_out: int, *, bias: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.recurrent = nn.RNN(n_in, units, batch_first=True, bias=bias, dtype=dtype)
        self.readout = nn.Linear(units, n_out, bias=bias, dtype=dtype)
        for parameter in self.parameters():
            nn.init.zeros_(parameter)

    @property
    def matrices(self) -> dict[str, Tensor]:
        """W, W_in and W_out by what they do."""
        layer = dict(self.recurrent.named_parameters())
        found = (layer["weight_hh_l0"], layer["weight_ih_l0"], self.readout.weight)
        return dict(zip(_MATRICES, found, strict=True))

    def forward(self, x: Tensor) -> Tensor:
        """The readout of every step."""
        outputs: Tensor = self.readout(self.recurrent(x)[0])
        return outputs


@dataclass(frozen=True)
class StudentTeacher:
    """One teacher with its inputs, and the students that learn from it; ``seed`` is that of all three.

    >>> task = StudentTeacher(input_rank=4, trainable="recurrent", seed=1)
    >>> student = task.student(gain=1.5)
    >>> x, y = task.batch(128, seed=0)          # y is what the teacher answers
    """

    n_in: int = 16
    units: int = 64
    n_out: int = 1
    steps: int = 40
    input_rank: int = 16
    power: float = 1.0
    teacher_gain: float = 1.0
    trainable: Trainable = "recurrent"
    draw: Draw = "orthogonal"
    own_untrained: bool = False
    bias: bool = False  # of the layer and of the readout: zero at first, trained with "input", and with "all"
    seed: int = 0
    dtype: torch.dtype = torch.float64  # float32 gradients of gain 3 are off by percents

    def __post_init__(self) -> None:
        for name in ("n_in", "units", "n_out", "steps"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` is {getattr(self, name)}, but it must be at least 1.")
        if not 1 <= self.input_rank <= self.n_in:
            raise InputError(
                f"input_rank is {self.input_rank}, but inputs of {self.n_in} numbers lie in a subspace of dimension "
                f"1 to {self.n_in}."
            )
        if not 0 < self.power < math.inf:
            raise InputError(f"power is {self.power}, but it must be finite and positive.")
        _require_gain("teacher_gain", self.teacher_gain)
        if self.trainable not in _TRAINED:
            raise unknown_name("set of trained weights", self.trainable, _TRAINED, "trainable")
        if self.draw not in _DRAWS:
            raise unknown_name("`draw` of the recurrent weights", self.draw, _DRAWS)

    @cached_property
    def teacher(self) -> VanillaNetwork:
        """The network that gives the targets; nothing of it is trained."""
        source = torch_generator(self._seeds[0])
        model = self._drawn({"recurrent": self.teacher_gain}, source)
        return model.requires_grad_(False)

    def student(self, gain: float = 1.0) -> VanillaNetwork:
        """A new student: ``gain`` multiplies the matrix that it trains, W if it trains all of them."""
        _require_gain("gain", gain)
        trained = _TRAINED[self.trainable]
        gains = {"recurrent": self.teacher_gain, trained[0]: gain}
        model = self._drawn(gains, torch_generator(self._seeds[1]))
        for name, matrix in model.matrices.items():
            if name not in trained and not self.own_untrained:
                matrix.data.copy_(self.teacher.matrices[name])
        for name, parameter in model.named_parameters():
            is_matrix = any(parameter is model.matrices[which] for which in trained)
            parameter.requires_grad_(is_matrix or ("bias" in name and self.trainable != "recurrent"))
        return model

    @cached_property
    def subspace(self) -> Tensor:
        """An orthonormal basis of the inputs: (n_in, input_rank)."""
        normal = torch.randn(self.n_in, self.input_rank, generator=torch_generator(self._seeds[2]))
        basis: Tensor = torch.linalg.qr(normal.to(self.dtype)).Q
        return basis

    def inputs(self, count: int, seed: Seed) -> Tensor:
        """White Gaussian inputs in the subspace: (count, steps, n_in)."""
        if count < 1:
            raise InputError(f"count is {count}, but a batch needs at least one sample.")
        shape = (count, self.steps, self.input_rank)
        normal = torch.randn(shape, generator=torch_generator(seed), dtype=self.dtype)
        return math.sqrt(self.power / self.input_rank) * normal @ self.subspace.t()

    def batch(self, count: int, seed: Seed) -> tuple[Tensor, Tensor]:
        """Inputs (count, steps, n_in), and what the teacher answers at every step (count, steps, n_out)."""
        x = self.inputs(count, seed)
        with torch.no_grad():
            return x, self.teacher(x)

    @cached_property
    def _seeds(self) -> tuple[Seed, ...]:
        return spawn(self.seed, 3)

    def _drawn(self, gains: dict[str, float], source: torch.Generator) -> VanillaNetwork:
        """A network with new matrices, times their gains."""
        model = VanillaNetwork(self.n_in, self.units, self.n_out, bias=self.bias, dtype=self.dtype)
        for name, matrix in model.matrices.items():
            drawn = torch.empty_like(matrix, requires_grad=False)
            if name != "recurrent":
                nn.init.xavier_normal_(drawn, generator=source)
            elif self.draw == "normal":
                drawn.normal_(std=1 / math.sqrt(self.units), generator=source)
            else:
                nn.init.orthogonal_(drawn, generator=source)
            matrix.data.copy_(gains.get(name, 1.0) * drawn)
        return model


def _require_gain(name: str, gain: float) -> None:
    if not 0 <= gain < math.inf:
        raise InputError(f"`{name}` is {gain}, but it must be finite and not negative.")
