"""Chains of linear layers and elementwise activations, found out by running them, as a stack of one network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.differentials.autodiff import Directions
from foretrain.empirical.differentials.layered import Rates, Stack, with_derivatives
from foretrain.empirical.fields.chain import Chain
from foretrain.empirical.fields.recognition import find_chain
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.memory import available_bytes

ROUTE = "layer by layer"
_COPIES = 8  # of the changes of fields of all layers
_SHARE = 0.4  # of the available memory


def as_stack(model: Any, directions: Directions) -> Stack | None:
    """The model as a stack; None if it is no chain that ends in a linear layer, or its fields do not fit.

    Neither if an output is named twice: to a stack all outputs have weights of their own.
    """
    x = directions.batch.arguments
    if not isinstance(model, nn.Module) or not isinstance(x, Tensor) or x.ndim != 2 or directions.batch.axis:
        return None
    outputs = directions.linear.outputs
    if directions.linear.model.output is not None or len(set(outputs)) < len(outputs):
        return None
    try:
        chain = find_chain(model, x)
        plain = chain.depth > 1 and torch.equal(chain.u(chain.depth), chain.v(chain.depth))
        if not plain or not _fits(chain, directions.legs):
            return None
        derivatives = [_derivatives(chain, number) for number in range(1, chain.depth)]
    except (InputError, NotSupportedError, RuntimeError):
        return None
    return Stack(
        signals=[chain.u(number)[None] for number in range(chain.depth)],
        derivatives=derivatives,
        weights=_weights(chain, directions.linear.outputs),
        rates=_rates(chain, directions),
    )


def _fits(chain: Chain, legs: int) -> bool:
    needed = _COPIES * chain.x.element_size() * legs**2 * sum(chain.widths[1:-1])
    return needed < _SHARE * available_bytes()


def _weights(chain: Chain, outputs: Sequence[int]) -> list[Tensor]:
    last = chain.layer(chain.depth).weight[list(outputs)]
    return [*(chain.layer(number).weight[None] for number in range(2, chain.depth)), last[None]]


def _rates(chain: Chain, directions: Directions) -> list[Rates]:
    known = {id(value): directions.rates[name] for name, value in directions.linear.parameters.items()}
    return [
        Rates(known.get(id(layer.module.weight), 0.0), known.get(id(layer.module.bias), 0.0))
        for layer in chain.layers
    ]


def _derivatives(chain: Chain, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """σ', σ'', σ''' at the preactivations of a layer, as one network."""
    _, one, two, three = with_derivatives(lambda v: chain.activate(number, v), chain.v(number))
    return one[None], two[None], three[None]
