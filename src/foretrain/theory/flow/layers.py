"""The function :func:`flow`, its result, and all layers by the cheapest recursion.

That is one for a single input, to any depth, one for several, and one for skip connections.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Answer, Result
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.progress import track
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.flow.request import Array, Method, Request, check_request, legs, require_memory_for
from foretrain.theory.recursions.contraction import PULLED_BACK, choose_way, contraction
from foretrain.theory.recursions.expectations import (
    PairExpectations,
    Step,
    first_tangent_kernel,
    next_kernel,
    next_tangent_kernel,
    refuse_exploded,
)
from foretrain.theory.recursions.kinks import Kinks, inputs_on_kinks, warn_of_kinks
from foretrain.theory.recursions.pair_blocks import MetricCorrection, PairVertices, TangentCorrection
from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.recursions.residual import residual_flow
from foretrain.theory.recursions.single_input import differential_flow, single_input_flow, tangent_flow
from foretrain.theory.recursions.six_point import six_point_flow
from foretrain.theory.recursions.tensors import FullTensors, QuadrupleTensors
from foretrain.theory.tensors import FOUR_INPUTS, MEANINGS, SECOND_DIFFERENTIALS, TENSORS

if TYPE_CHECKING:
    import xarray as xr


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
    K = mlp.first_kernel(inputs)
    Theta = first_tangent_kernel(mlp, inputs) if request.needs_tangent_kernel else None
    recursion = _residual_inputs if mlp.is_residual else _one_input if len(inputs) == 1 else _several_inputs
    return Flow(mlp, recursion(mlp, K, Theta, request), inputs)


class Flow(Result, Mapping[str, "xr.DataArray"]):
    """Tensors by name, each with dimension ``layer`` = 1..L and one dimension for each input index."""

    def __init__(self, mlp: MLP, tensors: Mapping[str, xr.DataArray], inputs: Array) -> None:
        self.mlp = mlp
        self.inputs = inputs
        self._tensors = dict(tensors)

    def __getitem__(self, name: str) -> xr.DataArray:
        if isinstance(name, str) and name in self._tensors:
            return self._tensors[name]
        if isinstance(name, str) and name in MEANINGS:
            raise InputError(
                f"{name} was not computed: add it to `observables=` of flow, which had {', '.join(self._tensors)}."
            )
        raise unknown_name("observable of this flow", str(name), self._tensors)

    def get(self, name: str, default: Any = None) -> Any:
        """The tensor, or the default if it was not computed."""
        return self._tensors.get(name, default)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    @cached_property
    def summary(self) -> xr.Dataset:
        """What people look at, by layer, with the laws of input 0: see ``presentation.layer_summary``."""
        from foretrain.theory.flow.presentation import layer_summary

        return layer_summary(self)

    def answer(self) -> Answer:
        """Numbers by layer beside their laws, how large fluctuations are, and the picture."""
        from foretrain.theory.flow.presentation import flow_answer

        return flow_answer(self)


class _Moving(Protocol):
    """Tensors that move from layer to layer: a step takes the expectations at the old kernel."""

    def step(self, old: PairExpectations, step: Step) -> None: ...

    def now(self) -> dict[str, Array]: ...


def _several_inputs(mlp: MLP, K: Array, Theta: Array | None, request: Request) -> dict[str, xr.DataArray]:
    """The tensors asked for, from the kernel and, where it plays a part, the tangent kernel of layer 1."""
    contractions = {}
    if request.matrices is not None:
        left, right = request.matrices[:, 0], request.matrices[:, 1]
        for name in (name for name in request.tensors if name in PULLED_BACK):
            way = choose_way(name, request.matrices, mlp.activation, mlp.depth, request.draws, request.seed)
            contractions[name] = contraction(name, left, right, way)
    moving = [*_moving(request, Pairs(len(K))), *contractions.values()]
    found: dict[str, Array] = {}
    for index, now in enumerate(_layers(mlp, K, Theta, request, moving)):
        for name in now.keys() & {*request.names}:
            if name not in found:
                found[name] = np.empty((mlp.depth, *now[name].shape), now[name].dtype)
            found[name][index] = now[name]
    if "six_point" in request.names:
        found["six_point"] = six_point_flow(mlp, np.diagonal(K))
    if "three_point" in request.names:
        found["three_point"] = np.zeros((mlp.depth, *(len(K),) * 3))
    arrays = {name: request.labelled(name, values) for name, values in found.items()}
    for name, pulled in contractions.items():
        total = pulled.values()
        arrays[name] = request.contracted(name, total.value, np.sqrt(total.variance))
    return {name: arrays[name] for name in request.names}


def _layers(
    mlp: MLP, K: Array, Theta: Array | None, request: Request, moving: list[_Moving]
) -> Iterator[dict[str, Array]]:
    """All tensors at layers 1..L: first those of the next layer from the old kernels, then the kernels."""
    for index, layer in enumerate(track(mlp.layers, "layers")):
        if index:
            old = PairExpectations(mlp.activation, K, request.tolerance, Theta=Theta, kinks=request.kinks)
            step = Step.into(mlp, index, float(request.C_b_1[index]), float(request.C_W_1[index]))
            for item in moving:
                item.step(old, step)
            K = next_kernel(old, layer)
            if Theta is not None:
                Theta = next_tangent_kernel(old, Theta, layer)
        refuse_exploded(K.diagonal(), layer.number)
        now = {"K": K} if Theta is None else {"K": K, "Theta": Theta}
        for item in moving:
            now |= item.now()
        yield now


def _moving(request: Request, pairs: Pairs) -> Iterator[_Moving]:
    """What has to be carried from layer to layer for the names asked for."""
    if "H1" in request.names:
        yield TangentCorrection(pairs)
    elif "G1" in request.names:
        yield MetricCorrection(pairs)
    elif {"norm_covariance", "entry_variance"} & {*request.names}:
        yield PairVertices(pairs)
    if request.full_tensors:
        yield FullTensors(pairs, request.full_tensors)
    if request.quadruples is not None:
        yield QuadrupleTensors(request.quadruples, request.tensors)


def _one_input(mlp: MLP, K: Array, Theta: Array | None, request: Request) -> dict[str, xr.DataArray]:
    """The tensors asked for, from the kernel and, where it plays a part, the tangent kernel of layer 1."""
    found = single_input_flow(mlp, float(K[0, 0]), request.C_b_1, request.C_W_1)
    found["norm_covariance"] = found["entry_variance"] = found["V"]
    if Theta is not None:
        found |= tangent_flow(mlp, float(Theta[0, 0]), found, request.C_W_1)
    if request.differentials:
        second = bool({*SECOND_DIFFERENTIALS} & {*request.names})
        found |= differential_flow(mlp, found, request.kinks, second=second)
    if "three_point" in request.names:
        found["three_point"] = np.zeros(mlp.depth)
    if "six_point" in request.names:
        found["six_point"] = six_point_flow(mlp, np.diagonal(K))[:, 0]
    for name in request.names:
        # With the indices of the one input, or once for every quadruple.
        shape = (1,) * TENSORS[name].indices
        if name in FOUR_INPUTS and request.quadruples is not None:
            shape = (len(request.quadruples),)
        found[name] = np.tile(found[name].reshape(-1, *(1,) * len(shape)), (1, *shape))
    return {name: request.labelled(name, found[name]) for name in request.names}


def _residual_inputs(mlp: MLP, K: Array, Theta: Array | None, request: Request) -> dict[str, xr.DataArray]:
    """The tensors asked for, from the kernel and, where it plays a part, the tangent kernel of layer 1."""
    apart = {"Theta"} if request.quadruples is None else {"Theta", "V"}
    names = tuple(name for name in request.names if name not in apart)
    options: dict[str, Any] = {"method": request.method, "tolerance": request.tolerance}
    found = residual_flow(mlp, K, wanted=names, **options) if names else {}
    if Theta is not None:
        kernel, kept = K, [Theta]
        for layer in track(mlp.layers[1:], "layers"):
            old = PairExpectations(mlp.activation, kernel, request.tolerance)
            kept.append(next_tangent_kernel(old, kept[-1], layer))
            kernel = next_kernel(old, layer)
        found["Theta"] = np.stack(kept)
    if request.quadruples is not None:
        # V_(ab)(cd) from the flow of the inputs a, b, c, d alone, which marginalisation allows.
        columns = [np.zeros((mlp.depth, 0))]
        for quadruple in track(request.quadruples, "quadruples"):
            used, (a, b, c, d) = np.unique(quadruple, return_inverse=True)
            V = residual_flow(mlp, K[np.ix_(used, used)], wanted=("V",), **options)["V"]
            number = Pairs(len(used)).number
            columns.append(V[:, number[a, b], number[c, d]][:, None])
        found["V"] = np.concatenate(columns, axis=1)
    elif "V" in found:
        pairs = Pairs(len(K))
        found["V"] = np.stack([pairs.tensor(matrix) for matrix in found["V"]])
    return {name: request.labelled(name, found[name]) for name in request.names}
