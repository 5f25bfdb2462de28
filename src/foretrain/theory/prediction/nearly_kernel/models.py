"""Quadratic models z = Σ W φ + ε/2 Σ W W ψ (11.105), from features or, dually, from kernel and meta-kernel.

>>> import numpy as np
>>> model = QuadraticModel.from_features(
...     lambda x: np.cos(np.outer(x, np.arange(6))),
...     lambda x: np.sin(x[:, None, None] * np.add.outer(np.arange(6), np.arange(6))),
...     epsilon=0.05,
... )
>>> model.kernel(np.array([0.1]), np.array([0.1, 0.7])).shape
(1, 2)

Samples as a quadratic model sees them: by features and meta-features, or by kernel and meta-kernel alone.

Rows are samples, or pairs (sample, output) flattened in this order where the outputs of a model share its parameters
("wiring", (11.150)). The meta-kernel μ_{δ0δ1δ2} (11.130) contains ε; its first index is the twice differentiated one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import Result
from foretrain.support.arguments import Array, real_array
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory

Kernel = Callable[[Any, Any], Any]
MetaKernel = Callable[[Any, Any, Any], Any]

_FEWER = "give fewer samples at once"
_ROUNDING = 1e-5


class Points(Protocol):
    """Some samples, and the sums over kernel and meta-kernel that predictions are made of."""

    @property
    def rows(self) -> int:
        """Samples times wired outputs."""

    @property
    def wires(self) -> int:
        """Outputs that are flattened into the rows; 1 without wiring."""

    def kernel(self, other: Any) -> Array:
        """k_{δ1δ2} (11.126): (rows, rows of the other)."""

    def meta_kernel(self, first: Any, second: Any) -> Array:
        """μ_{δ0δ1δ2} (11.130) with these points in front."""

    def in_front(self, train: Any, weights: Array) -> Array:
        """Σ μ_{δ α1 α2} c_{α1α2}, for c of shape (outputs, training rows, training rows): (outputs, rows)."""

    def in_the_middle(self, train: Any, weights: Array) -> Array:
        """Σ μ_{α1 δ α2} c_{α1α2}: (outputs, rows)."""

    def shift(self, other: Any, train: Any, weights: Array) -> Array:
        """Σ μ_{δ1δ2α} c_α, for c of shape (outputs, training rows): (outputs, rows, rows of the other)."""

    def movement(self, weights: Array, inverse_root: Array) -> float:
        """How far the features of these points move along Σ c φ, in units of the features (k^-½ is given)."""


class Model(Protocol):
    """What the closed form asks of a model; a torch network at initialisation is one too."""

    def points(self, x: Any) -> Points:
        """The samples as the model sees them."""

    def start(self, x: Any, outputs: int) -> Array:
        """Outputs before training: (N, outputs)."""


@dataclass(frozen=True, eq=False)
class FeaturePoints:
    """Features φ (rows, P) and meta-features εψ (rows, P, P) of some samples."""

    features: Array
    meta_features: Array
    wires: int

    @property
    def rows(self) -> int:
        """Samples times wired outputs."""
        return len(self.features)

    def kernel(self, other: FeaturePoints) -> Array:
        """Σ_j φ_j φ_j."""
        return np.asarray(self.features @ other.features.T)

    def meta_kernel(self, first: FeaturePoints, second: FeaturePoints) -> Array:
        """ε Σ ψ_jk φ_j φ_k."""
        half = np.einsum("njk,ak->naj", self.meta_features, second.features)
        return np.asarray(np.einsum("naj,mj->nma", half, first.features))

    def in_front(self, train: FeaturePoints, weights: Array) -> Array:
        """Through the P x P sum Σ c φφ, so that no tensor of the samples arises."""
        total = train.features.T @ weights @ train.features
        return np.asarray(np.einsum("njk,ijk->in", self.meta_features, total))

    def in_the_middle(self, train: FeaturePoints, weights: Array) -> Array:
        """Linear in the features: Σ_j φ_j (ε Σ_α ψ_jk c φ_k)."""
        return np.asarray(self.pull(train, weights) @ self.features.T)

    @staticmethod
    def pull(train: FeaturePoints, weights: Array) -> Array:
        """ε Σ_α1 ψ_jk(α1) Σ_α2 c_{α1α2} φ_k(α2), a change of the parameters: (outputs, P)."""
        return np.asarray(np.einsum("ajk,iak->ij", train.meta_features, weights @ train.features))

    def shift(self, other: FeaturePoints, train: FeaturePoints, weights: Array) -> Array:
        """The change of the features along Σ c φ, times the other features."""
        return np.asarray(self._moved(train, weights) @ other.features.T)

    def movement(self, weights: Array, inverse_root: Array) -> float:
        """The largest of |k^-½ ε ψ W| over outputs."""
        return float(np.linalg.norm(inverse_root @ self._moved(self, weights), 2, axis=(1, 2)).max())

    def _moved(self, train: FeaturePoints, weights: Array) -> Array:
        return self.moved(weights @ train.features)

    def moved(self, change: Array) -> Array:
        """ε Σ ψ_jk W_k, the change of the features along changes W (outputs, P): (outputs, rows, P)."""
        return np.asarray(np.einsum("njk,ik->inj", self.meta_features, change))


class LinearPoints(FeaturePoints):
    """Features whose meta-features are zero, of which nothing is stored: P may be large."""

    def __init__(self, features: Array, wires: int) -> None:
        shape = (*features.shape, features.shape[1])
        super().__init__(features, np.broadcast_to(np.float64(0), shape), wires)

    def meta_kernel(self, first: FeaturePoints, second: FeaturePoints) -> Array:
        """Zero."""
        return np.zeros((self.rows, first.rows, second.rows))

    def in_front(self, train: FeaturePoints, weights: Array) -> Array:
        """Zero."""
        return np.zeros((len(weights), self.rows))

    @staticmethod
    def pull(train: FeaturePoints, weights: Array) -> Array:
        """Zero."""
        return np.zeros((len(weights), train.features.shape[1]))

    def moved(self, change: Array) -> Array:
        """Zero."""
        return np.zeros((len(change), *self.features.shape))

    def movement(self, weights: Array, inverse_root: Array) -> float:
        """None."""
        return 0.0


@dataclass(frozen=True, eq=False)
class KernelPoints:
    """Samples that are known only through their kernel and meta-kernel."""

    x: Any
    rows: int
    wires: int
    kernel_of: Kernel
    meta_kernel_of: MetaKernel | None

    def kernel(self, other: KernelPoints) -> Array:
        """The user's kernel, flattened where outputs are wired."""
        return flat_kernel(self.kernel_of(self.x, other.x), self.wires)

    def meta_kernel(self, first: KernelPoints, second: KernelPoints) -> Array:
        """The user's meta-kernel, flattened where outputs are wired; zero where none was given."""
        return self._own_meta_kernel if first is self and second is self else self._meta_kernel(first, second)

    @cached_property
    def _own_meta_kernel(self) -> Array:
        """Of the points with themselves: the training samples' one is used several times."""
        found = self._meta_kernel(self, self)
        if not same(found, found.swapaxes(1, 2)):
            raise InputError(
                "the meta-kernel is not symmetric in its last two samples: put the twice differentiated one first."
            )
        return found

    def _meta_kernel(self, first: KernelPoints, second: KernelPoints) -> Array:
        shape = (self.rows, first.rows, second.rows)
        require_memory(
            8 * 3.0 * np.prod(shape), f"a meta-kernel of {shape[0]} x {shape[1]} x {shape[2]} rows", _FEWER
        )
        if self.meta_kernel_of is None:
            return np.zeros(shape)
        found = real_array("the meta-kernel", self.meta_kernel_of(self.x, first.x, second.x))
        if found.ndim == 6:
            found = found.transpose(0, 3, 1, 4, 2, 5).reshape(
                found.shape[0] * found.shape[3], found.shape[1] * found.shape[4], -1
            )
        if found.shape != shape:
            raise InputError(
                f"the meta-kernel has rows {found.shape} where the kernel has {shape}: return (N0, N1, N2), or "
                "(N0, N1, N2, C, C, C) where the kernel returns (N1, N2, C, C)."
            )
        return found

    def in_front(self, train: KernelPoints, weights: Array) -> Array:
        """Σ μ_{δ α1 α2} c_{α1α2}."""
        return np.asarray(np.einsum("nab,iab->in", self.meta_kernel(train, train), weights))

    def in_the_middle(self, train: KernelPoints, weights: Array) -> Array:
        """Σ μ_{α1 δ α2} c_{α1α2}."""
        return np.asarray(np.einsum("anb,iab->in", train.meta_kernel(self, train), weights))

    def shift(self, other: KernelPoints, train: KernelPoints, weights: Array) -> Array:
        """Σ μ_{δ1δ2α} c_α."""
        return np.asarray(np.einsum("nma,ia->inm", self.meta_kernel(other, train), weights))

    def movement(self, weights: Array, inverse_root: Array) -> float:
        """The same inside the span of these points' features, which is all that kernels know."""
        inside = inverse_root @ self.shift(self, self, weights) @ inverse_root
        return float(np.linalg.norm(inside, 2, axis=(1, 2)).max())


