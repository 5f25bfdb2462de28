"""Points that stand for the Gaussian law of the inputs: the population average is a weighted sum over them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, generator
from foretrain.training.gradient_flow.problem import Problem

_COPIES = 4  # of all points, while a sample is made


@dataclass(frozen=True, eq=False)
class Sample:
    """Inputs (inputs, points), their weights (points), which sum to one, and the teacher's answers (1, points)."""

    points: Tensor
    weights: Tensor
    targets: Tensor
    meaning: str

    def __repr__(self) -> str:
        return f"Sample({self.meaning}: {self.size} points in {self.points.shape[-2]} dimensions)"

    @property
    def size(self) -> int:
        """The number of points."""
        return self.points.shape[-1]

    def to(self, dtype: torch.dtype) -> Sample:
        """The same points in another precision."""
        return Sample(self.points.to(dtype), self.weights.to(dtype), self.targets.to(dtype), self.meaning)


def gaussian_sample(problem: Problem, size: int = 1024, seed: Seed = 0) -> Sample:
    """Quasi-random points with the symmetries and the second moments of the Gaussian law.

    Scrambled Sobol points have one coordinate in each of n equally likely strata, for every axis; it is put at the
    root mean square of the Gaussian inside its stratum, so that single coordinates are integrated as by a fine rule.
    Points are reflected in the directions that the teacher does not see, which makes those uncorrelated with the
    targets, and, if σ is not odd, through the origin (for an odd σ that changes no average of the problem). A last
    linear map makes the covariance exactly one. ``size`` counts all points and is rounded up to a power of two.
    """
    from scipy.stats import qmc

    if size < 4 * problem.inputs:
        raise InputError(
            f"size is {size}: {problem.inputs} inputs need at least {4 * problem.inputs} points."
        )
    signs = _reflections(problem)
    power = max(1, math.ceil(math.log2(size / len(signs))))
    require_memory(
        _COPIES * 8 * len(signs) * 2**power * problem.inputs,
        f"a sample of {len(signs) * 2**power:,} points in {problem.inputs} dimensions",
        "take a smaller size",
    )
    uniform = qmc.Sobol(problem.inputs, rng=generator(seed)).random_base2(power)
    stratum = np.floor(uniform * 2**power).astype(int)
    drawn = _representatives(2**power)[stratum]
    points = np.concatenate([drawn * sign for sign in signs])
    # The nearest points with unit covariance about the origin.
    values, vectors = np.linalg.eigh(points.T @ points / len(points))
    whitened = points @ (vectors / np.sqrt(values)) @ vectors.T
    return given_sample(problem, whitened, meaning="quasi-random Gaussian sample")


def product_sample(problem: Problem, rule: tuple[NDArray[np.floating], NDArray[np.floating]]) -> Sample:
    """The product of a rule for a standard normal variable, its points and weights, such as Gauss-Hermite's.

    It is exact for polynomials, and nodes^inputs points large.
    """
    nodes = len(rule[0])
    if nodes**problem.inputs > 2_000_000:
        raise InputError(
            f"{nodes} nodes in {problem.inputs} dimensions make {float(nodes) ** problem.inputs:.3g} points: take "
            "fewer nodes or gaussian_sample."
        )
    points, weights = (np.array(list(product(each, repeat=problem.inputs))) for each in rule)
    return given_sample(problem, points, weights.prod(axis=1), meaning="product rule")


def given_sample(
    problem: Problem,
    points: NDArray[np.floating],
    weights: NDArray[np.floating] | None = None,
    meaning: str = "given sample",
) -> Sample:
    """Your own inputs (points, inputs), weighted equally unless weights are given; float64."""
    array = np.asarray(points, dtype=np.float64)
    if array.ndim != 2 or array.shape[1] != problem.inputs or not np.isfinite(array).all():
        raise InputError(f"points have shape {array.shape}: give finite numbers (points, {problem.inputs}).")
    share = np.full(len(array), 1 / len(array)) if weights is None else np.asarray(weights, dtype=np.float64)
    if share.shape != (len(array),) or not np.isclose(share.sum(), 1, rtol=1e-9, atol=0):
        raise InputError(f"weights have shape {share.shape}: give one for each point, with sum 1.")
    columns = torch.from_numpy(np.ascontiguousarray(array.T))
    return Sample(columns, torch.from_numpy(share), problem.teacher(columns), meaning)


def _reflections(problem: Problem) -> list[NDArray[np.float64]]:
    """Signs of the coordinates: the unseen ones change together, and all together if σ is not odd."""
    unseen = np.ones(problem.inputs)
    unseen[problem.modes :] = -1
    signs = [np.ones(problem.inputs)]
    if problem.inputs > problem.modes:
        signs.append(unseen)
    z = torch.linspace(0.1, 3.0, 30, dtype=torch.float64)
    if not torch.allclose(problem.nonlinearity.value(-z), -problem.nonlinearity.value(z), rtol=1e-12, atol=0):
        signs += [-sign for sign in signs]
    return signs


def _representatives(count: int) -> NDArray[np.float64]:
    """The root mean square, with its sign, of a standard Gaussian in each of an even number of likely strata."""
    from scipy.stats import norm

    edges = norm.ppf(np.arange(count // 2, count) / count)  # of the positive half
    below = edges * norm.pdf(edges)
    squares = 1 + count * (below - np.append(below[1:], 0.0))
    half = np.sqrt(squares)
    return np.concatenate([-half[::-1], half])
