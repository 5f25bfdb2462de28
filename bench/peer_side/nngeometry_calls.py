"""All that is asked of NNGeometry: Gram matrices of jacobians, by hooks on the layers that it knows.

It refuses nn.GRU, so it is given the same GRU in linear layers: it then mixes up the steps of a weight that is
used at each of them, and returns a wrong kernel without a word. On the linear layers of an attention block, whose
inputs have three axes, it fails. Both are shown as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from nngeometry import GramMatrix
from torch import Tensor, nn

from bench.peer_side.torch_networks import build


def tangent_kernel(arrays: Mapping[str, Any], options: Mapping[str, Any]) -> Callable[[], Mapping[str, Any]]:
    """Θ of all pairs of inputs: (N, N, C, C), or (N, N) if its trace is asked for."""
    network = "unrolled recurrent" if options["network"] == "recurrent" else options["network"]
    model = build(network, options["sizes"], arrays)
    inputs = torch.as_tensor(arrays["X"])
    kernel = {"full": _full, "trace": _trace}[options["outputs"]]
    return lambda: {"ntk": kernel(model, inputs)}


def _full(model: nn.Module, inputs: Tensor) -> Tensor:
    """NNGeometry's order is (C, N, C, N)."""
    return GramMatrix(model, [inputs]).to_torch().permute(1, 3, 0, 2)


def _trace(model: nn.Module, inputs: Tensor) -> Tensor:
    """One output at a time, because all of them at once would compute C² blocks for a sum of C."""

    def gram(output: int) -> Tensor:
        one = GramMatrix(model, [inputs], function=lambda x: model(x)[:, output : output + 1])
        return one.to_torch()[0, :, 0]

    with torch.no_grad():
        count = model(inputs[:1]).shape[1]
    return torch.stack([gram(output) for output in range(count)]).sum(0)


CALLS = {"tangent kernel": tangent_kernel}