def flat_kernel(values: Any, wires: int) -> Array:
    """A kernel (N1, N2) as it is, or (N1, N2, C, C) with the pairs (sample, output) as rows."""
    found = real_array("the kernel", values)
    if found.ndim == 4 and found.shape[2] == found.shape[3] == wires:
        return found.transpose(0, 2, 1, 3).reshape(found.shape[0] * wires, -1)
    if found.ndim == 2 and wires == 1:
        return found
    raise InputError(
        f"the kernel has shape {found.shape}: return (N1, N2), or (N1, N2, C, C) with the same outputs C every time."
    )


def same(first: Array, second: Array) -> bool:
    """Equal up to the rounding of single precision, in which kernels of networks are often computed."""
    return bool(np.abs(first - second).max(initial=0.0) <= _ROUNDING * np.abs(first).max(initial=0.0))


Function = Callable[[Any], Any]


class QuadraticModel(ABC):
    """Features and meta-features, or what takes their place; make one with a ``from_...`` method."""

    offset: Function | None  # outputs before training, x -> (N,) or (N, outputs)

    @staticmethod
    def from_features(
        features: Function,
        meta_features: Function | None = None,
        epsilon: float = 1.0,
        offset: Function | None = None,
    ) -> FeatureModel:
        """From φ: x -> (N, P) and ψ: x -> (N, P, P), symmetric; without ψ the model is linear (11.104).

        All P features are given, a constant one too if it is wanted. Features (N, C, P) and meta-features
        (N, C, P, P) are those of C outputs that share P parameters (11.150).
        """
        return FeatureModel(features, meta_features, finite(epsilon), offset)

    @staticmethod
    def from_kernels(
        kernel: Kernel, meta_kernel: MetaKernel | None = None, offset: Function | None = None
    ) -> KernelModel:
        """From k(x1, x2) -> (N1, N2) and μ(x0, x1, x2) -> (N0, N1, N2), with ε in it; shapes of
        ``ft.ntk`` and ``ft.dntk``, (N1, N2, C, C) and (N0, N1, N2, C, C, C), mean wired outputs."""
        return KernelModel(kernel, meta_kernel, offset)

    @staticmethod
    def from_arrays(kernel: Any, meta_kernel: Any = None, offset: Any = None) -> KernelModel:
        """From k (D, D) and μ (D, D, A) of all samples, the A training ones first: then x are their positions."""
        given = (kernel, meta_kernel, offset)
        names = ("the kernel", "the meta-kernel", "the offset")
        known = [None if each is None else real_array(name, each) for each, name in zip(given, names)]
        if known[0] is None:
            raise InputError("kernel is None: give (D, D).")
        table = KernelArrays(known[0], known[1], known[2])
        return KernelModel(
            table.kernel_of,
            None if meta_kernel is None else table.meta_kernel_of,
            None if offset is None else table.offset_of,
        )

    @abstractmethod
    def points(self, x: Any) -> Points:
        """The samples as the model sees them."""

    def kernel(self, x1: Any, x2: Any) -> Array:
        """k (11.126) between rows of two sets of samples."""
        return self.points(x1).kernel(self.points(x2))

    def meta_kernel(self, x0: Any, x1: Any, x2: Any) -> Array:
        """μ (11.130), ε included; symmetric in its last two."""
        return self.points(x0).meta_kernel(self.points(x1), self.points(x2))

    def start(self, x: Any, outputs: int) -> Array:
        """Outputs before training: (N, outputs)."""
        if self.offset is None:
            return np.zeros((len(x), outputs))
        found = real_array("the offset", self.offset(x))
        found = found[:, None] if found.ndim == 1 else found
        if found.shape != (len(x), outputs):
            raise InputError(f"the offset has shape {found.shape}, but ({len(x)}, {outputs}) was expected.")
        return found


