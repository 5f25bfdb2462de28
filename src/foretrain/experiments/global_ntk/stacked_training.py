"""Many recurrent networks of one shape on Memory-Pro, trained side by side by plain stochastic gradient descent.

Networks are stacked along a first axis of every parameter: the loss is summed over them, so that each has its own
gradient, and one product serves them all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from foretrain.support.progress import track
from foretrain.support.seeds import spawn
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    from torch import Tensor, nn

    from foretrain.empirical.target_modes import TargetModes
    from foretrain.training.tasks.memory_pro import Cell, MemoryPro

Stack = Mapping[str, "Tensor"]


@dataclass(frozen=True, eq=False)
class Course:
    """Shares left of the modes at every look, (networks, modes, looks); rates |J* m|^2 at some of them."""

    left: FloatArray
    rates: FloatArray


@dataclass(frozen=True, eq=False)
class Training:
    """Plain SGD on the mean of squares, new angles for every step; ``looks`` are steps, ``rated`` some of them."""

    task: MemoryPro
    lr: float
    batch: int
    looks: Sequence[int]
    rated: Sequence[int]

    def run(
        self, cell: Cell, models: Sequence[nn.Module], target: TargetModes, seed: np.random.SeedSequence
    ) -> Course:
        """Train copies of the models; modes are seen on as many evenly spread angles as the target has."""
        import torch

        networks = stacked(models)
        grid = self.task.angles(len(target.matrix) // self.task.steps)
        x, y = self.task.inputs(grid), self.task.targets(grid)
        vectors = torch.from_numpy(target.vectors).to(x)
        left, rates = [], []
        for step, own in enumerate(track(spawn(seed, max(self.looks) + 1), f"training, {cell}")):
            if step in self.looks:
                with torch.no_grad():
                    misfit = (y - outputs(cell, networks, x)).flatten(1)
                left.append((misfit @ vectors.t()).double().numpy() / target.values)
            if step in self.rated:
                rates.append(mode_rates(cell, networks, x, vectors))
            if step < max(self.looks):
                angles = self.task.angles(self.batch, own)
                misfit = outputs(cell, networks, self.task.inputs(angles)) - self.task.targets(angles)
                loss = misfit.square().mean((1, 2, 3)).sum()
                gradients = torch.autograd.grad(loss, list(networks.values()))
                with torch.no_grad():
                    for parameter, gradient in zip(networks.values(), gradients):
                        parameter -= self.lr * gradient
        return Course(np.stack(left, -1), np.stack(rates, -1))


def stacked(models: Sequence[nn.Module]) -> Stack:
    """Copies of the parameters of equal models, (networks, ...)."""
    import torch

    named = [dict(model.named_parameters()) for model in models]
    return {name: torch.stack([each[name].detach() for each in named]).requires_grad_() for name in named[0]}


def outputs(cell: Cell, networks: Stack, x: Tensor) -> Tensor:
    """What ``Recurrent`` computes, for all networks and the same inputs: (networks, batch, time, outputs)."""
    import torch

    inner = {name.removeprefix("recurrent.").removesuffix("_l0"): value for name, value in networks.items()}
    step = _gru_step if cell == "gru" else lambda given, product, _: (given + product).tanh()
    given = torch.einsum("bti,mgi->tmbg", x, inner["weight_ih"]) + inner["bias_ih"][:, None]
    weight, bias = inner["weight_hh"].transpose(1, 2), inner["bias_hh"][:, None]
    state = x.new_zeros(len(weight), len(x), weight.shape[1])
    states = []
    for now in given:
        state = step(now, torch.baddbmm(bias, state, weight), state)
        states.append(state)
    read = torch.einsum("tmbn,mon->mbto", torch.stack(states), networks["readout.weight"])
    return read + networks["readout.bias"][:, None, None]


def _gru_step(given: Tensor, product: Tensor, state: Tensor) -> Tensor:
    units = state.shape[-1]
    gates = (given[..., : 2 * units] + product[..., : 2 * units]).sigmoid()
    reset, update = gates[..., :units], gates[..., units:]
    candidate = (given[..., 2 * units :] + reset * product[..., 2 * units :]).tanh()
    return candidate + update * (state - candidate)


def mode_rates(cell: Cell, networks: Stack, x: Tensor, vectors: Tensor) -> FloatArray:
    """<m, Theta m> of every network and mode, (networks, modes)."""
    import torch

    found = []
    seen = outputs(cell, networks, x).flatten(1) @ vectors.t()
    for mode in seen.unbind(1):
        gradients = torch.autograd.grad(mode.sum(), list(networks.values()), retain_graph=True)
        found.append(torch.cat([each.flatten(1) for each in gradients], 1).double().square().sum(1))
    return np.asarray(torch.stack(found, 1).numpy())
