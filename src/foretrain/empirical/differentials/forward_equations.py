"""The forward equations: NTK, dNTK and both ddNTKs of many networks at once, from one layer to the next, literally.

A leg a = (i, δ) is neuron i of a layer at sample δ, neurons first. With V_ia;j = W_ij σ'_ja a leg of the layer below
is pushed up to one of the layer above; 𝓗, 𝓓, 𝓘 are H, dH and ddI with all legs but the first pushed up. Then σ of a
leg below changes along gradients above by

    D1 = σ' 𝓗,   D2 = σ'' 𝓗 𝓗 + σ' 𝓓,   D3 = σ''' 𝓗 𝓗 𝓗 + σ'' (𝓓 𝓗 + 2 more) + σ' 𝓘

and H, dH, ddI, ddII of the layer above follow (8.12), (11.24), (∞.174), (∞.175). Every neuron of a hidden layer is an
index, so this takes (n N)^4 numbers for each network: it serves small networks, and gives all hidden layers as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from foretrain.empirical.differentials.layered import Rates, Stack, overlap
from foretrain.support.answers import Result
from foretrain.support.memory import require_memory

_COPIES = 6  # of the largest tensor, held at once


@dataclass(frozen=True, repr=False, eq=False)
class LayerDifferentials(Result):
    """All four of one layer: an axis of networks, then one of legs, neurons before samples, for every index."""

    ntk: Tensor
    dntk: Tensor
    dd_I: Tensor
    dd_II: Tensor


def forward_equations(stack: Stack) -> dict[int, LayerDifferentials]:
    """H, dH, ddI and ddII of layers 1..T of a stack of networks (∞.174), (∞.175).

    Examples
    --------
    >>> import torch
    >>> from foretrain.empirical.differentials import LayeredDifferentials, Rates, forward_equations, stack_of
    >>> W = [torch.randn(100, 4, 3).double(), torch.randn(100, 2, 4).double()]
    >>> stack = stack_of(W, None, torch.randn(2, 3).double(), torch.tanh, [Rates(1 / 3, 1.0), Rates(1 / 4, 1.0)])
    >>> outputs = forward_equations(stack)[2]
    >>> outputs.dd_I.shape, torch.allclose(outputs.dd_I, LayeredDifferentials(stack).third())
    (torch.Size([100, 4, 4, 4, 4]), True)
    """
    signal, samples = stack.signals[0], stack.samples
    widths = [weight.shape[2] for weight in stack.weights] + [stack.outputs]
    require_memory(
        _COPIES * signal.element_size() * len(signal) * sum((width * samples) ** 4 for width in widths),
        f"the forward equations of {len(signal)} networks with layers of up to {max(widths)} neurons",
        "use LayeredDifferentials, which keeps no neuron of a hidden layer as an index, or fewer networks at a time",
    )
    # In the first layer H = λ_b + λ_W x · x of equal neurons; nothing changes it.
    same = _same_neuron(widths[0], samples, signal)
    legs = same.shape[-1]
    first = torch.zeros((len(signal), legs, legs, legs), dtype=signal.dtype, device=signal.device)
    second = first[..., None].expand(-1, -1, -1, -1, legs)
    own = same * _of_legs(overlap(stack.rates[0], signal), same)
    layer = LayerDifferentials(own, first, second, second)
    found = {1: layer}
    for number in range(2, len(stack.rates) + 1):
        layer = _Step(stack, number - 2).above(layer)
        found[number] = layer
    return found


class _Step:
    """From layer k + 1 of a stack to the next, with k from 0."""

    def __init__(self, stack: Stack, k: int) -> None:
        self.rates: Rates = stack.rates[k + 1]
        self.signal = stack.signals[k + 1]
        self.samples = stack.samples
        # By legs.
        self.slope, self.bend, self.third = (values.mT.flatten(1) for values in stack.derivatives[k])
        self.weight = _at_equal_samples(stack.weights[k], self.samples)  # W_ij δ_ab: (networks, above, below)
        self.push = self.weight * self.slope[:, None]  # V
        self.same = _same_neuron(int(stack.weights[k].shape[1]), self.samples, self.signal)

    def above(self, below: LayerDifferentials) -> LayerDifferentials:
        """The layer above, from that below."""
        push = self.push
        H = torch.einsum("wxy,wby->wxb", below.ntk, push)
        D = torch.einsum("wxyz,wby,wcz->wxbc", below.dntk, push, push)
        pushed = torch.einsum("wxyzt,wby,wcz,wdt->wxbcd", below.dd_I, push, push, push)
        # D1, D2, D3 of σ at the legs below along one, two, three gradients above.
        slope, bend, third = (values[..., None, None, None] for values in (self.slope, self.bend, self.third))
        squares = H[..., None] * H[:, :, None]
        mixed = D[..., None] * H[:, :, None, None]
        mixed = mixed + mixed.transpose(3, 4) + mixed.transpose(2, 4)
        cubes = squares[..., None] * H[:, :, None, None]
        one, two = slope[..., 0, 0] * H, bend[..., 0] * squares + slope[..., 0] * D
        three = third * cubes + bend * mixed + slope * pushed
        own = self.same * _of_legs(overlap(self.rates, self.signal), self.same)
        dntk, dd_I = self._with_own(two, one), self._with_own(three, two)
        return LayerDifferentials(own + self.weight @ one, dntk, dd_I, self._shared(below, H, one))

    def _with_own(self, change: Tensor, fewer: Tensor) -> Tensor:
        """W D_m and what the weights of the layer itself add: δ c σ_b · D_{m-1}, b any of the gradients."""
        found = torch.einsum("wax,wx...->wa...", self.weight, change)
        # δ_{i_a i_b} Σ_j σ_jb D_ja: (networks, legs a, legs b, the gradients of D)
        sums = torch.einsum("wbj,wja...->wab...", self.signal, self._split(fewer))
        tail = (1,) * (fewer.ndim - 2)
        repeats = self.same.shape[-1] // self.samples
        along = self.same.view(*self.same.shape, *tail) * sums.repeat(1, repeats, repeats, *tail)
        own = self.rates.weight * along
        for leg in range(2, own.ndim):
            found = found + own.transpose(2, leg)
        return found

    def _split(self, change: Tensor) -> Tensor:
        """Neurons and samples of the first legs apart."""
        return change.view(len(change), -1, self.samples, *change.shape[2:])

    def _shared(self, below: LayerDifferentials, H: Tensor, one: Tensor) -> Tensor:
        """ddII: outputs 1 and 2 share a weight of this layer, or a parameter below it."""
        by_sample = self._split(one)
        sums = torch.einsum("wjac,wjbd->wabcd", by_sample, by_sample)
        repeats = self.same.shape[-1] // self.samples
        own = self.rates.weight * self.same[..., None, None] * sums.repeat(1, repeats, repeats, 1, 1)
        # q_ac;x = δ_{i_a i_c} c σ_c σ'_x + W σ'' 𝓗_xc, at x of the sample of a: (networks, a, c, x)
        push, samples = self.push, self.samples
        at_sample = _at_equal_samples(torch.ones_like(push[:, ::samples, ::samples]), samples)
        slope = (at_sample * self.slope[:, None])[:, :, None]
        # σ_jc of gradients c at every x = (j, δ)
        signal = self.signal.repeat(1, repeats, 1).repeat_interleave(samples, dim=2)[:, None]
        q = self.rates.weight * self.same[..., None] * slope * signal
        q = q + (self.weight * self.bend[:, None])[:, :, None] * H.mT[:, None]
        crossed = torch.einsum("wyxz,wdz,wby,wacx->wabcd", below.dntk, push, push, q)
        return (
            own
            + torch.einsum("wacx,wxy,wbdy->wabcd", q, below.ntk, q)
            + crossed
            + crossed.permute(0, 2, 1, 4, 3)
            + torch.einsum("wxyzt,wax,wby,wcz,wdt->wabcd", below.dd_II, push, push, push, push)
        )


def _at_equal_samples(weight: Tensor, samples: int) -> Tensor:
    """W_ij δ_ab between legs."""
    eye = torch.eye(samples, dtype=weight.dtype, device=weight.device)
    networks, above, below = weight.shape
    found = torch.einsum("wij,ab->wiajb", weight, eye)
    return found.reshape(networks, above * samples, below * samples)


def _same_neuron(width: int, samples: int, like: Tensor) -> Tensor:
    """Whether two legs are of the same neuron: (1, legs, legs)."""
    eye = torch.eye(width, dtype=like.dtype, device=like.device)
    return eye.repeat_interleave(samples, dim=0).repeat_interleave(samples, dim=1)[None]


def _of_legs(kernel: Tensor, like: Tensor) -> Tensor:
    repeats = like.shape[-1] // kernel.shape[-1]
    return kernel.repeat(1, repeats, repeats)
