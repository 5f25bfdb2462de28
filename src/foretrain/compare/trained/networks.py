"""Many networks of one shape as stacks of matrices: forward, backward, and the tangent kernel of each.

Signals have the axes (networks, neurons, samples), and the neurons of a sample lie together in memory: products of
weights with few samples are then several times faster. Everything is one batched product per layer, and no graph is
kept: with s the signal into a layer and δ = dL/dz the sensitivity out of it, the slope of the loss is δ sᵀ in its
weights and the sum of δ over samples in its biases.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement

import numpy as np
import torch
from torch import Tensor

from foretrain.compare.build import Network, linear_layers, torch_activation
from foretrain.compare.ensembles import draw_weights
from foretrain.support.seeds import spawn_some
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.training.gradient_flow.problem import Nonlinearity

SignalAndSlope = Callable[[Tensor], tuple[Tensor, Tensor]]

_BLOCK = 4  # networks that share a stream of random numbers: a seed gives the same networks however they are grouped
_GROUP_BYTES = 4e6  # of parameters trained together: about a processor's cache


@dataclass(frozen=True, eq=False)
class Trace:
    """What a forward pass leaves: the signal into every layer, σ' behind it, and the output."""

    signals: list[Tensor]  # s^(0)..s^(L-1), (networks, n_{l-1}, samples)
    slopes: list[Tensor]  # σ' at z^(1)..z^(L-1)
    output: Tensor  # z^(L)


class Networks:
    """Weights (networks, n_l, n_{l-1}) and biases (networks, n_l, 1) of layers 1..L, to be trained in place."""

    def __init__(self, mlp: MLP, weights: list[Tensor], biases: list[Tensor]) -> None:
        self.mlp, self.weights, self.biases = mlp, weights, biases
        # σ and σ' together: from σ itself where that is cheaper, else by automatic differentiation.
        act = mlp.activation
        own = _OWN_SLOPES.get(act.name) if act.identity[0] != "callable" else None
        self._function: SignalAndSlope = own or Nonlinearity(torch_activation(act))

    def __len__(self) -> int:
        return len(self.weights[0])

    def chosen(self, places: Tensor) -> Networks:
        """Copies of some of the networks."""
        return Networks(
            self.mlp, *([each[places] for each in stack] for stack in (self.weights, self.biases))
        )

    def write(self, places: Tensor, others: Networks) -> None:
        """Put networks back to where they were chosen from."""
        if others is self:
            return
        for mine, theirs in zip((*self.weights, *self.biases), (*others.weights, *others.biases)):
            mine[places] = theirs

    def entry(self, X: FloatArray) -> Trace:
        """The pass before the first layer that learns, if that has no skip connection: it never changes."""
        first = next((layer.number for layer in self.mlp.layers if layer.lambda_b or layer.lambda_W), 1)
        stop = first - 1 if not self.mlp.is_residual else 0
        samples = torch.from_numpy(np.ascontiguousarray(X)).mT.expand(len(self), -1, -1)
        return self._walk(Trace([samples], [], samples), 0, stop)

    def forward(self, entry: Trace) -> Trace:
        """z^(1) = b + W x, z^(l+1) = b + W σ(z^(l)) + γ z^(l) from where the entry ends (2.5), (B.3)."""
        return self._walk(entry, len(entry.signals) - 1, self.mlp.depth)

    def _walk(self, start: Trace, first: int, stop: int) -> Trace:
        signals, slopes, z = list(start.signals), list(start.slopes), start.output
        for layer, weights, biases in list(zip(self.mlp.layers, self.weights, self.biases))[first:stop]:
            fresh = torch.baddbmm(biases.mT, signals[-1].mT, weights.mT).mT
            z = fresh.add_(z, alpha=layer.gamma) if layer.gamma else fresh
            if layer.number < self.mlp.depth:
                signal, slope = self._function(z)
                signals.append(signal)
                slopes.append(slope)
        return Trace(signals, slopes, z)

    def sensitivities(self, trace: Trace, error: Tensor, down_to: int = 0) -> list[Tensor]:
        """dL/dz^(l) (8.3), (8.4) from the output (first in the list) down to a layer; the error is dL/dz^(L)."""
        found = [error]
        for number in range(self.mlp.depth - 1, down_to, -1):
            slope, skip = trace.slopes[number - 1], self.mlp.gamma[number]
            field = torch.bmm(found[-1].mT, self.weights[number]).mT.mul_(slope)
            found.append(field.add_(found[-1], alpha=skip) if skip else field)
        return found

    def kernel(self, X: FloatArray) -> Tensor:
        """Ĥ_ij;ab of each network (8.16)-(8.18): (networks, outputs, outputs, samples, samples).

        The sum over layers of (λ_b + λ_W / n s_a · s_b) times the overlap of the sensitivities of outputs i and j.
        """
        trace = self.forward(self.entry(X))
        outputs = self.mlp.n_out
        # For each output an error factor that is one there and zero in the others.
        units = torch.eye(outputs, dtype=torch.float64)[:, None, :, None].expand(-1, *trace.output.shape)
        fields = [self.sensitivities(trace, unit.contiguous()) for unit in units]
        size = (len(self), outputs, outputs, len(X), len(X))
        found = torch.zeros(size, dtype=torch.float64)
        for place, layer in enumerate(reversed(self.mlp.layers)):
            signal = trace.signals[layer.number - 1]
            gram = layer.lambda_b + layer.lambda_W / signal.shape[1] * (signal.mT @ signal)
            for i, j in combinations_with_replacement(range(outputs), 2):
                found[:, i, j] += gram * (fields[i][place].mT @ fields[j][place])
        for i, j in combinations(range(outputs), 2):
            found[:, j, i] = found[:, i, j].mT
        return found


