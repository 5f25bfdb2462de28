"""The function :func:`flow`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.flow.layers import one_input, residual_inputs, several_inputs
from foretrain.theory.flow.request import Array, Method, Request, check_request, require_memory_for
from foretrain.theory.flow.result import Flow, legs
from foretrain.theory.recursions.kinks import Kinks, inputs_on_kinks, warn_of_kinks
from foretrain.theory.recursions.ntk import first_tangent_kernel


def flow(
    mlp: MLP,
    X: ArrayLike,
    observables: Sequence[str] = ("K",),
    *,
    quadruples: ArrayLike | None = None,
    contract: Any = None,
    C_b_1: ArrayLike = 0.0,
    C_W_1: ArrayLike = 0.0,
    method: Method = "complete",
    kinks: Kinks = "delta",
    draws: int | None = None,
    seed: Seed = 0,
    tolerance: float = 1e-10,
) -> Flow:
    """Statistics of preactivations and tangent kernel of random networks at every layer, at leading order in 1/width.

    Parameters
    ----------
    X
        Inputs (N, n_in).
    observables
        Preactivations: ``K``, ``V``, ``G1``; ``norm_covariance`` and ``entry_variance``, the entries (aa)(bb) and
        (ab)(ab) of V at O(N^2) cost; ``six_point`` of each input alone; ``three_point``, which only skip connections
        make non-zero.
        Tangent kernel: ``Theta``, ``H1``; ``D`` and ``A`` with indices 1234, ``F`` and ``B`` stored as 1324 (8.67),
        (8.82). Its differentials: ``P`` and ``Q`` of the dNTK with a preactivation (11.45), ``R``, ``S``, ``T``
        (stored as 1342) and ``U`` (stored as 1423) of the ddNTKs (∞.11), (∞.12).
        No 1/n is inside: the physical value at layer l is value / n_{l-1} (six_point: / n_{l-1}^2).
    quadruples
        Index sets (Q, 4), each an entry in the order in which a tensor is stored: V, D, F, A, B and P to U then have
        the dimension ``quadruple`` instead of four input indices, at a cost that does not depend on N.
    contract
        A pair (X, Y) of N x N matrices, or a list of pairs: V, D, F, A and B then are summed with X over their first
        two stored indices and with Y over the last two, without N^4 entries, with the coordinate ``standard_error``.
        Exact for diagonal matrices, with ``draws=0``, and where that takes about ten seconds at most; otherwise
        one expectation per layer is sampled with ``draws`` and ``seed``. P to U are contracted exactly, through all
        their entries.
    C_b_1, C_W_1
        Order-1/n parts of the initialisation variances C_b + C_b_1 / n_{l-1}, one number or one per layer, which add
        to G1 from layer 2 on (5.140).
    method
        For V of residual networks: ``complete``, the whole leading order, or ``book``, the recursion (B.24) as
        printed, which misses what a neuron's own history adds from layer 3 on.
    kinks
        For P and Q where the slope of the activation jumps: ``delta``, the limit of smooth activations, or
        ``almost_everywhere``, without the second derivative at the kinks, as automatic differentiation has it. On one
        input of a scale-invariant activation both agree.

    Examples
    --------
    >>> import foretrain as ft
    >>> deep = ft.flow(ft.MLP("relu", depth=5, width=100, C_W=2.0), [[1.0, 2.0], [2.0, -1.0]])
    >>> deep["K"].sel(layer=5).values.round(4)
    array([[5.    , 3.4048],
           [3.4048, 5.    ]])
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    mlp = mlp.with_inputs(inputs)
    request = check_request(
        mlp,
        len(inputs),
        observables,
        quadruples,
        contract,
        C_b_1=C_b_1,
        C_W_1=C_W_1,
        method=method,
        kinks=kinks,
        draws=draws,
        seed=seed,
        tolerance=tolerance,
    )
    # Where nothing but tensors on quadruples is wanted, only the inputs that these name play a part.
    chosen = request.quadruples if request.names == request.tensors else None
    used, places = np.unique(np.arange(len(inputs)) if chosen is None else chosen, return_inverse=True)
    if request.needs_tangent_kernel:
        warn_of_kinks(mlp, [number for number in inputs_on_kinks(mlp, inputs) if number in used])
    if chosen is None:
        return _run(mlp, inputs, request)
    # They keep the numbers that they have among all inputs.
    own = replace(request, quadruples=places.reshape(chosen.shape))
    found = _run(mlp, inputs[used] if len(used) else inputs[:1], own)
    return Flow(mlp, {name: found[name].assign_coords(legs(chosen)) for name in found}, inputs)


def _run(mlp: MLP, inputs: Array, request: Request) -> Flow:
    require_memory_for(mlp.depth, len(inputs), request, residual=mlp.is_residual)
    K, Theta = mlp.first_kernel(inputs), first_tangent_kernel(mlp, inputs)
    recursion = residual_inputs if mlp.is_residual else one_input if len(inputs) == 1 else several_inputs
    return Flow(mlp, recursion(mlp, K, Theta, request), inputs)
