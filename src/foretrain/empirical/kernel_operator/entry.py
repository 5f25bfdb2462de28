"""``ntk_operator``: products of the tangent kernel with vectors, without the kernel."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal

from foretrain.empirical.kernel_operator.operator import NTKOperator
from foretrain.empirical.kernel_operator.passes import Linearised, find_ways
from foretrain.empirical.models.model import Output
from foretrain.empirical.models.parameters import Rates
from foretrain.empirical.tangent_kernel.engine import probe
from foretrain.empirical.tangent_kernel.kernel import KernelOptions, chunk_size, prepare
from foretrain.support.errors import InputError


def ntk_operator(
    model: Any,
    x: Any,
    x2: Any = None,
    outputs: Sequence[int] | None = None,
    *,
    output: Output = None,
    parameters: Any = None,
    rates: Rates = None,
    batch_size: int | Literal["auto"] = "auto",
    batch_axis: int = 0,
    shared: Collection[str | int] = (),
) -> NTKOperator:
    """The tangent kernel J(x) diag(rates) J(x2)^T as an operator; one product costs about three passes of the model.

    Arguments are those of ``ntk``; ``outputs`` is a list of output numbers, None for all. Nothing of size N x N2 is
    ever formed: samples go through the model in chunks that fit the memory. Products are those at the parameters
    that the model has when they are asked for.

    Examples
    --------
    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    >>> kernel = ntk_operator(net, torch.randn(5, 3))
    >>> kernel.shape, kernel.matvec(torch.ones(5, 2)).shape
    ((10, 10), torch.Size([5, 2]))
    """
    if isinstance(outputs, str):
        raise InputError(
            f"`outputs=`{outputs!r} has no operator: pass a list of output numbers or None, or use ntk(...)."
        )
    size = chunk_size(batch_size)
    engine, first, second = prepare(
        model,
        x,
        x2,
        KernelOptions(
            "full" if outputs is None else outputs, output, parameters, rates, None, batch_axis, shared
        ),
    )
    linear = Linearised(engine.model, engine.parameters, engine.outputs)
    return NTKOperator(
        linear=linear,
        ways=find_ways(linear, probe(first)),
        rates=engine.rates,
        first=first,
        second=second,
        batch_size=size,
        bytes_per_sample=engine.memory.passes,
    )
