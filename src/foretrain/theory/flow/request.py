"""What is asked of a flow, checked: observables, in which form the tensors of four inputs, with what corrections.

Tensors are labelled in the form that was asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import MOST_DRAWS
from foretrain.theory.recursions.kinks import Kinks, slope_jumps
from foretrain.theory.recursions.tensors import carried
from foretrain.theory.tensors import (
    DIFFERENTIALS,
    FOUR_INPUTS,
    MEANINGS,
    SECOND_DIFFERENTIALS,
    TANGENT,
    TENSORS,
)

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]
Indices = NDArray[np.intp]
Method = Literal["complete", "book"]

_TABLES = 120  # of N^4 entries: up to six products of four, their index sets, and what a rule holds at once
_PAIRWISE = {"G1", "norm_covariance", "entry_variance"}
_ONLY_PLAIN = ("G1", "norm_covariance", "entry_variance", "six_point", *TANGENT[1:], *DIFFERENTIALS)


@dataclass(frozen=True, eq=False)
class Request:
    """A checked request; ``matrices`` (C, 2, N, N) are the pairs to contract tensors with."""

    names: tuple[str, ...]
    quadruples: Indices | None
    matrices: Array | None
    single_contraction: bool
    C_b_1: Array
    C_W_1: Array
    method: Method
    kinks: Kinks
    draws: int | None
    seed: Seed
    tolerance: float

    @property
    def tensors(self) -> tuple[str, ...]:
        """The tensors of four inputs asked for."""
        return tuple(name for name in self.names if name in FOUR_INPUTS)

    @property
    def full_tensors(self) -> tuple[str, ...]:
        """Those of them that are computed with all their entries."""
        if self.quadruples is not None:
            return ()
        return self.tensors if self.matrices is None else self.differentials

    @property
    def differentials(self) -> tuple[str, ...]:
        """The tensors of the dNTK and the ddNTKs asked for."""
        return tuple(name for name in self.names if name in DIFFERENTIALS)

    @property
    def needs_tangent_kernel(self) -> bool:
        """Whether anything asked for involves Theta."""
        return bool({*TANGENT, *DIFFERENTIALS} & {*self.names})

    def labelled(self, name: str, values: Array) -> xr.DataArray:
        """Values (layers, inputs, ...), or (layers, quadruples) on quadruples, in the form that was asked for."""
        if name in FOUR_INPUTS and self.quadruples is not None:
            return _labelled(name, values, ("quadruple",), legs(self.quadruples))
        if name in FOUR_INPUTS and self.matrices is not None:
            left, right = self.matrices[:, 0], self.matrices[:, 1]
            summed = np.einsum("qab,labcd,qcd->lq", left, values, right, optimize=True)
            return self.contracted(name, summed, np.zeros_like(summed))
        return _labelled(name, values, tuple(f"input_{i}" for i in range(1, TENSORS[name].indices + 1)), {})

    def contracted(self, name: str, values: Array, errors: Array) -> xr.DataArray:
        """Values (layers, C) of contractions, with standard errors as a coordinate; one pair has no dimension."""
        if self.single_contraction:
            return _labelled(name, values[:, 0], (), {"standard_error": ("layer", errors[:, 0])})
        coordinate = {"standard_error": (("layer", "contraction"), errors)}
        return _labelled(name, values, ("contraction",), coordinate)


def legs(quadruples: Indices) -> dict[str, tuple[str, Indices]]:
    """The input indices of quadruples as coordinates ``leg_1`` to ``leg_4``."""
    return {f"leg_{i + 1}": ("quadruple", quadruples[:, i]) for i in range(4)}


def _labelled(
    name: str, values: Array, dims: tuple[str, ...], coordinates: Mapping[str, object]
) -> xr.DataArray:
    import xarray as xr

    layers = np.arange(1, len(values) + 1)
    return xr.DataArray(
        values,
        dims=("layer", *dims),
        coords={"layer": layers, **coordinates},
        name=name,
        attrs={"meaning": MEANINGS[name]},
    )


def check_request(
    mlp: MLP,
    inputs: int,
    observables: Sequence[str],
    quadruples: ArrayLike | None,
    contract: Any,
    C_b_1: ArrayLike,
    C_W_1: ArrayLike,
    method: str,
    kinks: str,
    draws: int | None,
    seed: Seed,
    tolerance: float,
) -> Request:
    """The request, or an error that says which part of it cannot be met."""
    names = _check_names(observables)
    if quadruples is not None and contract is not None:
        raise InputError("`quadruples=` and `contract=` both say how tensors are wanted: give one of them.")
    if (quadruples is not None or contract is not None) and not {*FOUR_INPUTS} & {*names}:
        raise InputError(
            f"`quadruples=` and `contract=` are for {', '.join(FOUR_INPUTS)}, none of which is among the "
            "observables: add it."
        )
    if method not in get_args(Method):
        raise unknown_name("`method`", str(method), get_args(Method))
    if kinks not in get_args(Kinks):
        raise unknown_name("`kinks`", str(kinks), get_args(Kinks))
    _check_network(mlp, names)
    matrices, single = (None, False) if contract is None else _check_matrices(contract, inputs)
    return Request(
        names=names,
        quadruples=None if quadruples is None else _check_quadruples(quadruples, inputs),
        matrices=matrices,
        single_contraction=single,
        C_b_1=_check_correction("C_b_1", C_b_1, mlp.depth),
        C_W_1=_check_correction("C_W_1", C_W_1, mlp.depth),
        method="complete" if method == "complete" else "book",
        kinks="delta" if kinks == "delta" else "almost_everywhere",
        draws=_check_draws(draws),
        seed=seed,
        tolerance=_check_tolerance(tolerance),
    )


def _check_names(observables: Sequence[str]) -> tuple[str, ...]:
    if observables is None or not isinstance(observables, str | Iterable):
        raise InputError(f"`observables` is {observables!r}: give a list of names such as ['K', 'V'].")
    names = [observables] if isinstance(observables, str) else list(observables)
    for name in names:
        if name not in MEANINGS:
            raise unknown_name("observable", str(name), MEANINGS, "observables")
    if not names:
        raise InputError(f"`observables` is empty: ask for at least one of: {', '.join(MEANINGS)}.")
    return tuple(dict.fromkeys(names))


def _check_network(mlp: MLP, names: tuple[str, ...]) -> None:
    """What skip connections and the derivatives of the activation allow, and the division by C_W in (11.52)."""
    missing = [name for name in names if name in _ONLY_PLAIN] if mlp.is_residual else []
    if missing:
        raise NotSupportedError(
            f"{', '.join(missing)} is known for networks without skip connections only: ask for K, Theta, V and "
            "three_point, or leave `gamma` out."
        )
    infinite = (
        [name for name in names if name in (*TANGENT, *DIFFERENTIALS)]
        if not mlp.activation.is_continuous
        else []
    )
    if infinite:
        raise NotSupportedError(
            f"{', '.join(infinite)} of {mlp.activation.label} is infinite, since the activation jumps: choose a "
            "continuous one."
        )
    missing = [name for name in names if name in SECOND_DIFFERENTIALS]
    if missing and slope_jumps(mlp.activation):
        raise NotSupportedError(
            f"{mlp.activation.label} has no {', '.join(missing)}: its slope jumps, so that <s'' s''> diverges and a "
            "step moves the tangent kernel of a network by 1/sqrt(n) instead of 1/n. Choose a smooth activation, "
            "such as gelu or swish, or ask for P and Q alone."
        )
    if {"Q", "T"} & {*names} and not all(mlp.C_W[1:]):
        raise NotSupportedError("Q and T need C_W > 0 in all layers after the first: give a positive C_W.")


def _check_quadruples(quadruples: ArrayLike, inputs: int) -> Indices:
    chosen = np.asarray(quadruples)
    if chosen.dtype.kind not in "iu" or chosen.ndim != 2 or chosen.shape[1] != 4:
        raise InputError(f"`quadruples` must be integers of shape (Q, 4), but have shape {chosen.shape}.")
    if chosen.size and (chosen.min() < 0 or chosen.max() >= inputs):
        raise InputError(
            f"`quadruples` name inputs {chosen.min()} to {chosen.max()}, but there are {inputs}: choose from 0 to "
            f"{inputs - 1}."
        )
    return chosen.astype(np.intp)


def _check_matrices(contract: Any, inputs: int) -> tuple[Array, bool]:
    """(C, 2, N, N) from one pair of matrices or a list of pairs, and whether it was one pair."""
    try:
        matrices = np.asarray(contract, dtype=np.float64)
    except (TypeError, ValueError):
        matrices = np.empty(0)
    single = matrices.ndim == 3
    if single:
        matrices = matrices[None]
    if matrices.ndim != 4 or matrices.shape[1:] != (2, inputs, inputs) or not len(matrices):
        raise InputError(
            f"`contract` must be a pair (A, B) of real {inputs} x {inputs} matrices, one row and column for each "
            "input, or a list of such pairs."
        )
    if not np.isfinite(matrices).all():
        raise InputError("`contract` contains values that are not finite: remove or replace them.")
    return matrices, single


def _check_correction(name: str, value: ArrayLike, depth: int) -> Array:
    try:
        given = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"`{name}` must be a number or one number per layer.") from error
    if given.shape not in ((), (depth,)) or not np.isfinite(given).all():
        raise InputError(f"`{name}` must be a finite number or a list of {depth}, one per layer.")
    return np.array(np.broadcast_to(given, (depth,)))


def _check_draws(draws: int | None) -> int | None:
    if draws is None:
        return None
    if isinstance(draws, bool) or not isinstance(draws, int | np.integer) or not 0 <= draws <= MOST_DRAWS:
        raise InputError(
            f"`draws` is {draws!r}: give a whole number up to {MOST_DRAWS:,}, or 0 for the exact contraction."
        )
    return int(draws)


def _check_tolerance(tolerance: Any) -> float:
    if not isinstance(tolerance, float | int | np.number) or not 0 < tolerance < 1:
        raise InputError(f"`tolerance` is {tolerance!r}: give a number between 0 and 1, such as 1e-10.")
    return float(tolerance)


def require_memory_for(depth: int, size: int, request: Request, *, residual: bool) -> None:
    """Refuse a flow of ``size`` inputs that does not fit, with its estimate and a way out."""
    pairs = size * (size + 1) // 2
    entries = (depth * len(request.names) + 12) * size**2
    if _PAIRWISE & {*request.names}:
        entries += 40 * pairs
    if "H1" in request.names:
        entries += 160 * pairs  # of which 40 for nearly parallel ones
    whole = request.tensors if residual and request.matrices is not None else request.full_tensors
    if whole:
        kinds, moving = len(whole), len(carried(whole))
        entries += kinds * depth * size**4 + 4 * moving * size**4 + 4 * kinds * pairs**2
        entries += residual * depth * pairs**2
        if request.differentials:
            entries += _TABLES * size**4
    pulled = [name for name in request.tensors if name not in whole]
    if request.matrices is not None and pulled:
        forms, kinds = 2 * len(request.matrices), len(pulled)
        entries += depth * (kinds * forms * (4 * pairs + 3 * size**2) + (2 + 3 * kinds) * size**2)
        entries += 4 * depth * kinds * pairs**2 if request.draws == 0 else 0
    if "three_point" in request.names:
        entries += depth * size**3
    way_out = "use fewer inputs or layers"
    if request.full_tensors:
        way_out = (
            "ask for tensors on chosen `quadruples=` or contracted with `contract=`, or use fewer inputs"
        )
    if request.differentials:
        way_out = "ask for tensors on chosen `quadruples=`, or use fewer inputs"
    require_memory(8 * entries, f"{', '.join(request.names)} of {size:,} inputs at {depth:,} layers", way_out)