@dataclass(frozen=True, eq=False)
class FeatureModel(QuadraticModel):
    """Made by ``QuadraticModel.from_features``; weights are (outputs, P)."""

    features: Function
    meta_features: Function | None
    epsilon: float
    offset: Function | None = None

    def points(self, x: Any) -> FeaturePoints:
        """φ and εψ of the samples, with pairs (sample, output) as rows where outputs are wired."""
        phi = real_array("features", self.features(x))
        if phi.ndim not in (2, 3) or len(phi) != len(x):
            raise InputError(
                f"features have shape {phi.shape} for {len(x)} samples: return (N, P), or (N, C, P) for C outputs "
                "with the same parameters."
            )
        wires = 1 if phi.ndim == 2 else phi.shape[1]
        size = phi.shape[-1]
        if self.meta_features is None or self.epsilon == 0:
            return LinearPoints(phi.reshape(-1, size), wires)
        require_memory(
            24.0 * phi.size * size,
            f"{len(x)} samples with {size}² meta-features",
            "give fewer samples at once",
        )
        wanted = (*phi.shape, size)
        psi = self.epsilon * real_array("meta_features", self.meta_features(x))
        if psi.shape != wanted:
            raise InputError(f"meta_features have shape {psi.shape}, but {wanted} was expected.")
        if not np.allclose(psi, psi.swapaxes(-1, -2), rtol=1e-9, atol=1e-12 * np.abs(psi).max(initial=0.0)):
            raise InputError(
                "meta_features are not symmetric in their last two axes: return (psi + psi.swapaxes(-1, -2)) / 2."
            )
        return FeaturePoints(phi.reshape(-1, size), psi.reshape(-1, size, size), wires)

    def outputs(self, x: Any, weights: Any) -> Array:
        """z at given parameters (outputs, P) (11.105): (N, outputs)."""
        points = self.points(x)
        found = outputs_at(points, real_array("weights", weights))
        shaped = found.T if points.wires == 1 else found.reshape(len(x), points.wires)
        return np.asarray(shaped + self.start(x, shaped.shape[1]))

    def effective_features(self, x: Any, weights: Any) -> Array:
        """φ^E = dz/dW = φ + ε Σ W ψ (11.107): (outputs, rows, P)."""
        return effective_features_at(self.points(x), real_array("weights", weights))

    def effective_kernel(self, x1: Any, x2: Any, weights: Any) -> Array:
        """k^E = Σ φ^E φ^E (11.137), one for every output: (outputs, rows, rows)."""
        first, second = self.effective_features(x1, weights), self.effective_features(x2, weights)
        return np.asarray(first @ second.swapaxes(1, 2))


