"""The evidence of a network, log p(y_A), at infinite width, and what it says about hypotheses (6.29)-(6.48).

A scan says which C_b, C_W and L the data prefer (section 6.3.1). All depths of one (C_b, C_W) come from one run of
the kernel recursion. Few inputs at many (C_b, C_W) are put into one block-diagonal covariance, so that one call
gives the expectations of a whole group of hypotheses.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.linalg import LinAlgError
from scipy.special import logsumexp

from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress, track
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, Layer, check_network
from foretrain.theory.arguments import check_targets
from foretrain.theory.nearby import components
from foretrain.theory.prediction.bayes.posterior import log_density, targets_for
from foretrain.theory.prediction.cholesky import CholeskyFactor, check_noise, factorise, factorise_quietly
from foretrain.theory.prediction.kernels import kernel
from foretrain.theory.recursions.expectations import EXPLODED, PairExpectations

if TYPE_CHECKING:
    import xarray as xr


def log_evidence(mlp: MLP, X: ArrayLike, Y: ArrayLike, *, noise: float = 0.0) -> float:
    """log p(y_A) of a network before training (6.34); ``noise`` is a variance on the diagonal.

    Examples
    --------
    >>> import foretrain as ft
    >>> round(log_evidence(ft.MLP("relu", depth=20, width=100, C_W=2.0), [[1.0]], [1.0]), 6)
    -1.515512
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    return log_density(factorise(kernel(mlp, inputs), noise), check_targets(Y, len(inputs), mlp.n_out, "Y"))


def log_evidence_of_kernel(K: ArrayLike, Y: ArrayLike, *, noise: float = 0.0) -> float:
    """The same for any kernel (N, N) and targets (N, outputs)."""
    training = factorise(K, noise)
    return log_density(training, targets_for(Y, len(training.lower)))


def two_input_log_evidence(K: ArrayLike, Y: ArrayLike) -> float:
    """Two inputs, written in the components K_[0], K_[1], K_[2] of kernel and targets (6.48)."""
    targets = targets_for(Y, 2)
    K0, K1, K2 = (float(part) for part in components(K))
    Y0, Y1, Y2 = (float(part) for part in components(targets @ targets.T))
    determinant = 4 * K0 * K2 - K1**2
    if not determinant > 0:
        raise InputError(f"the determinant of the kernel is {determinant:.3g}: give a positive definite one.")
    square = (4 * K0 * Y2 + 4 * K2 * Y0 - 2 * K1 * Y1) / determinant
    return -0.5 * (int(targets.shape[1]) * math.log(4 * math.pi**2 * determinant) + square)


def best_kernel(Y: ArrayLike) -> Array:
    """The kernel that maximises the evidence among all kernels, sum_i y_i y_i^T / n_L ((6.36), (6.45)): (N, N).

    With fewer outputs than inputs it is singular, and the evidence has no maximum.
    """
    targets = real_array("targets", Y)
    if targets.ndim != 2:
        raise InputError(f"targets have shape {targets.shape}: give (inputs, outputs).")
    return np.asarray(targets @ targets.T / targets.shape[1])


def bayes_factor(first: MLP, second: MLP, X: ArrayLike, Y: ArrayLike, *, noise: float = 0.0) -> float:
    """log of the Bayes factor p(y | first) / p(y | second) (6.30): positive if the data favour the first."""
    return log_evidence(first, X, Y, noise=noise) - log_evidence(second, X, Y, noise=noise)


