"""The action of a layer's preactivations, marginalised over neurons and inputs, and how its couplings run.

S = (1/2) sum_i g^{ab} z_ia z_ib - (1/8) sum_ij v^{(ab)(cd)} z_ia z_ib z_jc z_jd (4.80) for the neurons that are
kept. It is perturbative: v is positive, so exp(-S) is to be expanded to first order in it. For observables
prefer :mod:`foretrain.theory.finite_width`, which needs neither the action nor an inverse.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.gaussian.action import QuarticAction, neuron_kernel
from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import Array, whole_number
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.theory.architecture import MLP
from foretrain.theory.finite_width import fluctuation, layer_statistics

if TYPE_CHECKING:
    import xarray as xr


_SINGULAR = 1e-10  # of the correlations' lowest eigenvalue
_STEADY = 0.1  # a power of depth below which a coupling neither grows nor shrinks


@dataclass(frozen=True, repr=False)
class LayerAction(Result):
    """Couplings of the action of ``neurons`` neurons of a layer over the inputs that were kept.

    ``quadratic`` is g^{ab} (4.109), ``metric`` its inverse g_ab to order 1/n (4.108), ``quartic`` is v^{(ab)(cd)}
    = V raised / n (4.82).
    """

    layer: int
    fan_in: int
    neurons: int
    quadratic: Array
    metric: Array
    quartic: Array

    def two_point(self) -> Array:
        """E[z_a z_b] of one neuron, to first order in v (4.47): K + G1/n up to n^-2."""
        g, v = self.metric, self.quartic
        many = np.einsum("pqrs,ap,bq,rs->ab", v, g, g, g, optimize=True)
        one = np.einsum("pqrs,ap,br,qs->ab", v, g, g, g, optimize=True)
        return np.asarray(g + 0.5 * (self.neurons * many + 2 * one))

    def four_point(self) -> Array:
        """The part of E[z_ia z_ib z_jc z_jd], i != j, beyond E[z_a z_b] E[z_c z_d] (4.48): V/n up to n^-2."""
        g = self.metric
        return np.asarray(np.einsum("pqrs,ap,bq,cr,ds->abcd", self.quartic, g, g, g, g, optimize=True))

    def quartic_action(self) -> QuarticAction:
        """The same action over all neurons and inputs at once (neuron-major), for its first-order formulas.

        It warns that exp(-S) is not normalisable, which is so for every network.
        """
        size = self.neurons * len(self.metric)
        require_memory(40 * size**4, f"a coupling over {size} variables", "keep fewer neurons or inputs")
        paired = np.einsum("ij,kl,abcd->iajbkcld", *[np.eye(self.neurons)] * 2, self.quartic)
        v = paired.reshape((size,) * 4)
        coupling = -(v + v.transpose(0, 2, 1, 3) + v.transpose(0, 3, 2, 1))
        return QuarticAction(np.kron(np.eye(self.neurons), self.metric), coupling)


def layer_action(
    mlp: MLP,
    X: ArrayLike,
    layer: int | None = None,
    *,
    neurons: int = 1,
    samples: Sequence[int] | None = None,
) -> LayerAction:
    """The action of a layer, marginalised to some neurons and to the inputs ``samples`` (all by default).

    Dropping inputs is exact: indices are raised with the inverse of the block that is left (4.92).

    Examples
    --------
    >>> import foretrain as ft
    >>> net = ft.MLP("relu", depth=3, width=10_000, C_W=2.0)
    >>> pair = layer_action(net, [[1.0, 0.0], [0.0, 1.0]], neurons=2, samples=[0])
    >>> pair.metric.round(4), pair.two_point().round(4)
    (array([[0.998]]), array([[1.]]))
    """
    rows = mlp.check_inputs(X)
    if samples is not None:
        chosen = np.asarray(samples)
        if chosen.ndim != 1 or not chosen.size or chosen.dtype.kind not in "iu":
            raise InputError(f"`samples` is {samples!r}: give a list of input numbers.")
        if chosen.min() < 0 or chosen.max() >= len(rows) or len(set(chosen.tolist())) < len(chosen):
            raise InputError(
                f"`samples` is {list(samples)}: name inputs from 0 to {len(rows) - 1}, each once."
            )
        rows = rows[chosen]
    statistics = layer_statistics(mlp, rows, layer)
    neurons = whole_number("neurons", neurons)
    _refuse_singular(statistics.K)
    inverse = np.linalg.inv(statistics.K)
    raised = np.einsum("abcd,ap,bq,cr,ds->pqrs", statistics.V, *[inverse] * 4, optimize=True)
    across = np.einsum("pqrs,rs->pq", raised, statistics.K)
    within = np.einsum("prqs,rs->pq", raised, statistics.K)
    quadratic = -inverse @ statistics.G1 @ inverse + 0.5 * neurons * across + within
    lowered = 0.5 * neurons * np.einsum("abrs,rs->ab", statistics.V, inverse)
    lowered += np.einsum("arbs,rs->ab", statistics.V, inverse)
    found = LayerAction(
        statistics.layer,
        statistics.fan_in,
        neurons,
        inverse + quadratic / statistics.fan_in,
        statistics.K + (statistics.G1 - lowered) / statistics.fan_in,
        raised / statistics.fan_in,
    )
    if min(np.linalg.eigvalsh(coupling).min() for coupling in (found.quadratic, found.metric)) <= 0:
        raise InputError(
            f"the quadratic coupling of {neurons} neurons is not positive at layer {found.layer}, so that the first "
            "order in 1/n is no action: use wider layers, fewer layers or fewer neurons."
        )
    return found


def running(
    mlp: MLP, x: ArrayLike, layer: int | None = None, *, neurons: Sequence[int] = (1, 2, 4, 8)
) -> xr.Dataset:
    """Couplings for one input x as neurons are integrated out: g_m, 1/g_m (4.102) and v (4.103) by ``neurons`` m.

    g_m depends on how many neurons are kept, not on how many the layer has.
    """
    found = layer_statistics(mlp, np.atleast_2d(np.asarray(x)), layer)
    if len(found.K) != 1:
        raise InputError(
            f"running is for one input, but {len(found.K)} were given: use layer_action for more."
        )
    _refuse_singular(found.K)
    kept = [whole_number("neurons", count) for count in neurons]
    G = float(found.K[0, 0] + found.G1[0, 0] / found.fan_in)
    vertex = float(found.V[0, 0, 0, 0]) / found.fan_in
    inverse = np.array([neuron_kernel(G, vertex, count) for count in kept])
    if (inverse <= 0).any():
        raise InputError(
            f"with {max(kept)} neurons kept the quadratic coupling is no longer positive: "
            "keep fewer compared with the width."
        )
    return labelled(
        {
            "quadratic": ("neurons", 1 / inverse),
            "inverse_quadratic": ("neurons", inverse),
            "quartic": ("neurons", np.full(len(kept), vertex / G**4)),
        },
        {"layer": found.layer, "fan_in": found.fan_in, "two_point": G, "vertex": vertex},
        neurons=kept,
    )


def relevance(mlp: MLP, X: ArrayLike) -> xr.Dataset:
    """Whether V / (n K^2) grows with depth (relevant), shrinks (irrelevant) or stays (marginal), for every input.

    ``power`` is the exponent of depth fitted over the second half of the layers; at criticality it is one in every
    class. A coupling that changes as less than the power 0.1 counts as marginal.
    """
    import xarray as xr

    if mlp.depth < 4:
        raise InputError(f"`depth` is {mlp.depth}: give at least 4 layers to see a coupling run.")
    coupling = fluctuation(mlp, X)
    first = max(2, (mlp.depth + 1) // 2)
    late = coupling.sel(layer=slice(first, None))
    if not (late > 0).all():
        raise InputError("an input has no fluctuations at all (is it zero without a bias?): leave it out.")
    # Layer l has passed l - 1 activations, which is what couplings count.
    power = np.polyfit(np.log(late["layer"].values - 1.0), np.log(late.values), 1)[0]
    words = np.where(power > _STEADY, "relevant", np.where(power < -_STEADY, "irrelevant", "marginal"))
    return xr.Dataset({"coupling": coupling, "power": ("input", power), "relevance": ("input", words)})


def _refuse_singular(K: Array) -> None:
    size = np.sqrt(np.diagonal(K))
    if not (size > 0).all():
        raise InputError(
            f"the kernel of input {int(np.argmin(size))} is zero, so its action does not exist: leave it out."
        )
    if np.linalg.eigvalsh(K / np.outer(size, size))[0] < _SINGULAR:
        raise InputError(
            "the kernel of these inputs is singular, so it has no inverse and no action: drop duplicated or "
            "dependent inputs with `samples=`, or use mean_of and covariance_of, which need no inverse."
        )