@dataclass(frozen=True, eq=False)
class KernelModel(QuadraticModel):
    """Made by ``QuadraticModel.from_kernels`` or ``from_arrays``; it has no parameters, only predictions."""

    kernel_of: Kernel
    meta_kernel_of: MetaKernel | None
    offset: Function | None = None

    def points(self, x: Any) -> KernelPoints:
        """The samples; one value of the kernel tells whether outputs are wired."""
        shape = np.shape(self.kernel_of(x[:1], x[:1]))
        wires = shape[2] if len(shape) == 4 else 1
        flat_kernel(self.kernel_of(x[:1], x[:1]), wires)
        return KernelPoints(x, len(x) * wires, wires, self.kernel_of, self.meta_kernel_of)


def outputs_at(points: FeaturePoints, weights: Array) -> Array:
    """Σ W φ + ε/2 Σ W W ψ: (outputs, rows)."""
    _check_weights(points, weights)
    bent = np.einsum("inj,ij->in", points.moved(weights), weights)
    return np.asarray(weights @ points.features.T + 0.5 * bent)


def effective_features_at(points: FeaturePoints, weights: Array) -> Array:
    """φ + ε Σ W ψ: (outputs, rows, P)."""
    _check_weights(points, weights)
    return np.asarray(points.features + points.moved(weights))


def preconditioned(
    features: Function, meta_features: Function | None, rates: Any
) -> tuple[Function, Function | None]:
    """Features Λ^½ φ and Λ^½ ψ Λ^½, in which gradient descent with the learning-rate tensor Λ is plain.

    ``rates`` are one for every parameter (P,), or the whole tensor (P, P).
    """
    given = real_array("rates", rates)
    tensor = np.diag(given) if given.ndim == 1 else given
    if tensor.ndim != 2 or tensor.shape[0] != tensor.shape[1] or not np.allclose(tensor, tensor.T):
        raise InputError(f"rates have shape {given.shape}: give (P,), or a symmetric (P, P).")
    values, modes = np.linalg.eigh(tensor)
    if values.min() < -1e-12 * np.abs(values).max():
        raise InputError("rates are not positive: gradient descent would climb.")
    root = (modes * np.sqrt(np.maximum(values, 0))) @ modes.T

    bends = None if meta_features is None else partial(_scaled_on_both_sides, meta_features, root)
    return partial(_scaled, features, root), bends