def compare_hypotheses(
    hypotheses: Mapping[str, MLP],
    X: ArrayLike,
    Y: ArrayLike,
    *,
    noise: float = 0.0,
    prior: Mapping[str, float] | None = None,
) -> xr.Dataset:
    """``log_evidence`` and ``probability`` of every hypothesis given the data (6.29), the flat prior by default.

    ``log_bayes_factor`` is against the best of them; the attribute ``log_evidence`` sums over the prior, as a
    hierarchical model has it.
    """
    if not hypotheses:
        raise InputError("no hypotheses are given: give a mapping of names to networks.")
    names = list(hypotheses)
    weights = dict.fromkeys(names, 1.0) if prior is None else dict(prior)
    if weights.keys() != hypotheses.keys() or not all(weight >= 0 for weight in weights.values()):
        raise InputError(f"prior must give a number that is not negative for each of: {', '.join(names)}.")
    total = sum(weights.values())
    if not (total > 0 and np.isfinite(total)):
        raise InputError("prior must have a positive and finite sum.")
    found = np.array(
        [log_evidence(hypotheses[name], X, Y, noise=noise) for name in track(names, "hypotheses")]
    )
    with np.errstate(divide="ignore"):
        joint = found + np.log([weights[name] / total for name in names])
    summed = float(logsumexp(joint))
    return labelled(
        {
            "log_evidence": ("hypothesis", found),
            "log_bayes_factor": ("hypothesis", found - found.max()),
            "probability": ("hypothesis", np.exp(joint - summed)),
        },
        {"best": names[int(np.argmax(joint))], "log_evidence": summed, "noise": float(noise)},
        hypothesis=names,
    )


_TOGETHER = 160  # inputs of a group of hypotheses: beyond, empty blocks cost more than separate calls
_SAFE = 1e-8  # a smallest pivot above this share of the largest needs no second look
_AXES = {
    "depth": "number of layers L",
    "C_b": "variance of the biases",
    "C_W": "variance of the weights, times the fan-in",
}
_VARIABLES = {
    "log_evidence": "log p(targets) (6.34)",
    "profiled_log_evidence": "its maximum over a scale of kernel and noise: the preference for their shape alone",
    "output_scale": "that scale: how many times larger the targets are than the kernel says, squared",
    "jitter": "what had to be added to the diagonal of the kernel",
    "log_bayes_factor": "log evidence, relative to the best point",
    "probability": "of every point, if all are equally likely beforehand (6.31)",
}


@dataclass(frozen=True, repr=False)
class BestPoint(Result):
    """The hypothesis of a scan with the most evidence; ``at_edge`` names the axes that should be scanned further."""

    depth: int
    C_b: float
    C_W: float
    log_evidence: float
    at_edge: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Hypotheses:
    """A group of points of the plane (C_b, C_W), with networks of all depths at each."""

    deepest: MLP
    outputs: dict[int, Layer]  # the output layer of the network of every depth, which has no skip connection
    C_b: Array
    C_W: Array

    def alone(self) -> Iterator[_Hypotheses]:
        for index in range(len(self.C_b)):
            part = slice(index, index + 1)
            yield _Hypotheses(self.deepest, self.outputs, self.C_b[part], self.C_W[part])

    def kernels(self, overlap: Array) -> Iterator[tuple[int, Array]]:
        """(depth, K of the output layer (G, N, N)) for every depth asked for; ``overlap`` is x.x' / n_0."""
        bias, weight = self.C_b[:, None, None], self.C_W[:, None, None]
        K = bias + weight * overlap
        if 1 in self.outputs:
            yield 1, K
        for layer in self.deepest.layers[1:]:
            if not (np.diagonal(K, axis1=1, axis2=2).max() < EXPLODED):
                raise InputError("the kernel grows without bound.")
            fresh = bias + weight * block_means(self.deepest, K)
            if layer.number in self.outputs:
                yield layer.number, fresh + self.outputs[layer.number].gamma ** 2 * K
            K = fresh + layer.gamma**2 * K


def block_means(mlp: MLP, K: Array) -> Array:
    """<s s> of a stack of covariances (G, N, N), all blocks in one call."""
    count, size, _ = K.shape
    whole = np.zeros((count, size, count, size))
    each = np.arange(count)
    whole[each, :, each] = K
    found = PairExpectations(mlp.activation, whole.reshape(count * size, -1)).of(0, 0)
    return np.asarray(found.reshape(whole.shape)[each, :, each])


