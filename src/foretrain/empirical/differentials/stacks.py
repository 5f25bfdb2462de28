"""Many networks of the same shape as one stack: from their weights, or from torch models that are chains."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, Unpack

import torch
from torch import Tensor

from foretrain.empirical.differentials.entry import Options, prepared
from foretrain.empirical.differentials.layered import Rates, Stack, with_derivatives
from foretrain.empirical.models.model import unchanged
from foretrain.support.errors import InputError, NotSupportedError


def stack_of(
    weights: Sequence[Tensor],
    biases: Sequence[Tensor] | None,
    x: Tensor,
    function: Callable[[Tensor], Tensor],
    rates: Sequence[Rates],
) -> Stack:
    """Networks z^(1) = b + W x, z^(k+1) = b + W σ(z^(k)) at samples x (N, n_0), or (networks, N, n_0).

    Parameters
    ----------
    weights, biases
        Of layers 1..T: (networks, n_k, n_{k-1}) and (networks, n_k); ``biases=None`` for none.
    function
        σ, elementwise, of torch tensors.
    rates
        Of every layer; in the convention of the theory ``Rates(lambda_W / n_{k-1}, lambda_b)``.
    """
    _check(weights, biases, x, rates)
    signals = [x.expand(len(weights[0]), *x.shape[-2:])]
    derivatives: list[tuple[Tensor, Tensor, Tensor]] = []
    for number, weight in enumerate(weights[:-1]):
        z = signals[-1] @ weight.mT
        if biases is not None:
            z = z + biases[number][:, None]
        signal, one, two, three = with_derivatives(function, z)
        signals.append(signal)
        derivatives.append((one, two, three))
    return Stack(signals, derivatives, [weight.detach() for weight in weights[1:]], list(rates))


def stack_of_models(models: Sequence[Any], x: Any, **options: Unpack[Options]) -> Stack:
    """Torch models that are chains of the same shape; ``options`` are those of ``dntk``."""
    stacks: list[Stack] = []
    for model in models:
        with unchanged(model):
            stack = prepared(model, x, **options).stack
        if stack is None:
            raise NotSupportedError(
                f"model {len(stacks)} is no chain of linear layers and elementwise activations that ends in a "
                "linear layer and names no output twice: use dntk and ddntk for each model."
            )
        stacks.append(stack)
    shapes = {(*(tuple(weight.shape) for weight in stack.weights), *stack.rates) for stack in stacks}
    if len(shapes) != 1:
        raise InputError("models must be a list of networks with equal layers and equal learning rates.")
    return Stack(
        signals=[torch.cat(values) for values in zip(*(stack.signals for stack in stacks))],
        derivatives=[
            (torch.cat(one), torch.cat(two), torch.cat(three))
            for one, two, three in (zip(*of_layer) for of_layer in zip(*(s.derivatives for s in stacks)))
        ],
        weights=[torch.cat(values) for values in zip(*(stack.weights for stack in stacks))],
        rates=stacks[0].rates,
    )


def _check(weights: Sequence[Tensor], biases: Sequence[Tensor] | None, x: Tensor, rates: Any) -> None:
    if len(weights) < 2 or any(weight.ndim != 3 for weight in weights):
        raise InputError("weights must be two or more tensors (networks, n_k, n_{k-1}), one for every layer.")
    sizes = [tuple(weight.shape) for weight in weights]
    fits = all(low[1] == high[2] and low[0] == high[0] for low, high in pairwise(sizes))
    if not fits or x.ndim not in (2, 3) or x.shape[-1] != sizes[0][2]:
        raise InputError(f"weights of sizes {sizes} do not follow each other and inputs of {tuple(x.shape)}.")
    if x.ndim == 3 and len(x) != sizes[0][0]:
        raise InputError(f"inputs are of {len(x)} networks, but weights of {sizes[0][0]}.")
    if biases is not None and [tuple(bias.shape) for bias in biases] != [size[:2] for size in sizes]:
        raise InputError("biases must be tensors (networks, n_k), one for every layer, or None.")
    if len(rates) != len(weights):
        raise InputError(f"there are {len(rates)} rates for {len(weights)} layers: give one for every layer.")