# Functions of the module, not lambdas, so that models which hold them can be pickled.
def _scaled(function: Function, root: Array, x: Any) -> Array:
    values = real_array("features", function(x))
    if values.shape[-1] != len(root):
        raise InputError(f"there are {len(root)} rates for {values.shape[-1]} features: give one for each.")
    return np.asarray(values @ root)


def _scaled_on_both_sides(function: Function, root: Array, x: Any) -> Array:
    return np.asarray(root @ _scaled(function, root, x))


@dataclass(frozen=True, eq=False)
class KernelArrays:
    """Kernel (D, D), meta-kernel (D, D, A) and offset (D, ...) of samples that are known by their positions."""

    kernel: Array
    meta_kernel: Array | None
    offset: Array | None

    def __post_init__(self) -> None:
        k, mu, start = self.kernel, self.meta_kernel, self.offset
        fits = mu is None or (mu.ndim == 3 and mu.shape[:2] == k.shape and 1 <= mu.shape[2] <= len(k))
        if k.ndim != 2 or k.shape[0] != k.shape[1] or not fits:
            raise InputError(
                f"kernel has shape {k.shape} and meta_kernel {None if mu is None else mu.shape}: give (D, D) and "
                "(D, D, A), the A training samples first."
            )
        if start is not None and (start.ndim not in (1, 2) or len(start) != len(k)):
            raise InputError(
                f"offset has shape {start.shape} for {len(k)} samples: give (D,) or (D, outputs)."
            )

    def kernel_of(self, first: Any, second: Any) -> Array:
        """Entries of k."""
        return self.kernel[np.ix_(self._places(first), self._places(second))]

    def meta_kernel_of(self, front: Any, first: Any, second: Any) -> Array:
        """Entries of μ; a sample that is not in A may only be last if a training one can take its place."""
        mu = cast("Array", self.meta_kernel)
        places = [self._places(each) for each in (front, first, second)]
        if places[2].max() < mu.shape[2]:
            return mu[np.ix_(*places)]
        if places[1].max() < mu.shape[2]:
            return mu[np.ix_(places[0], places[2], places[1])].swapaxes(1, 2)
        raise InputError(
            f"meta_kernel holds only {mu.shape[2]} samples in its last axis: give all of them there."
        )

    def offset_of(self, places: Any) -> Array:
        """Outputs before training."""
        return cast("Array", self.offset)[self._places(places)]

    def _places(self, x: Any) -> NDArray[np.intp]:
        found, count = np.asarray(x), len(self.kernel)
        if found.ndim != 1 or found.dtype.kind not in "iu" or found.min() < 0 or found.max() >= count:
            raise InputError(
                f"`samples` are {x}: give positions in the kernel, whole numbers from 0 to {count - 1}."
            )
        return found.astype(np.intp)


def finite(epsilon: Any) -> float:
    """ε as a number."""
    if (
        isinstance(epsilon, bool)
        or not isinstance(epsilon, int | float | np.number)
        or not np.isfinite(epsilon)
    ):
        raise InputError(f"`epsilon` is {epsilon!r}: give a finite number.")
    return float(epsilon)


def _check_weights(points: FeaturePoints, weights: Array) -> None:
    if weights.ndim != 2 or weights.shape[1] != points.features.shape[1]:
        raise InputError(
            f"weights have shape {weights.shape}: give (outputs, {points.features.shape[1]}), a number per feature."
        )


@dataclass(frozen=True, repr=False)
class ModelCounts(Result):
    """Parameters, and functions of the input that somebody has to choose."""

    parameters: int
    linear_functions: int
    quadratic_functions: int


def counts(features: int, outputs: int = 1) -> ModelCounts:
    """For P = n_f + 1 features: P n_out parameters, P functions, and P + P (P + 1) / 2 functions."""
    if not all(isinstance(each, int | np.integer) and each >= 1 for each in (features, outputs)):
        raise InputError(f"features is {features} and outputs {outputs}: give whole numbers, at least one.")
    return ModelCounts(features * outputs, features, features + features * (features + 1) // 2)
