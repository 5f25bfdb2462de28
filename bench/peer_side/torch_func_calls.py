"""The recipe of torch's own tutorial on tangent kernels: per-sample jacobians by vmap(jacrev), then einsum.

It differs from the tutorial in three points, all in the recipe's favour: the jacobian is made once, because both
sets of inputs are the same; attention takes its plain implementation, because the fused one has no batching rule;
a GRU is written out in linear layers, because vmap cannot follow nn.GRU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, jacrev, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.peer_side import global_state_calls
from bench.peer_side.memory import available
from bench.peer_side.torch_networks import build

CONTRACTIONS = {"full": "Naf,Mbf->NMab", "trace": "Naf,Maf->NM"}
SPARE_MEMORY = 0.9  # share of what is free that the jacobian may take


def tangent_kernel(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    """Θ of all pairs of inputs: (N, N, C, C), or (N, N) if its trace is asked for."""
    network = "unrolled recurrent" if options["network"] == "recurrent" else options["network"]
    model = build(network, options["sizes"], arrays)
    inputs = torch.as_tensor(arrays["X"])
    parameters = {name: value.detach() for name, value in model.named_parameters()}
    _require_memory(parameters, len(inputs) * model(inputs[:1]).numel())

    def outputs_of_one(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(model, weights, (x.unsqueeze(0),)).squeeze(0)

    def run() -> Mapping[str, Any]:
        with sdpa_kernel(SDPBackend.MATH):
            jacobians = vmap(jacrev(outputs_of_one), (None, 0))(parameters, inputs)
        flat = (jacobian.flatten(2) for jacobian in jacobians.values())
        kernel = sum(torch.einsum(CONTRACTIONS[options["outputs"]], one, one) for one in flat)
        return {"ntk": kernel}

    return run


def tangent_kernel_by_a_loop(
    arrays: Mapping[str, Any], options: Mapping[str, Any]
) -> Callable[[], Mapping[str, Any]]:
    """The same by what anyone would write first: one gradient after the other, flattened and stacked, J Jᵀ."""
    model = build(options["network"], options["sizes"], arrays)
    inputs = torch.as_tensor(arrays["X"])
    parameters = list(model.parameters())
    samples, outputs = len(inputs), model(inputs[:1]).numel()
    _require_memory(dict(model.named_parameters()), samples * outputs)

    def run() -> Mapping[str, Any]:
        rows = []
        for x in inputs:
            for output in model(x[None])[0]:
                found = torch.autograd.grad(output, parameters, retain_graph=True)
                rows.append(torch.cat([gradient.flatten() for gradient in found]))
        jacobian = torch.stack(rows)
        kernel = jacobian @ jacobian.T
        return {"ntk": kernel.view(samples, outputs, samples, outputs).transpose(1, 2)}

    return run


def _require_memory(parameters: Mapping[str, Tensor], rows: int) -> None:
    """Refuse before the system would have to end processes."""
    needed = rows * sum(value.numel() * value.element_size() for value in parameters.values())
    free = available()
    if free is not None and needed > SPARE_MEMORY * free:
        raise MemoryError(f"the jacobians need {needed / 1e9:.1f} GB and {free / 1e9:.1f} GB are free")


CALLS = {
    "tangent kernel": tangent_kernel,
    "tangent kernel by a loop": tangent_kernel_by_a_loop,
    **global_state_calls.CALLS,
}
