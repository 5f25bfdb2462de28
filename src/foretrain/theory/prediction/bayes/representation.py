"""Representation learning by Bayesian inference (section 6.4): what observing targets does to neurons and layers.

Any observable of a hidden layer moves by half its covariance with the last metric times M (6.99). For the metric of
layer l that is V^(l) : M^(l) / 2 n_{l-1} with M^(L) = M and M^(l) = M^(l+1) dK^(l+1)/dK^(l), which is twice the
gradient of the log evidence with respect to K^(l). So every layer moves at order 1/n, also those before the last
hidden one, for which footnote 35 of the book has 1/n^2.

Beside it the law of a neuron, given what others of its layer were seen to do: neurons that fire together; and the
posterior mean as the book writes it, through the couplings of a quartic action (6.79)-(6.88). That agrees with
:func:`finite_bayes_prediction` at order 1/n and carries parts of order 1/n^2 that nothing controls; it needs V on all
inputs, training and test together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import labelled
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.finite_width import layer_statistics
from foretrain.theory.flow import flow
from foretrain.theory.prediction.bayes.finite_width import (
    RUNS,
    Block,
    Covariance,
    HiddenLayer,
    Observed,
    between,
    check_plain,
    choose_covariances,
    hidden_layers,
    observe,
    warn_of_expansion,
)
from foretrain.theory.prediction.bayes.posterior import targets_for
from foretrain.theory.prediction.cholesky import factorise
from foretrain.theory.recursions.contraction import on_pairs
from foretrain.theory.recursions.pairs import Pairs

if TYPE_CHECKING:
    import xarray as xr


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
    # v = V / n and g^ab = G^ab + [n_L V^(ab)(cd) / 2 + V^(ac)(bd)] G_cd / n, indices raised with G^-1 (4.81). That g
    # depends on how many outputs there are keeps the mean from doing so.
    inverse = np.linalg.inv(G)
    v = data.inverse_width * np.einsum("abcd,ap,bq,cr,ds->pqrs", V, *[inverse] * 4, optimize=True)
    across, within = (np.einsum(legs, v, G, optimize=True) for legs in ("abcd,cd->ab", "acbd,cd->ab"))
    g = np.linalg.inv(inverse + 0.5 * mlp.n_out * across + within)
    g = (g + g.T) / 2
    if np.linalg.eigvalsh(g)[0] <= 0:
        raise InputError(
            "the running coupling is not positive, so that the first order in 1/n is no action: use wider layers."
        )
    A, B = slice(0, len(data.targets)), slice(len(data.targets), None)
    weights = np.linalg.solve(g[A, A], g[A, B]).T
    mean = weights @ data.targets  # (6.81)
    spread = g[B, B] - weights @ g[A, B]  # (6.82)
    Phi = np.concatenate([data.targets, mean])  # (6.83)
    cubic = np.einsum("bcde,ci,dk,ek->bi", v[B], Phi, Phi, Phi, optimize=True)
    many = np.einsum("xyzd,xy,di->zi", v[B, B, B], spread, Phi, optimize=True)
    one = np.einsum("xyzd,yz,di->xi", v[B, B, B], spread, Phi, optimize=True)
    values = mean + 0.5 * spread @ (cubic + mlp.n_out * many + 2 * one)
    return xr.DataArray(values, dims=("test", "output"), name="mean", attrs={"equation": "(6.88)"})


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


def representation_shift(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X: ArrayLike | None = None,
    *,
    noise: float = 0.0,
    draws: int | None = None,
    seed: Seed = 0,
) -> xr.Dataset:
    """How metrics and second moments of activations move in every layer, on training inputs followed by those of X.

    Variables: ``metric`` (layer 2..L, input_1, input_2), the shift of the mean of C_b + C_W s s / n from prior to
    posterior; ``kernel``, the infinite-width value; ``activations`` (hidden layer 1..L-1), the shift of s s / n
    (6.104); ``force``, M^(l) on the training inputs. All contain their 1/n; the attribute ``expansion`` must be
    small. With ``draws``, as in :func:`finite_bayes_prediction`, there are ``metric_standard_error`` and
    ``activations_standard_error``, too.

    Examples
    --------
    >>> import foretrain as ft
    >>> large = representation_shift(ft.MLP("relu", depth=4, width=1000, C_W=2.0), [[1.0]], [3.0])
    >>> large["metric"].values.ravel().round(4)
    array([0.0175, 0.035 , 0.0525])
    """
    data = observe(mlp, X_train, Y_train, noise)
    extra = data.inputs[:0] if X is None else data.test_inputs(X)
    layers, K = hidden_layers(mlp, np.concatenate([data.inputs, extra]))
    # M^(l) on pairs of training inputs, at layers 2..L (6.99).
    forces = [on_pairs(data.M, Pairs(len(data.inputs)))] if layers else []
    for layer in layers[:0:-1]:
        back = layer.response(_training_pairs(data, layer)).pull_back(forces[0])
        forces.insert(0, layer.step.C_W * back)
    covariances = choose_covariances(data, len(extra), "covariance", draws, seed)
    runs = np.stack([_metric_shifts(data, len(K), layers, forces, way) for way in covariances])
    scale = np.array([1.0 / (2 * width) for width in mlp.hidden_widths])[:, None, None]
    values = scale * runs.mean(axis=0)
    errors = scale * runs.std(axis=0, ddof=1) / np.sqrt(RUNS) if len(runs) > 1 else None
    expansion = 0.5 * float(np.sum(values[-1:, : len(data.inputs), : len(data.inputs)] * data.M))
    warn_of_expansion(expansion)
    kernels = (
        np.stack([*(layer.expectations.K for layer in layers[1:]), K]) if layers else np.empty((0, *K.shape))
    )
    return _labelled(mlp, values, errors, kernels, forces).assign_attrs(expansion=expansion)


def _training_pairs(data: Observed, layer: HiddenLayer) -> Pairs:
    """In the order that they have without other inputs."""
    inputs = np.arange(len(data.inputs))
    return between(len(layer.expectations.K), inputs, inputs)


def _metric_shifts(
    data: Observed, size: int, layers: Sequence[HiddenLayer], forces: Sequence[Array], covariance: Covariance
) -> Array:
    """V^(l) : M^(l) at layers 2..L, (L - 1, N, N).

    It obeys the recursion of V with one leg pair summed: V' : M' = C_W^2 Cov : M' + (n_l / n_{l-1}) C_W R (V : M).
    """
    everything = Pairs(size)
    moved, found = np.zeros(len(everything)), np.empty((len(layers), size, size))
    for place, (layer, force) in enumerate(zip(layers, forces, strict=True)):
        (source,) = covariance(layer, [Block(everything, _training_pairs(data, layer))])
        step = layer.step
        old = step.ratio * step.C_W * (layer.response(everything) @ moved)
        moved = step.C_W**2 * source @ force + old
        found[place] = everything.matrix(moved)
    return found


def _labelled(
    mlp: MLP, values: Array, errors: Array | None, kernels: Array, forces: Sequence[Array]
) -> xr.Dataset:
    import xarray as xr

    C_W = np.array(mlp.C_W[1:])[:, None, None]
    # Where the next layer ignores them, activations neither matter nor move.
    inverse = np.divide(1.0, C_W, out=np.zeros_like(C_W), where=C_W > 0)
    inputs, training = ("input_1", "input_2"), ("train_1", "train_2")
    found = {
        "metric": (("layer", *inputs), values),
        "kernel": (("layer", *inputs), kernels),
        "activations": (("hidden_layer", *inputs), inverse * values),
    }
    if forces:
        pairs = Pairs(round((np.sqrt(8 * len(forces[0]) + 1) - 1) / 2))
        each = np.where(pairs.first == pairs.second, 1.0, 0.5)
        found["force"] = ("layer", *training), np.stack([pairs.matrix(each * force) for force in forces])
    if errors is not None:
        found["metric_standard_error"] = ("layer", *inputs), errors
        found["activations_standard_error"] = ("hidden_layer", *inputs), inverse * errors
    layers = np.arange(2, mlp.depth + 1)
    return xr.Dataset(found, coords={"layer": layers, "hidden_layer": layers - 1})
