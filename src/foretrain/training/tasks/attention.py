"""One attention block with an MLP, with or without random features before it, and Gaussian sequences for it.

Hazelden et al., section A.5.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, torch_generator

_BLUR = 1 / 16  # of a turn: how far the rounding of an input may shift the phase of its finest wave


class FourierFeatures(nn.Module):
    """x to sqrt(2) (sin 2 pi f x, cos 2 pi f x) for frequencies f (n_in, count): 2 count features of unit power."""

    frequencies: Tensor

    def __init__(self, frequencies: Tensor) -> None:
        super().__init__()
        if frequencies.ndim != 2 or not frequencies.numel():
            raise InputError(
                f"frequencies have shape {tuple(frequencies.shape)}, but must be a matrix (n_in, count)."
            )
        self.register_buffer("frequencies", frequencies.double())
        self._finest = float(frequencies.abs().max())

    @classmethod
    def random(cls, n_in: int, count: int, scale: float, seed: Seed = 0) -> FourierFeatures:
        """Normal frequencies with this standard deviation in waves per unit."""
        drawn = torch.randn(n_in, count, dtype=torch.float64, generator=torch_generator(seed))
        return cls(scale * drawn)

    @classmethod
    def dyadic(cls, n_in: int, octaves: int, scale: float = 1.0) -> FourierFeatures:
        """Frequencies scale, 2 scale, 4 scale, ... along every coordinate alone: n_in * octaves of them."""
        powers = scale * 2.0 ** torch.arange(octaves, dtype=torch.float64)
        return cls(torch.kron(torch.eye(n_in, dtype=torch.float64), powers[None]))

    @property
    def count(self) -> int:
        """Number of features."""
        return 2 * self.frequencies.shape[1]

    def forward(self, x: Tensor) -> Tensor:
        """(..., n_in) to (..., count); phases in float64, because they are large."""
        if not self._finest * torch.finfo(x.dtype).eps <= _BLUR:
            raise InputError(
                f"a frequency of {self._finest:.3g} turns the rounding of {x.dtype} inputs into noise: use fewer "
                "octaves, a smaller scale, or float64."
            )
        if x.shape[-1:] != self.frequencies.shape[:1]:
            raise InputError(
                f"x has shape {tuple(x.shape)}, but these features are of {self.frequencies.shape[0]} numbers: "
                "give them along the last axis."
            )
        phases = 2 * math.pi * x.double() @ self.frequencies
        return math.sqrt(2) * torch.cat([phases.sin(), phases.cos()], -1).to(x.dtype)


class AttentionBlock(nn.Module):
    """Self-attention of a sequence, then an MLP at every step and a linear readout: (batch, time, n_in) to n_out.

    Queries, keys and values are products with the input itself; no biases, skips, norms, masks or positions, so that
    the weight sites are (X, X, X, A, O, H_1, ...) of section A.5, with O = A W_O. Weights are uniform within
    1 / sqrt(fan_in), torch's rule. ``features`` come before everything and are not trained.
    """

    def __init__(
        self,
        n_in: int,
        *,
        attention: int = 64,
        heads: int = 1,
        hidden: Sequence[int] = (128, 128, 128),
        n_out: int = 1,
        features: FourierFeatures | None = None,
        seed: Seed = 0,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        if heads < 1 or attention % heads:
            raise InputError(
                f"attention of {attention} units cannot be split into {heads} heads: choose a divisor."
            )
        self.heads = heads
        self.features = features
        given = n_in if features is None else features.count

        def linear(fan_in: int, fan_out: int) -> nn.Linear:
            return nn.Linear(fan_in, fan_out, bias=False, dtype=dtype)

        self.query, self.key, self.value = (linear(given, attention) for _ in range(3))
        self.mix = linear(attention, attention)
        widths = (attention, *hidden)
        self.hidden = nn.ModuleList(linear(before, after) for before, after in pairwise(widths))
        self.readout = linear(widths[-1], n_out)
        source = torch_generator(seed)
        with torch.no_grad():
            for parameter in self.parameters():  # in the order in which they are used
                drawn = torch.rand(parameter.shape, dtype=torch.float64, generator=source)
                parameter.copy_(parameter.shape[1] ** -0.5 * (2 * drawn - 1))

    def states(self, x: Tensor) -> dict[str, Tensor]:
        """Every internal variable that has a value at each step, (batch, time, units), in order of computation."""
        given = x if self.features is None else self.features(x)
        found = {"query": self.query(given), "key": self.key(given), "value": self.value(given)}
        # softmax(q k* / sqrt(units of a head)) v, head by head; the fused kernel of torch has no second derivatives.
        by_head = (*x.shape[:2], self.heads, -1)
        q, k, v = (part.reshape(by_head).transpose(1, 2) for part in found.values())
        weights = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1]), -1)
        found["attention"] = (weights @ v).transpose(1, 2).flatten(-2)
        found["mix"] = signal = self.mix(found["attention"])
        for place, layer in enumerate(self.hidden, start=1):
            found[f"hidden {place}"] = signal = nn.functional.gelu(layer(signal))
        found["output"] = self.readout(signal)
        return found

    def forward(self, x: Tensor) -> Tensor:
        """The readout of every step."""
        return self.states(x)["output"]


class GlobalState(nn.Module):
    """A block that returns its states side by side, (batch, time, units): the h of the global-state NTK.

    ``names`` chooses some of them; by default it is all. Weights of the attention have two times and are left out:
    they are functions of the queries and keys at hand.
    """

    def __init__(self, block: AttentionBlock, names: Sequence[str] | None = None) -> None:
        super().__init__()
        self.block, self.names = block, None if names is None else tuple(names)

    def forward(self, x: Tensor) -> Tensor:
        """All chosen states as one tensor."""
        found = self.block.states(x)
        return torch.cat([found[name] for name in self.names or found], -1)


@dataclass(frozen=True)
class GaussianSequences:
    """The task: size of a step, number of steps, and the teacher's waves with their typical frequency.

    Inputs are independent standard normals (batch, time, n_in). The source (figures 6, 9, 10) measures at
    initialization and leaves the target open; here it is one number per sequence, asked for at every step: the mean
    over the steps of a random smooth function of the input, a sum of waves. The block has no notion of order, and
    neither has this target.
    """

    n_in: int
    steps: int = 50
    waves: int = 8
    frequency: float = 0.5
    teacher: int = 0  # the seed of the waves

    def __post_init__(self) -> None:
        for name in ("n_in", "steps", "waves"):
            if getattr(self, name) < 1:
                raise InputError(f"`{name}` is {getattr(self, name)}, but it must be a number from 1 on.")
        if not 0 < self.frequency < math.inf:
            raise InputError(f"frequency is {self.frequency}, but it must be positive and finite.")

    def inputs(self, count: int, seed: Seed, dtype: torch.dtype = torch.float32) -> Tensor:
        """(batch, time, n_in); the same seed gives the same numbers in every precision."""
        if count < 1:
            raise InputError(f"count is {count}, but a batch needs at least one sequence.")
        drawn = torch.randn(
            count, self.steps, self.n_in, dtype=torch.float64, generator=torch_generator(seed)
        )
        return drawn.to(dtype)

    def targets(self, x: Tensor) -> Tensor:
        """(batch, time, 1): sqrt(2 / waves) sum_j (sum_t cos(2 pi f_j x_t + phi_j)) / sqrt(time), less its mean."""
        source = torch_generator(self.teacher)
        f = torch.randn(self.n_in, self.waves, dtype=torch.float64, generator=source) * self.frequency
        phases = 2 * math.pi * torch.rand(self.waves, dtype=torch.float64, generator=source)
        waves = torch.cos(2 * math.pi * x.double() @ f + phases)
        expected = torch.exp(-2 * (math.pi * f).square().sum(0)) * torch.cos(phases)  # over normal inputs
        answer = (waves - expected).sum(1, keepdim=True).sum(2, keepdim=True)
        answer = answer * math.sqrt(2 / self.waves / x.shape[1])
        return answer.expand(-1, x.shape[1], 1).to(x.dtype)

    def batch(self, count: int, seed: Seed, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Inputs and targets."""
        x = self.inputs(count, seed, torch.float64)
        return x.to(dtype), self.targets(x).to(dtype)
