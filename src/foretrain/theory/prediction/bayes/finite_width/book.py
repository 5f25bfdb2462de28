"""The posterior mean as the book writes it, through the couplings of a quartic action (6.79)-(6.88).

It agrees with :func:`finite_bayes_prediction` at order 1/n and carries parts of order 1/n^2 that nothing controls;
it needs V on all inputs, training and test together.

Beside it the law of a neuron, given what others of its layer were seen to do: neurons that fire together (section
6.4.1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import labelled
from foretrain.support.errors import InputError
from foretrain.theory.architecture import MLP
from foretrain.theory.finite_width import layer_statistics
from foretrain.theory.flow import flow
from foretrain.theory.prediction.bayes.finite_width.observed import check_plain, observe
from foretrain.theory.prediction.bayes.finite_width.posterior import warn_of_expansion
from foretrain.theory.prediction.bayes.posterior import targets_for
from foretrain.theory.prediction.cholesky import factorise

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


class Couplings(NamedTuple):
    """Of n_L outputs on all inputs: g_ab, the inverse of g^ab, and v^(ab)(cd)."""

    metric: Array
    quartic: Array


def running_couplings(G: Array, V: Array, inverse_width: float, outputs: int) -> Couplings:
    """g^ab = G^ab + [n_L V^(ab)(cd) / 2 + V^(ac)(bd)] G_cd / n and v = V / n, indices raised with G^-1 (4.81).

    g depends on how many outputs there are: without that, the mean would, too.
    """
    inverse = np.linalg.inv(G)
    raised = inverse_width * np.einsum("abcd,ap,bq,cr,ds->pqrs", V, *[inverse] * 4, optimize=True)
    across, within = (np.einsum(legs, raised, G, optimize=True) for legs in ("abcd,cd->ab", "acbd,cd->ab"))
    g = np.linalg.inv(inverse + 0.5 * outputs * across + within)
    return Couplings((g + g.T) / 2, raised)


def book_posterior_mean(mlp: MLP, X_train: ArrayLike, Y_train: ArrayLike, X_test: ArrayLike) -> xr.DataArray:
    """E[z | y_A] on test inputs by (6.88), letter by letter: (test, output)."""
    import xarray as xr

    data = observe(mlp, X_train, Y_train, 0.0)
    tests = data.test_inputs(X_test)
    found = flow(mlp, np.concatenate([data.inputs, tests]), ["K", "G1", "V"])
    K, G1, V = (found[name].values[-1] for name in ("K", "G1", "V"))
    G = K + data.inverse_width * G1
    if np.linalg.eigvalsh(G)[0] <= 1e-12 * np.trace(G):
        raise InputError(
            "the metric of training and test inputs together is singular, so that it has no couplings: leave out "
            "repeated inputs, or use finite_bayes_prediction, which needs no inverse of it."
        )
    couplings = running_couplings(G, V, data.inverse_width, mlp.n_out)
    if np.linalg.eigvalsh(couplings.metric)[0] <= 0:
        raise InputError(
            "the running coupling is not positive, so that the first order in 1/n is no action: use wider layers."
        )
    values = _mean(couplings, data.targets)
    return xr.DataArray(values, dims=("test", "output"), name="mean", attrs={"equation": "(6.88)"})


def _mean(couplings: Couplings, targets: Array) -> Array:
    g, v = couplings
    A, B = slice(0, len(targets)), slice(len(targets), None)
    weights = np.linalg.solve(g[A, A], g[A, B]).T
    mean = weights @ targets  # (6.81)
    spread = g[B, B] - weights @ g[A, B]  # (6.82)
    Phi = np.concatenate([targets, mean])  # (6.83)
    cubic = np.einsum("bcde,ci,dk,ek->bi", v[B], Phi, Phi, Phi, optimize=True)
    many = np.einsum("xyzd,xy,di->zi", v[B, B, B], spread, Phi, optimize=True)
    one = np.einsum("xyzd,yz,di->xi", v[B, B, B], spread, Phi, optimize=True)
    return np.asarray(mean + 0.5 * spread @ (cubic + targets.shape[1] * many + 2 * one))


def hebbian_variance(mlp: MLP, X: ArrayLike, observed: ArrayLike, layer: int | None = None) -> xr.Dataset:
    """E[z_a z_b] of a neuron, given the preactivations of other neurons of its layer on the inputs X (6.78).

    ``observed`` is (inputs,) for one neuron or (inputs, neurons) for several; ``layer`` is the output by default.
    With u = K^-1 z the ``variance`` (input_1, input_2) is ``kernel`` K + ``metric_correction`` G1/n + ``association``
    V_(ab)(cd) sum_k (u_k^c u_k^d - K^cd) / 2n: larger where others were larger than expected. The attribute
    ``expansion`` is the variance of the log density of what was observed over networks, which must be small.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = hebbian_variance(ft.MLP("tanh", depth=6, width=64), [[1.0]], [0.5])
    >>> round((found["kernel"] + found["association"]).item(), 10)
    0.1068981848
    """
    check_plain(mlp)
    inputs = mlp.check_inputs(X)
    seen = targets_for(observed, len(inputs), "observed preactivations")
    found = layer_statistics(mlp, inputs, layer)
    if found.layer == 1:
        raise InputError("neurons of the first layer are independent: ask for a layer from 2 on.")
    training = factorise(found.K)
    u = training.solve(seen)
    M = u @ u.T - seen.shape[1] * training.solve(np.eye(len(inputs)))
    association = np.einsum("abcd,cd->ab", found.V, M, optimize=True) / (2 * found.fan_in)
    expansion = 0.5 * float(np.sum(association * M))
    warn_of_expansion(expansion)
    parts = {"kernel": found.K, "metric_correction": found.G1 / found.fan_in, "association": association}
    dims = ("input_1", "input_2")
    return labelled(
        {name: (dims, values) for name, values in {"variance": sum(parts.values()), **parts}.items()},
        {"layer": found.layer, "fan_in": found.fan_in, "expansion": expansion},
    )