def evidence_scan(
    mlp: MLP,
    X: ArrayLike,
    Y: ArrayLike,
    *,
    C_b: ArrayLike | None = None,
    C_W: ArrayLike | None = None,
    depth: Sequence[int] | None = None,
    noise: float = 0.0,
) -> xr.Dataset:
    """The evidence of networks like ``mlp`` with other C_b and C_W (in all layers) and depths.

    Variables over (depth, C_b, C_W): ``log_evidence``; ``profiled_log_evidence``, with the scale of the outputs
    chosen best, and that ``output_scale``; ``log_bayes_factor`` against the best point and ``probability`` under a
    flat prior; ``jitter``. Where kernel or expectations leave the range of floats the evidence is nan.

    Examples
    --------
    >>> import foretrain as ft
    >>> found = evidence_scan(ft.MLP("relu", 5, 100), [[1.0]], [1.0], C_W=[1.8, 2.0, 2.2], depth=[5, 20, 50])
    >>> found["log_evidence"].squeeze().values.round(4)
    array([[ -1.4255,  -1.5155,  -1.659 ],
           [ -2.2682,  -1.5155,  -2.2558],
           [-47.1396,  -1.5155,  -3.6504]])
    >>> best_point(found).C_W
    1.8
    """
    check_network(mlp)
    inputs = mlp.check_inputs(X)
    targets = check_targets(Y, len(inputs), mlp.n_out, "Y")
    values = np.atleast_1d(real_array("depth", [mlp.depth] if depth is None else depth))
    if values.ndim != 1 or not len(values) or (values != np.round(values)).any() or (values < 1).any():
        raise InputError("`depth` must be a list of positive whole numbers.")
    axes = {
        "depth": np.unique(values).astype(int),
        "C_b": _axis(mlp, "C_b", C_b),
        "C_W": _axis(mlp, "C_W", C_W),
    }
    shape = tuple(len(axis) for axis in axes.values())
    require_memory(
        8.0 * (6 * np.prod(shape) + 8 * max(_TOGETHER, len(inputs)) ** 2), "the scan", "use a smaller grid"
    )
    found = _run(mlp, inputs, targets, axes, check_noise(noise))
    lost, shifted = int(np.isnan(found[0]).sum()), found[3][found[3] > 0]
    if lost:
        warn_user(
            f"{lost} of {found[0].size} points are nan, because their kernel leaves the range that can be computed: "
            "choose smaller `C_W`, C_b or depths there."
        )
    if len(shifted):
        warn_user(
            f"the kernels of {len(shifted)} of {found[0].size} points are singular to rounding, so up to "
            f"{shifted.max():.3g} was added to their diagonal: see the variable jitter, or give a noise."
        )
    return _labelled(found.reshape(4, *shape), axes, float(noise), mlp)


def best_point(scan: xr.Dataset, by: str = "log_evidence") -> BestPoint:
    """Where a scan has the most evidence, by ``log_evidence`` or ``profiled_log_evidence``."""
    if by not in ("log_evidence", "profiled_log_evidence"):
        raise unknown_name("evidence", by, ("log_evidence", "profiled_log_evidence"), "by=")
    values = scan[by].transpose(*_AXES).values
    if not np.isfinite(values).any():
        raise InputError("the scan has no finite evidence: choose other C_b, C_W or depths.")
    where = np.unravel_index(int(np.nanargmax(values)), values.shape)
    place = {name: scan[name].values[index] for name, index in zip(_AXES, where, strict=True)}
    edge = tuple(
        name
        for name, index, size in zip(_AXES, where, values.shape, strict=True)
        if size > 1 and index in (0, size - 1)
    )
    return BestPoint(
        int(place["depth"]), float(place["C_b"]), float(place["C_W"]), float(values[where]), edge
    )


