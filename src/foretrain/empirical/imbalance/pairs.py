"""Which layers form a pair: the first one's output reaches the loss only through the second one, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial, wraps
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.layers import (
    WeightCall,
    WeightCalls,
    dependence,
    elementwise_slope,
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
    reach = _dependence(found, sites, loss)
    uses = [site.weight for site in sites]
    pairs, refused = [], {}
    for place, site in enumerate(sites):
        reason = _objection(found, sites, uses, reach, place)
        if reason is None:
            lower = int(reach.leaves[place][0])
            pairs.append(Pair(lower, place, f"{sites[lower].weight} -> {site.weight}"))
        else:
            refused[site.weight] = reason
    return pairs, refused


@dataclass(frozen=True, eq=False)
class _Reach:
    """For every end (the signals of all sites, then the loss): which values and which weights it depends on."""

    leaves: list[list[int]]
    weights: list[set[str]]


def _dependence(found: Network, sites: Sequence[WeightCall], loss: Tensor) -> _Reach:
    """Read from the cut graph: autograd knows what an end is made of."""
    names = sorted({name for site in sites for name in (site.weight, site.bias) if name is not None})
    trained = [name for name in names if found.parameters[name].requires_grad]
    sources = [*(site.value for site in sites), *(found.parameters[name] for name in trained)]
    count = len(sites)
    reached = [dependence(end, sources) for end in (*(site.signal for site in sites), loss)]
    return _Reach(
        [[place for place in places if place < count] for places in reached],
        [{trained[place - count] for place in places if place >= count} for places in reached],
    )


def _objection(
    found: Network, sites: Sequence[WeightCall], uses: Sequence[str], reach: _Reach, place: int
) -> str | None:
    """Why the site forms no pair with what is below it; None if it does."""
    site, below = sites[place], reach.leaves[place]
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
        if any(name in weights for weights in reach.weights for name in (other.weight, other.bias)):
            return f"{other.weight} or its bias is also used outside of its layer"
    users = [end for end, leaves in enumerate(reach.leaves) if below[0] in leaves]
    if users != [place]:
        others = ["the loss" if end == len(sites) else uses[end] for end in users if end != place]
        return f"the output of {lower.weight} also goes another way, to {', '.join(others)}"
    return _mixing(lower, site)


def _mixing(lower: WeightCall, upper: WeightCall) -> str | None:
    """What is between two layers must act entry by entry, up to a reshape."""
    between = f"between {lower.weight} and {upper.weight}"
    if upper.signal.numel() != lower.value.numel():
        shapes = f"{tuple(lower.value.shape)} becomes {tuple(upper.signal.shape)}"
        return f"{between} {shapes}, which no elementwise activation does"
    if not elementwise_slope(lower.value, upper.signal)[1]:
        return f"{between} entries are mixed, as by normalisation, softmax or a change of order"
    return None
