"""Samples as a quadratic model sees them: by features and meta-features, or by kernel and meta-kernel alone.

Rows are samples, or pairs (sample, output) flattened in this order where the outputs of a model share its parameters
("wiring", (11.150)). The meta-kernel μ_{δ0δ1δ2} (11.130) contains ε; its first index is the twice differentiated one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

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