def _run(mlp: MLP, inputs: Array, targets: Array, axes: dict[str, Any], noise: float) -> Array:
    """Evidence, profiled evidence, scale and jitter: (4, depths, points of the plane C_b, C_W)."""
    depths = axes["depth"]
    models = {int(depth): mlp.replace(depth=int(depth)) for depth in depths}
    bias, weight = (part.ravel() for part in np.meshgrid(axes["C_b"], axes["C_W"], indexing="ij"))
    overlap = inputs @ inputs.T / inputs.shape[1]
    found = np.full((4, len(depths), len(bias)), np.nan)
    places = {int(depth): index for index, depth in enumerate(depths)}
    size = max(1, _TOGETHER // len(inputs))
    with Progress("points", total=len(bias)) as bar:
        for start in range(0, len(bias), size):
            part = slice(start, start + size)
            outputs = {depth: model.layers[-1] for depth, model in models.items()}
            group = _Hypotheses(models[max(models)], outputs, bias[part], weight[part])
            _fill(found[:, :, part], group, overlap, targets, noise, places)
            bar.advance(len(bias[part]))
    return found


def _fill(
    found: Array, group: _Hypotheses, overlap: Array, targets: Array, noise: float, places: dict[int, int]
) -> None:
    """The numbers of one group; if a member leaves the range of floats, each goes alone as far as it can."""
    try:
        for depth, K in group.kernels(overlap):
            found[:, places[depth]] = _evidences(K, targets, noise)
    except (InputError, NotSupportedError):
        if found.shape[2] > 1:
            for index, single in enumerate(group.alone()):
                _fill(found[:, :, index : index + 1], single, overlap, targets, noise, places)


def _evidences(K: Array, targets: Array, noise: float) -> Array:
    """Evidence, profiled evidence, scale and jitter of a stack of kernels (G, N, N): (4, G)."""
    try:
        lowers = np.linalg.cholesky(K + noise * np.eye(K.shape[1]))
        pivots = np.diagonal(lowers, axis1=1, axis2=2) ** 2
        safe = pivots.min(axis=1) > _SAFE * pivots.max(axis=1)
    except LinAlgError:
        lowers, safe = K, np.zeros(len(K), dtype=bool)
    factors = [
        CholeskyFactor(lower, 0.0)
        if good
        else factorise_quietly(kernel, noise)
        if noise or kernel.diagonal().any()
        else None
        for lower, good, kernel in zip(lowers, safe, K, strict=True)
    ]
    return np.stack([_evidence(factor, targets) for factor in factors], axis=1)


def _evidence(training: CholeskyFactor | None, targets: Array) -> Array:
    """With no factor the kernel is zero: targets other than zero are then impossible."""
    if training is None:
        return np.array([-np.inf if targets.any() else np.inf, np.nan, np.nan, 0.0])
    square = float((training.whiten(targets) ** 2).sum())
    constant = targets.shape[1] * training.log_determinant + targets.size * np.log(2 * np.pi)
    scale = square / targets.size
    profiled = targets.size * (1 + np.log(scale)) if scale > 0 else -np.inf
    return np.array([-0.5 * (square + constant), -0.5 * (profiled + constant), scale, training.jitter])


def _axis(mlp: MLP, name: str, given: ArrayLike | None) -> Array:
    """The values of one axis; by default the network's own, if all its layers share it."""
    own = set(getattr(mlp, name))
    if given is None and len(own) > 1:
        raise InputError(f"`{name}` differs from layer to layer: give {name}= to scan, for all layers alike.")
    values = np.atleast_1d(real_array(name, list(own) if given is None else given))
    if values.ndim != 1 or not len(values) or (values < 0).any():
        raise InputError(f"`{name}` must be a list of numbers that are not negative.")
    return np.unique(values)


def _labelled(found: Array, axes: dict[str, Any], noise: float, mlp: MLP) -> xr.Dataset:
    import xarray as xr

    variables = dict(zip(_VARIABLES, found, strict=False))
    known = np.where(np.isnan(found[0]), -np.inf, found[0])
    if np.isfinite(known).any():
        variables["log_bayes_factor"] = found[0] - known.max()
        variables["probability"] = np.exp(known - logsumexp(known))
    return xr.Dataset(
        {name: (tuple(_AXES), values, {"long_name": _VARIABLES[name]}) for name, values in variables.items()},
        coords={name: (name, axis, {"long_name": _AXES[name]}) for name, axis in axes.items()},
        attrs={"activation": mlp.activation.label, "noise": noise},
    )
