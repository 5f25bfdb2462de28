"""Stacks of networks that flow together: how they start, and their passes, written out by hand.

Forwards and backwards there is one matrix product for all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.seeds import spawn, torch_generator
from foretrain.training.gradient_flow.problem import Problem, Sample

Weights: TypeAlias = tuple[Tensor, ...]  # W_1 .. W_L, each (networks, outputs, inputs)


@dataclass(frozen=True, eq=False)
class Networks:
    """Weights W_1 .. W_L of many networks, first axis the network, and labels (one value for each network)."""

    weights: Weights = field(repr=False)
    labels: Mapping[str, NDArray[Any]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.weights[0])

    def __getitem__(self, which: slice | NDArray[Any]) -> Networks:
        index = np.arange(len(self))[which]
        weights = tuple(values[torch.from_numpy(index)] for values in self.weights)
        return Networks(weights, {name: values[index] for name, values in self.labels.items()})


def given_networks(problem: Problem, weights: Sequence[Any], **labels: Sequence[Any]) -> Networks:
    """Networks with weights of your own: W_1 .. W_L, each (outputs, inputs) or (networks, outputs, inputs)."""
    if len(weights) != problem.depth:
        raise InputError(f"there are {len(weights)} matrices for depth {problem.depth}: give W_1 .. W_L.")
    found = []
    for number, (values, shape) in enumerate(zip(weights, problem.shapes), start=1):
        matrix = torch.as_tensor(values).detach().to(torch.float64)
        stacked = matrix[None] if matrix.ndim == 2 else matrix
        if stacked.ndim != 3 or tuple(stacked.shape[1:]) != shape or not torch.isfinite(stacked).all():
            raise InputError(
                f"W_{number} has shape {tuple(matrix.shape)}: give finite numbers of shape {shape}."
            )
        found.append(stacked.clone())
    count = max(len(values) for values in found)
    if any(len(values) not in (1, count) for values in found):
        raise InputError(
            f"the matrices stand for {[len(values) for values in found]} networks: give as many of each."
        )
    arrays = {name: np.asarray(values) for name, values in labels.items()}
    if any(values.shape != (count,) for values in arrays.values()):
        raise InputError(f"labels need one value for each of the {count} networks.")
    return Networks(tuple(values.expand(count, -1, -1).clone() for values in found), arrays)


def scaled_he(
    problem: Problem, small_layers: int, epsilons: float | Sequence[float], seeds: int | Sequence[int]
) -> Networks:
    """He-normal weights (variance 2 / fan-in), the first ``small_layers`` times ε: every ε with every seed.

    ``seeds`` is a list, or how many to take from 0 on. One seed gives the same draw for every ε. The labels are
    epsilon, seed and small_layers.
    """
    if not 0 <= small_layers <= problem.depth:
        raise InputError(
            f"small_layers is {small_layers}: give a number from 0 to the depth {problem.depth}."
        )
    sizes = np.atleast_1d(np.asarray(epsilons, dtype=np.float64))
    _require_room(problem, sizes.size * (seeds if isinstance(seeds, int | np.integer) else len(seeds)))
    numbers = list(range(seeds)) if isinstance(seeds, int | np.integer) else [int(seed) for seed in seeds]
    if not numbers or not sizes.size or not (sizes >= 0).all():
        raise InputError("give at least one seed, and epsilons that are not negative.")
    # One stream for each layer, so that a layer's draw does not depend on the depth.
    streams = [[torch_generator(own) for own in spawn(seed, problem.depth)] for seed in numbers]
    stacked = []
    for layer, shape in enumerate(problem.shapes):
        drawn = [torch.randn(shape, generator=own[layer], dtype=torch.float64) for own in streams]
        together = torch.stack([(2 / shape[1]) ** 0.5 * weights for weights in drawn])
        scales = (
            torch.from_numpy(sizes) if layer < small_layers else torch.ones(len(sizes), dtype=torch.float64)
        )
        stacked.append((scales[:, None, None, None] * together).flatten(0, 1))
    labels = {
        "epsilon": np.repeat(sizes, len(numbers)),
        "seed": np.tile(numbers, len(sizes)),
        "small_layers": np.full(len(numbers) * len(sizes), small_layers),
    }
    return Networks(tuple(stacked), labels)


def ansatz(problem: Problem, scales: Sequence[Any] | NDArray[np.floating]) -> Networks:
    """Networks on the symmetric manifold (Def. 3) with scales X_1 .. X_L: (layers) or (networks, layers).

    Rows of W_1 are X_1 v, entries of middle matrices X_l / N, of W_L X_L / √N. With several modes the neurons form
    one block for each (App. E), N is the block's width, and scales have a last axis of modes.
    """
    given = np.asarray(scales, dtype=np.float64)
    modes, block = problem.modes, problem.block_width
    if problem.width != modes * block:
        raise InputError(
            f"a width of {problem.width} does not divide into blocks for {modes} modes: change it."
        )
    per_mode = given[..., None] if modes == 1 and given.shape[-1:] == (problem.depth,) else given
    stacked = per_mode[None] if per_mode.ndim == 2 else per_mode
    if stacked.ndim != 3 or stacked.shape[1:] != (problem.depth, modes) or not np.isfinite(stacked).all():
        raise InputError(
            f"scales have shape {given.shape}: give finite numbers (layers) or (networks, layers) for "
            f"{problem.depth} layers, with a last axis of {modes} for several modes."
        )
    _require_room(problem, len(stacked))
    X = torch.from_numpy(stacked)
    member = torch.eye(modes, dtype=torch.float64).repeat_interleave(block, dim=0)  # (neurons, modes)
    first = torch.zeros(len(X), problem.width, problem.inputs, dtype=torch.float64)
    first[:, :, :modes] = member * X[:, 0, None, :]
    middle = [
        torch.einsum("ik,nk,jk->nij", member, X[:, layer], member) / block
        for layer in range(1, problem.depth - 1)
    ]
    last = (X[:, -1] @ member.T)[:, None] / block**0.5
    return Networks((first, *middle, last))


def joined(groups: Sequence[Networks]) -> Networks:
    """Several groups of networks of one problem as one, with the labels that all of them have."""
    names = set.intersection(*(set(group.labels) for group in groups))
    weights = tuple(torch.cat(layers) for layers in zip(*(group.weights for group in groups)))
    return Networks(
        weights, {n: np.concatenate([group.labels[n] for group in groups]) for n in sorted(names)}
    )


def amplitudes(problem: Problem, weights: Weights) -> Tensor:
    """X_l (networks, layers, modes) as the ansatz reads them: block means, also off the symmetric manifold."""
    modes, block = problem.modes, problem.block_width
    member = torch.eye(modes, dtype=weights[0].dtype).repeat_interleave(block, dim=0) / block
    used = modes * block
    first = torch.einsum("nik,ik->nk", weights[0][:, :used, :modes], member)
    middle = [
        block * torch.einsum("nij,ik,jk->nk", w[:, :used, :used], member, member) for w in weights[1:-1]
    ]
    last = block**0.5 * weights[-1][:, 0, :used] @ member
    return torch.stack([first, *middle, last], dim=1)


def _require_room(problem: Problem, count: int) -> None:
    """Refuse weights that do not fit; they are held twice while they are made."""
    numbers = sum(math.prod(shape) for shape in problem.shapes)
    require_memory(
        2 * 8 * numbers * count,
        f"a set of {count:,} networks {problem!r}",
        "take fewer networks or a smaller width",
    )


@dataclass(frozen=True, eq=False)
class Pass:
    """One forward pass: outputs f (networks, 1, points), h_0 .. h_{L-1} and σ'(z_1) .. σ'(z_{L-1})."""

    weights: Weights
    outputs: Tensor
    activations: list[Tensor]
    slopes: list[Tensor]

    def gradients(self, cotangent: Tensor) -> Weights:
        """Σ_points cotangent · ∂f/∂W_l for every layer; the cotangent is (networks or one, 1, points)."""
        delta = cotangent.expand_as(self.outputs)
        found = [delta @ self.activations[-1].mT]
        for layer in range(len(self.weights) - 1, 0, -1):
            delta = self.weights[layer].mT @ delta
            delta.mul_(self.slopes[layer - 1])
            found.append(delta @ self.activations[layer - 1].mT)
        return tuple(reversed(found))


def forward(problem: Problem, weights: Weights, points: Tensor) -> Pass:
    """Run every network on the points (inputs, points), or each on its own (networks, inputs, points)."""
    h, activations, slopes = points, [points], []
    for matrix in weights[:-1]:
        h, slope = problem.nonlinearity(matrix @ h)
        activations.append(h)
        slopes.append(slope)
    return Pass(weights, weights[-1] @ h, activations, slopes)


def loss_and_gradients(problem: Problem, weights: Weights, sample: Sample) -> tuple[Tensor, Weights]:
    """½ E (f - y)² and its gradients, for every network."""
    made = forward(problem, weights, sample.points)
    error = made.outputs - sample.targets
    weighted = error * sample.weights
    return 0.5 * (error * weighted).sum(dim=(-2, -1)), made.gradients(weighted)


def mean_losses(problem: Problem, weights: Weights, sample: Sample) -> Tensor:
    """½ E (f - y)² of every network."""
    h = sample.points
    for matrix in weights[:-1]:
        h = problem.nonlinearity.value(matrix @ h)
    error = weights[-1] @ h - sample.targets
    return 0.5 * (error.square() * sample.weights).sum(dim=(-2, -1))


def bytes_per_network(problem: Problem, sample_size: int, dtype: torch.dtype) -> int:
    """Memory of one gradient: activations, slopes and signals on their way back."""
    rows = (2 * (problem.depth - 1) + 2) * problem.width
    return rows * sample_size * torch.finfo(dtype).bits // 8
