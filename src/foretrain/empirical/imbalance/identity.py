"""The imbalance identity: (2), with layer rates (A.2), for single neurons and as a matrix (Cor. 12)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from foretrain.empirical.autograd_graph.layers import WeightCall
from foretrain.empirical.imbalance.pairs import Network, Pair
from foretrain.support.errors import NotSupportedError


@dataclass(frozen=True, eq=False)
class PairState:
    """Two layers with their gradients, and what is between them: z, σ(z), σ'(z) and p = ∂ℓ/∂σ(z).

    The lower layer is [W_l, b_l] if its bias learns; a frozen bias is left out of z, so that φ = (z - b)σ'(z) - σ(z).
    """

    name: str
    lower: WeightCall
    upper: WeightCall
    values: Mapping[str, Tensor]
    gradients: Mapping[str, Tensor]
    z: Tensor
    activation: Tensor
    slope: Tensor
    p: Tensor

    @property
    def parts(self) -> list[tuple[str, int]]:
        """Names of the parameters in Δ with their sign: the upper weight against the lower weight and bias."""
        bias = self.lower.bias
        own = [] if bias is None or bias not in self.gradients else [(bias, -1)]
        return [(self.upper.weight, 1), (self.lower.weight, -1), *own]

    @cached_property
    def phi(self) -> Tensor:
        """φ_σ(z) = zσ'(z) - σ(z) (1)."""
        return self.z * self.slope - self.activation

    def delta(self, rates: Mapping[str, float]) -> float:
        """Δ = ‖W_{l+1}‖²/ρ_{l+1} - ‖W_l‖²/ρ_l - ‖b_l‖²/ρ_b (A.2)."""
        return sum(sign * _dot(self.values[n], self.values[n]) / rates[n] for n, sign in self.parts)

    def drift(self) -> float:
        """dΔ/dt of the gradient flow, from weights and gradients: -2⟨W_{l+1}, ∇_{l+1}⟩ + 2⟨W_l, ∇_l⟩ (+ bias)."""
        return sum(-2 * sign * _dot(self.values[n], self.gradients[n]) for n, sign in self.parts)

    def identity(self) -> float:
        """2 E⟨W_{l+1}ᵀ∇_{z_{l+1}}ℓ, φ_σ(z_l)⟩ (2)."""
        return 2 * _dot(self.p, self.phi)

    def scale(self) -> float:
        """The size of the terms that cancel in the drift, beside which round-off is judged."""
        return sum(2 * _size(self.values[n]) * _size(self.gradients[n]) for n, _ in self.parts)

    def second_order(self, rates: Mapping[str, float]) -> float:
        """What a step of descent adds at order η²: ρ_{l+1}‖∇_{l+1}‖² - ρ_l‖∇_l‖² (- bias)."""
        return sum(sign * rates[n] * _dot(self.gradients[n], self.gradients[n]) for n, sign in self.parts)

    def weight_matrices(self, rates: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        """W_{l+1}ᵀW_{l+1} - W_lW_lᵀ (- b_l b_lᵀ), each over its rate, and its drift from weights and gradients."""
        self._check_units()
        total = drift = torch.zeros((), dtype=torch.float64)
        for name, sign in self.parts:
            W, G = (self._matrix(name, tensors[name]) for tensors in (self.values, self.gradients))
            total = total + sign * W @ W.T / rates[name]
            drift = drift - sign * (W @ G.T + G @ W.T)
        return total, drift

    def matrix_identity(self) -> Tensor:
        """E[(σ'p)zᵀ + z(σ'p)ᵀ - pσᵀ - σpᵀ]: its diagonal is 2E[pφ], off the diagonal it is not E[pφᵀ + φpᵀ]."""
        z, sigma, slope, p = (self._by_unit(t) for t in (self.z, self.activation, self.slope, self.p))
        half = (slope * p) @ z.T - p @ sigma.T
        return half + half.T

    def printed_matrix_identity(self) -> Tensor:
        """E[pφᵀ + φpᵀ], as Cor. 12 prints it."""
        p, phi = self._by_unit(self.p), self._by_unit(self.phi)
        return p @ phi.T + phi @ p.T

    def _matrix(self, name: str, values: Tensor) -> Tensor:
        """A parameter as (units between the layers, everything else)."""
        double = values.detach().double().cpu()
        if name == self.upper.weight:
            return self.upper.columns(double)
        return double[:, None] if name == self.lower.bias else self.lower.rows(double)

    def _by_unit(self, values: Tensor) -> Tensor:
        return values.movedim(self.lower.axis, 0).flatten(1).double().cpu()

    def _check_units(self) -> None:
        if self.upper.grouped or self.upper.signal.shape != self.lower.value.shape:
            raise NotSupportedError(
                f"the units of {self.name} are not one to one (flattened positions or groups): the scalar identity "
                "holds, the matrix has no meaning."
            )
        if self.upper.axis != self.lower.axis:
            raise NotSupportedError(
                f"{self.name} count their units along different axes: only the scalar identity holds."
            )


def pair_states(found: Network, pairs: Sequence[Pair]) -> list[PairState]:
    """One more run with its whole graph, one backward pass, and everything that the pairs need of it."""
    sites, loss = found.run(cut=False)
    if len(sites) <= max((pair.upper for pair in pairs), default=0):
        raise NotSupportedError(
            "two runs of the model took different ways: switch its randomness off by model.eval()."
        )
    trained = {name: value for name, value in found.parameters.items() if value.requires_grad}
    signals = [sites[pair.upper].signal for pair in pairs]
    received = torch.autograd.grad(
        loss, [*signals, *trained.values()], retain_graph=True, allow_unused=True, materialize_grads=True
    )
    gradients = dict(zip(trained, received[len(pairs) :]))
    states = []
    for pair, p in zip(pairs, received):
        lower, upper = sites[pair.lower], sites[pair.upper]
        end = upper.signal.reshape(lower.value.shape)
        (slope,) = torch.autograd.grad(end.sum(), lower.value, retain_graph=True)
        z = lower.value.detach()
        if lower.bias is not None and lower.bias not in gradients:
            along = [1] * z.ndim
            along[lower.axis] = -1
            z = z - found.parameters[lower.bias].detach().reshape(along)
        # Without the graph, which would keep every activation of the model in memory.
        lower, upper = (replace(s, signal=s.signal.detach(), value=s.value.detach()) for s in (lower, upper))
        states.append(
            PairState(
                name=pair.name,
                lower=lower,
                upper=upper,
                values={name: value.detach() for name, value in found.parameters.items()},
                gradients=gradients,
                z=z,
                activation=end.detach(),
                slope=slope.detach(),
                p=p.detach().reshape(z.shape),
            )
        )
    return states


def _dot(a: Tensor, b: Tensor) -> float:
    return float((a.double() * b.double()).sum())


def _size(values: Tensor) -> float:
    return float(values.double().norm())