def _tanh(z: Tensor) -> tuple[Tensor, Tensor]:
    signal = torch.tanh(z)
    return signal, 1 - signal * signal


_OWN_SLOPES: dict[str, SignalAndSlope] = {
    "tanh": _tanh,
    "erf": lambda z: (torch.erf(z), torch.exp(-z * z).mul_(2 / np.pi**0.5)),
    "relu": lambda z: (torch.relu(z), (z > 0).to(z.dtype)),
    "sin": lambda z: (torch.sin(z), torch.cos(z)),
}


def group_size(mlp: MLP) -> int:
    """How many networks to train together: as many as fit a processor's cache."""
    return max(1, int(_GROUP_BYTES / (8 * mlp.parameter_count)))


def groups_of(numbers: range, size: int) -> list[range]:
    """Numbers of networks, so many at a time."""
    return [numbers[first : first + size] for first in range(0, len(numbers), size)]


def stacked(networks: Sequence[Network]) -> Networks:
    """Copies of torch networks of one shape, to be trained together."""
    layers = list(zip(*(linear_layers(network) for network in networks), strict=True))
    weights = [torch.stack([each.weight.detach() for each in layer]) for layer in layers]
    biases = [torch.stack([each.bias.detach()[:, None] for each in layer]) for layer in layers]
    return Networks(networks[0].mlp, weights, biases)


def draw_networks(
    mlp: MLP, numbers: range, seed: np.random.SeedSequence, *, mirrored: bool = False
) -> Networks:
    """Networks number first..last of the sequence that belongs to a seed.

    Mirrored, networks 2k and 2k + 1 share all but the last layer, whose weights and biases have opposite signs: so
    have their outputs at initialisation.
    """
    originals = range(numbers.start // 2, (numbers.stop + 1) // 2) if mirrored else numbers
    blocks = range(originals.start // _BLOCK, -(-originals.stop // _BLOCK))
    parts = [draw_weights(mlp, _BLOCK, own) for own in spawn_some(seed, blocks)]
    kept = slice(originals.start - blocks.start * _BLOCK, originals.stop - blocks.start * _BLOCK)
    weights, biases = ([torch.cat(layer)[kept] for layer in zip(*stack)] for stack in zip(*parts))
    if mirrored:
        odd = numbers.start % 2
        pairs = slice(odd, odd + len(numbers))
        weights, biases = ([each.repeat_interleave(2, dim=0)[pairs] for each in s] for s in (weights, biases))
        signs = torch.tensor([1.0 - 2.0 * (number % 2) for number in numbers], dtype=torch.float64)
        weights[-1], biases[-1] = (signs[:, None, None] * each[-1] for each in (weights, biases))
    return Networks(mlp, weights, biases)
