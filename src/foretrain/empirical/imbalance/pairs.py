"""Pairs of layers and their identity: (2), with layer rates (A.2), for single neurons and as a matrix (Cor. 12).

Two layers form a pair if the first one's output reaches the loss only through the second one, entry by entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.layers import (
    WeightCall,
    WeightCalls,
    dependence,
    is_elementwise,
    slopes,
)
from foretrain.empirical.models.model import call_with, explained
from foretrain.support.errors import InputError, NotSupportedError

Loss = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, eq=False)
class Network:
    """A model, or a function of (parameters, x), with its trained parameters, its data and its loss."""

    call: Callable[..., Any]
    parameters: Mapping[str, Tensor]
    x: Any
    y: Any
    loss: Loss

    def run(self, cut: bool) -> tuple[list[WeightCall], Tensor]:
        """All calls of weights in one run, and the loss."""
        with torch.enable_grad(), WeightCalls(self.parameters, cut) as watch:
            with explained(self.x, self.parameters.values()):
                outputs = call_with(self.call, self.x)
            value = self.loss(outputs, self.y)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise InputError(
                "loss(model(x), y) must be a tensor with one number: average or sum over the data."
            )
        if not bool(torch.isfinite(value).all()):
            raise InputError("the loss is not finite: check the inputs and the weights.")
        return watch.calls, value.reshape(())


def network(model: Any, x: Any, y: Any, loss: Loss, parameters: Mapping[str, Tensor] | None) -> Network:
    """A module with its parameters, or a function with the parameters it takes first."""
    if parameters is not None:
        if not callable(model):
            raise InputError(
                f"the model is {type(model).__name__}: with `parameters=` give a function of them and x."
            )
        leaves = {name: value.detach().requires_grad_() for name, value in parameters.items()}
        return Network(partial(model, leaves), leaves, x, y, loss)
    if not isinstance(model, nn.Module):
        raise InputError(
            f"the model is {type(model).__name__}: give a torch module, or a function with `parameters=`."
        )

    @wraps(model.forward)  # with its signature, by which dicts of arguments are understood
    def call(*args: Any, **named: Any) -> Any:
        # Running statistics do not notice that the model is called: it has copies of its buffers.
        buffers = {name: value.detach().clone() for name, value in model.named_buffers()}
        return torch.func.functional_call(model, buffers, args, named)

    return Network(call, dict(model.named_parameters()), x, y, loss)


@dataclass(frozen=True)
class Pair:
    """Two sites, by their place in the order of the run, and a name."""

    lower: int
    upper: int
    name: str


def find_pairs(found: Network) -> tuple[list[Pair], dict[str, str]]:
    """All pairs of a model, and for every other weight why nothing below it forms a pair with it."""
    sites, loss = found.run(cut=True)
    if not sites:
        raise NotSupportedError(
            "the model multiplies nothing by its parameters through linear maps or convolutions: the imbalance is "
            "about pairs of such layers."
        )
    names = sorted({name for site in sites for name in (site.weight, site.bias) if name is not None})
    trained = [name for name in names if found.parameters[name].requires_grad]
    sources = [*(site.value for site in sites), *(found.parameters[name] for name in trained)]
    # Read from the cut graph: autograd knows what an end is made of.
    reached = [dependence(end, sources) for end in (*(site.signal for site in sites), loss)]
    reach = [[place for place in places if place < len(sites)] for places in reached]
    outside = {trained[place - len(sites)] for places in reached for place in places if place >= len(sites)}
    pairs, refused = [], {}
    for place, site in enumerate(sites):
        reason = _objection(found, sites, reach, outside, place)
        if reason is None:
            (lower,) = reach[place]
            pairs.append(Pair(lower, place, f"{sites[lower].weight} -> {site.weight}"))
        else:
            refused[site.weight] = reason
    return pairs, refused


def _objection(
    found: Network, sites: Sequence[WeightCall], reach: Sequence[list[int]], outside: set[str], place: int
) -> str | None:
    """Why the site forms no pair with what is below it; None if it does.

    ``reach``: for every end (the signals of all sites, then the loss) the values that it depends on; ``outside``: the
    parameters that it depends on directly.
    """
    site, below = sites[place], reach[place]
    uses = [one.weight for one in sites]
    if not below:
        return (
            "its input comes from no linear layer that is seen, but from data, embeddings or fused operations"
        )
    if len(below) > 1:
        return f"its input comes from {len(below)} layers at once ({', '.join(uses[i] for i in below)})"
    lower = sites[below[0]]
    for other in (site, lower):
        if uses.count(other.weight) > 1:
            return f"{other.weight} is used {uses.count(other.weight)} times"
        if not found.parameters[other.weight].requires_grad:
            return f"{other.weight} is frozen"
        if outside & {other.weight, other.bias}:
            return f"{other.weight} or its bias is also used outside of its layer"
    users = [end for end, leaves in enumerate(reach) if below[0] in leaves]
    if users != [place]:
        others = ["the loss" if end == len(sites) else uses[end] for end in users if end != place]
        return f"the output of {lower.weight} also goes another way, to {', '.join(others)}"
    # What is between two layers must act entry by entry, up to a reshape.
    between = f"between {lower.weight} and {site.weight}"
    if site.signal.numel() != lower.value.numel():
        shapes = f"{tuple(lower.value.shape)} becomes {tuple(site.signal.shape)}"
        return f"{between} {shapes}, which no elementwise activation does"
    (slope,) = slopes(site.signal, [lower.value])
    if slope is None or not is_elementwise(lower.value, site.signal, slope):
        return f"{between} entries are mixed, as by normalisation, softmax or a change of order"
    return None


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
        return sum(
            2 * float(self.values[n].double().norm()) * float(self.gradients[n].double().norm())
            for n, _ in self.parts
        )

    def second_order(self, rates: Mapping[str, float]) -> float:
        """What a step of descent adds at order η²: ρ_{l+1}‖∇_{l+1}‖² - ρ_l‖∇_l‖² (- bias)."""
        return sum(sign * rates[n] * _dot(self.gradients[n], self.gradients[n]) for n, sign in self.parts)

    def weight_matrices(self, rates: Mapping[str, float]) -> tuple[Tensor, Tensor]:
        """W_{l+1}ᵀW_{l+1} - W_lW_lᵀ (- b_l b_lᵀ), each over its rate, and its drift from weights and gradients."""
        if self.upper.grouped or self.upper.signal.shape != self.lower.value.shape:
            raise NotSupportedError(
                f"the units of {self.name} are not one to one (flattened positions or groups): the scalar identity "
                "holds, the matrix has no meaning."
            )
        if self.upper.axis != self.lower.axis:
            raise NotSupportedError(
                f"{self.name} count their units along different axes: only the scalar identity holds."
            )
        total = drift = torch.zeros((), dtype=torch.float64)
        for name, sign in self.parts:
            W, G = (self._matrix(name, tensors[name]) for tensors in (self.values, self.gradients))
            total = total + sign * W @ W.T / rates[name]
            drift = drift - sign * (W @ G.T + G @ W.T)
        return total, drift

    def matrix_identities(self) -> tuple[Tensor, Tensor]:
        """E[(σ'p)zᵀ + z(σ'p)ᵀ - pσᵀ - σpᵀ], and E[pφᵀ + φpᵀ] as Cor. 12 prints it: equal on the diagonal."""
        fields = (self.z, self.activation, self.slope, self.p, self.phi)
        z, sigma, slope, p, phi = (
            values.movedim(self.lower.axis, 0).flatten(1).double().cpu() for values in fields
        )
        half = (slope * p) @ z.T - p @ sigma.T
        return half + half.T, p @ phi.T + phi @ p.T

    def _matrix(self, name: str, values: Tensor) -> Tensor:
        """A parameter as (units between the layers, everything else)."""
        double = values.detach().double().cpu()
        if name == self.upper.weight:
            return self.upper.columns(double)
        return double[:, None] if name == self.lower.bias else self.lower.rows(double)


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
