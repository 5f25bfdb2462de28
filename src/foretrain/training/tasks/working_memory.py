"""Three tasks of working memory: flip-flops, delayed match to sample, filters and delays; and a leaky network.

Inputs are (batch, time, n_in), targets (batch, time, n_out), drawn by ``batch(count, seed)``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, torch_generator


@dataclass(frozen=True)
class FlipFlop:
    """Every bit is set by rare pulses of +1 and -1, and is asked for at every step; zero before the first pulse."""

    bits: int = 3
    steps: int = 30
    rate: float = 0.15  # pulses per step and bit

    def batch(self, count: int, seed: Seed, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """Pulses, and the last one of each bit."""
        source = torch_generator(seed)
        shape = (_trials(count), self.steps, self.bits)
        signs = torch.randint(0, 2, shape, generator=source) * 2.0 - 1
        pulses = signs * (torch.rand(shape, generator=source) < self.rate)
        held = [pulses[:, 0]]
        for now in pulses.unbind(1)[1:]:
            held.append(torch.where(now != 0, now, held[-1]))
        return pulses.to(dtype), torch.stack(held, 1).to(dtype)


@dataclass(frozen=True)
class MatchToSample:
    """A sign is shown, then nothing, then another one: after it the answer is 1 if both agree, else -1.

    Inputs are the sign and a fixation that is 1 until the answer; outputs are the answer and the fixation.
    """

    sample: int = 4
    delay: int = 6
    test: int = 4
    response: int = 6

    @property
    def steps(self) -> int:
        """Length of a trial."""
        return self.sample + self.delay + self.test + self.response

    def batch(self, count: int, seed: Seed, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """All four pairs of signs in turn, in an order of their own."""
        kinds = torch.randperm(_trials(count), generator=torch_generator(seed)) % 4
        first, second = (2 * (kinds % 2) - 1).to(dtype), (2 * (kinds // 2) - 1).to(dtype)
        x, y = torch.zeros(count, self.steps, 2, dtype=dtype), torch.zeros(count, self.steps, 2, dtype=dtype)
        x[:, : self.sample, 0] = first[:, None]
        x[:, self.sample + self.delay : -self.response, 0] = second[:, None]
        x[:, : -self.response, 1] = y[:, : -self.response, 1] = 1
        y[:, -self.response :, 0] = (first * second)[:, None]
        return x, y


@dataclass(frozen=True)
class FiltersAndDelays:
    """Of a white signal: running means that forget in so many steps, and copies that come so many steps later."""

    forgetting: tuple[float, ...] = (4.0,)
    delays: tuple[int, ...] = (2, 6)
    steps: int = 30

    def batch(self, count: int, seed: Seed, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
        """The signal; its running means, of unit power, and its delayed copies."""
        x = torch.randn(_trials(count), self.steps, 1, generator=torch_generator(seed), dtype=torch.float64)
        time = torch.arange(self.steps, dtype=torch.float64)
        ages = time[:, None] - time
        outputs = []
        for forgetting in self.forgetting:
            weights = torch.where(ages >= 0, torch.exp(-ages.clamp(min=0) / forgetting), 0.0)
            outputs.append(weights / weights[-1].norm() @ x)
        outputs += [(ages == delay).double() @ x for delay in self.delays]
        return x.to(dtype), torch.cat(outputs, -1).to(dtype)


class LeakyNetwork(nn.Module):
    """h(t) = (1 - leak) h(t-1) + leak tanh(W h(t-1) + U x(t) + b), written as a loop, with a linear readout."""

    def __init__(
        self, n_in: int, units: int, n_out: int, *, leak: float = 0.3, gain: float = 1.0, seed: Seed = 0
    ) -> None:
        super().__init__()
        if not 0 < leak <= 1:
            raise InputError(f"`leak` is {leak}, but it must be above 0 and at most 1.")
        self.leak = leak
        self.recurrent = nn.Linear(units, units, bias=False)
        self.input, self.readout = nn.Linear(n_in, units), nn.Linear(units, n_out)
        source = torch_generator(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim < 2:
                    parameter.zero_()
                    continue
                own = gain if name.startswith("recurrent") else 1.0
                parameter.copy_(
                    own * torch.randn(parameter.shape, generator=source) / parameter.shape[1] ** 0.5
                )

    def forward(self, x: Tensor) -> Tensor:
        """The readout of every step."""
        given, state = self.input(x), x.new_zeros(len(x), self.recurrent.out_features)
        states = []
        for now in given.unbind(1):
            state = (1 - self.leak) * state + self.leak * torch.tanh(self.recurrent(state) + now)
            states.append(state)
        outputs: Tensor = self.readout(torch.stack(states, 1))
        return outputs


def _trials(count: int) -> int:
    return whole_number("count", count)
