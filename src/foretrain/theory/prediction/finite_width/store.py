"""What depends on the network and its inputs, but neither on targets nor on the algorithm: computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.errors import NotSupportedError
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.flow import flow
from foretrain.theory.prediction.cholesky import spectrum_of
from foretrain.theory.prediction.finite_width.tensors import (
    NAMES,
    Places,
    pair_tensors,
    require_resources,
    sample_tensors,
    training_tensors,
)
from foretrain.theory.prediction.finite_width.weights import Entry
from foretrain.theory.prediction.infinite_width.gradient_descent import LearningRates
from foretrain.theory.prediction.kernels import OutputKernels, Spread, output_kernels
from foretrain.theory.recursions.kinks import slope_jumps

Array = NDArray[np.float64]

_STILL = 1e-12  # of the largest eigenvalue: along smaller ones no network of the ensemble moves
_TOGETHER = 500  # test inputs, since their tangent kernels with one another are not wanted


@dataclass(frozen=True, eq=False)
class Modes:
    """Eigenvalues (M,) and eigenvectors (A, M) of Theta_AA along which training moves."""

    values: Array
    vectors: Array

    @property
    def rates(self) -> LearningRates:
        """Which learning rates converge."""
        return LearningRates(float(self.values[0]), float(self.values[-1]))


@dataclass(frozen=True, eq=False, repr=False)
class Store:
    """Kernels and tensors of the output layer; what is not asked for is not computed."""

    mlp: MLP
    train: Array  # (A, n_in)
    test: Array  # (B, n_in)
    kernels: OutputKernels
    tolerance: float

    @classmethod
    def of(cls, mlp: MLP, X_train: ArrayLike, X_test: ArrayLike, spread: Spread, tolerance: float) -> Store:
        """From inputs, or an error if the theory does not hold for such a network."""
        check_network(mlp)
        check_kind(mlp)
        train = mlp.check_inputs(X_train, "X_train")
        mlp = mlp.with_inputs(train)
        test = mlp.check_inputs(X_test, "X_test")
        return cls(mlp, train, test, output_kernels(mlp, train, test, spread=spread), tolerance)

    def rescaled(self, mlp: MLP) -> Store:
        """The same for a network with other widths in the same ratios, with all that is known already."""
        found = replace(self, mlp=mlp)
        for name in ("modes", "training", "tests", "shift", "alone"):
            if name in self.__dict__:
                found.__dict__[name] = self.__dict__[name]
        return found

    @property
    def width(self) -> int:
        """n_{L-1}, which divides all corrections."""
        return self.mlp.widths[-2]

    @cached_property
    def modes(self) -> Modes:
        """The eigenbasis of Theta_AA, without the directions in which repeated inputs never move."""
        values, vectors = spectrum_of(self.kernels.Theta_train)
        if not values[-1] > 0:
            raise NotSupportedError(
                "the tangent kernel is zero, so that nothing is learned: give positive learning rates."
            )
        moving = values > _STILL * values[-1]
        return Modes(values[moving], vectors[:, moving])

    @cached_property
    def training(self) -> dict[Entry, Array]:
        """Tensors among training inputs (A, A, A, A)."""
        require_resources(self.mlp, len(self.train), 0)
        return training_tensors(self.mlp, self.train, self.tolerance)

    @cached_property
    def tests(self) -> dict[Entry, Array]:
        """Tensors of a test input with training inputs (B, A, A, A)."""
        require_resources(self.mlp, len(self.train), len(self.test))
        return sample_tensors(self.mlp, self.train, self.test, self.tolerance)

    @cached_property
    def shift(self) -> tuple[Array, Array]:
        """n times the 1/n part of the mean tangent kernel, H1_AA and H1_BA."""
        size, parts = len(self.train), []
        for start in range(0, max(1, len(self.test)), _TOGETHER):
            inputs = np.concatenate([self.train, self.test[start : start + _TOGETHER]])
            parts.append(flow(self.mlp, inputs, ["H1"], tolerance=self.tolerance)["H1"].values[-1])
        return parts[0][:size, :size], np.concatenate([part[size:, :size] for part in parts])

    @cached_property
    def alone(self) -> dict[str, Array]:
        """Every tensor with the same training input on all its legs: (A,)."""
        quadruples = np.repeat(np.arange(len(self.train))[:, None], 4, axis=1)
        found = flow(self.mlp, self.train, NAMES, quadruples=quadruples, tolerance=self.tolerance)
        return {name: found[name].values[-1] for name in NAMES}

    def pairs(self, wanted: Mapping[str, tuple[Places, ...]]) -> dict[tuple[str, Places], Array]:
        """Tensors of pairs of samples, training and test, with training inputs on two legs (D, D, A, A)."""
        samples = np.concatenate([self.train, self.test])
        return pair_tensors(self.mlp, self.train, samples, wanted, self.tolerance)


def check_kind(mlp: MLP) -> None:
    """An error if the theory does not hold for such a network."""
    if mlp.is_residual:
        raise NotSupportedError(
            "training at finite width is known for networks without skip connections only: leave `gamma` out, or "
            'predict with regime="infinite".'
        )
    if slope_jumps(mlp.activation):
        raise NotSupportedError(
            f"training at finite width is not an expansion in 1/n for {mlp.activation.label}, whose slope jumps: "
            'choose a smooth activation, such as gelu or swish, or predict with regime="infinite".'
        )
