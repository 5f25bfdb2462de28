"""Representation learning by Bayesian inference: how observing targets moves every hidden layer (section 6.4.3).

Any observable of a hidden layer moves by half its covariance with the last metric times M (6.99). For the metric of
layer l that is V^(l) : M^(l) / 2 n_{l-1} with M^(L) = M and M^(l) = M^(l+1) dK^(l+1)/dK^(l), which is twice the
gradient of the log evidence with respect to K^(l). So every layer moves at order 1/n, also those before the last
hidden one, for which footnote 35 of the book has 1/n^2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.prediction.bayes.finite_width.observed import Observed, observe
from foretrain.theory.prediction.bayes.finite_width.posterior import warn_of_expansion
from foretrain.theory.prediction.bayes.finite_width.shifts import RUNS, choose_covariances
from foretrain.theory.prediction.bayes.finite_width.vertex import (
    Block,
    ClosedPairs,
    Covariance,
    HiddenLayer,
    between,
    hidden_layers,
)
from foretrain.theory.recursions.contraction import on_pairs
from foretrain.theory.recursions.pairs import Pairs

if TYPE_CHECKING:
    import xarray as xr

Array = NDArray[np.float64]


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


def _training_pairs(data: Observed, layer: HiddenLayer) -> ClosedPairs:
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
