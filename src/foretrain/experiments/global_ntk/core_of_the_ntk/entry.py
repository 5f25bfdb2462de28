"""NTK_S and its Kronecker core while a GRU learns Memory-Pro (figure 3).

The source does not say which optimizer it used: Adam here, full batch, on the evenly spread angles of the
measurements, without noise. Single targets are learned by plain gradient descent, which is what NTK_S speaks of.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from foretrain.experiments.global_ntk.core_of_the_ntk.drawing import draw
from foretrain.experiments.global_ntk.core_of_the_ntk.measurements import (
    core_view,
    frozen_losses,
    learned,
    likeness,
    network,
    output_kernel,
    pair_views,
    targets,
    views,
)
from foretrain.experiments.global_ntk.core_of_the_ntk.table import table, verdict
from foretrain.experiments.registry import Result, Scale
from foretrain.support.progress import track
from foretrain.support.seeds import integer, spawn

if TYPE_CHECKING:
    import torch
    import xarray

    from foretrain.empirical.global_ntk import GlobalNTK
    from foretrain.experiments.parts import Parts
    from foretrain.training.tasks.memory_pro import MemoryPro
    from foretrain.training.tasks.recurrent import Recurrent


@dataclass(frozen=True)
class Plan:
    """The network, its task and its training."""

    units: int
    samples: int
    periods: tuple[int, int, int]
    rate: float  # of Adam
    checkpoints: tuple[int, ...]  # the last is the length of the training
    steps: int  # of gradient descent on single targets


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(64, 20, (30, 30, 30), 3e-3, (0, 25, 50, 100, 200, 300, 400, 450, 500, 600, 800), 200),
    Scale.PAPER: Plan(
        256,
        20,
        (30, 30, 30),
        1e-3,
        (0, 20, 40, 60, 80, 100, 120, 140, 160, 180, 200, 250, 300, 400, 600, 800, 1000),
        1000,
    ),
}


def core_of_the_ntk(plan: Plan, seed: int, parts: Parts) -> Result:
    """Cosine of NTK_S with its core over training, spectra and modes in time, and which targets can be learned."""
    drawing, probing = spawn(seed, 2)
    setting = _Setting(plan, drawing, integer(probing))
    training = parts.get("training", setting.training)
    cosines = [
        parts.get(f"cosines at step {step}", partial(setting.cosines, training, step))
        for step in plan.checkpoints
    ]
    first, last = plan.checkpoints[0], plan.checkpoints[-1]
    spectra = [
        parts.get(f"views at step {step}", partial(setting.views, training, step)) for step in (first, last)
    ]
    single = parts.get("single targets", setting.single_targets)
    pairs = parts.get("pairs of units", setting.pairs)
    biases = parts.get("with biases", setting.with_biases)
    data = _joined(plan, training, cosines, spectra, single, pairs, biases)
    return Result(verdict(data), table(data), data, partial(draw, data))


@dataclass(frozen=True)
class _Setting:
    """The task, its inputs, and the network at any checkpoint."""

    plan: Plan
    drawing: np.random.SeedSequence
    probing: int

    @property
    def task(self) -> MemoryPro:
        from foretrain.training.tasks.memory_pro import MemoryPro

        return MemoryPro(*self.plan.periods)

    @property
    def angles(self) -> torch.Tensor:
        return self.task.angles(self.plan.samples)

    @property
    def inputs(self) -> torch.Tensor:
        return self.task.inputs(self.angles)

    def kernel(self, model: Recurrent) -> GlobalNTK:
        from foretrain.empirical.global_ntk import global_ntk

        return global_ntk(model, self.inputs)

    def start(self, outputs: int = 3, learning: str = "weight") -> Recurrent:
        """The network before training: its recurrent layer is the same for any number of outputs."""
        return network(self.plan.units, outputs, self.drawing, learning)

    def training(self) -> xarray.Dataset:
        """Losses of all steps, and all parameters at the checkpoints."""
        import torch
        import xarray

        model, x, y = self.start(), self.inputs, self.task.targets(self.angles)
        optimizer = torch.optim.Adam(
            [value for value in model.parameters() if value.requires_grad], lr=self.plan.rate
        )
        last, kept = self.plan.checkpoints[-1], []
        losses = np.empty((last + 1, 3))
        for step in track(range(last + 1), "Memory-Pro"):
            if step in self.plan.checkpoints:
                kept.append(torch.nn.utils.parameters_to_vector(model.parameters()).detach().numpy().copy())
            optimizer.zero_grad()
            by_output = (model(x) - y).square().mean((0, 1))
            losses[step] = by_output.detach().numpy()
            by_output.mean().backward()
            optimizer.step()
        return xarray.Dataset(
            {
                "loss": (("step", "output"), losses),
                "parameters": (("checkpoint", "parameter"), np.stack(kept)),
            },
            {"output": ["cos", "sin", "fixation"], "checkpoint": list(self.plan.checkpoints)},
        )

    def trained(self, training: xarray.Dataset, step: int) -> Recurrent:
        import torch

        model = self.start()
        values = torch.from_numpy(training.parameters.sel(checkpoint=step).values.copy())
        torch.nn.utils.vector_to_parameters(values, model.parameters())
        return model

    def cosines(self, training: xarray.Dataset, step: int) -> xarray.Dataset:
        return likeness(self.kernel(self.trained(training, step)), self.probing)

    def views(self, training: xarray.Dataset, step: int) -> xarray.Dataset:
        return views(self.kernel(self.trained(training, step)), self.probing)

    def pairs(self) -> xarray.Dataset:
        return pair_views(self.kernel(self.start()))

    def with_biases(self) -> xarray.Dataset:
        return views(self.kernel(self.start(learning="")), self.probing)

    def single_targets(self) -> xarray.Dataset:
        """How NTK_S sees every target, how gradient descent learns it, and what the frozen kernel foretells."""
        import xarray

        kernel = self.kernel(self.start(outputs=1))
        chosen = targets(self.task, self.angles, core_view(kernel))
        frozen = output_kernel(self.start(outputs=1), self.inputs)
        rows = []
        for target in track(list(chosen.values()), "single targets"):
            seen = kernel.alignment(target[..., None], modes=1, seed=self.probing)
            eta, foretold = frozen_losses(frozen, target.numpy(), self.plan.steps)
            losses = learned(self.start(outputs=1), self.inputs, target, eta, self.plan.steps)
            rows.append((target.numpy(), float(seen.rayleigh[0]), float(seen.cosine[0]), losses, foretold))
        picture, rayleigh, cosine, losses, foretold = (np.stack(part) for part in zip(*rows, strict=True))
        return xarray.Dataset(
            {
                "target": (("target_name", "batch", "time"), picture),
                "rayleigh": ("target_name", rayleigh),
                "target_cosine": ("target_name", cosine),
                "target_loss": (("target_name", "descent_step"), losses),
                "frozen_loss": (("target_name", "descent_step"), foretold),
            },
            {"target_name": list(chosen)},
        )


def _joined(
    plan: Plan,
    training: xarray.Dataset,
    cosines: list[xarray.Dataset],
    spectra: list[xarray.Dataset],
    single: xarray.Dataset,
    pairs: xarray.Dataset,
    biases: xarray.Dataset,
) -> xarray.Dataset:
    """All parts in one dataset; views have a "when", and "pairs" and "biases" in the names of their variables."""
    import xarray

    over_training = xarray.concat(cosines, dim="checkpoint").assign_coords(checkpoint=list(plan.checkpoints))
    at_ends = xarray.concat(spectra, dim="when").assign_coords(when=["start", "end"])
    renamed = [
        part.rename({name: f"{name}_{told}" for name in (*part.data_vars, "view", "shown_view")})
        for part, told in ((pairs, "pairs"), (biases, "biases"))
    ]
    data = xarray.merge([training[["loss"]], over_training, at_ends, single, *renamed])
    data.attrs |= {"units": plan.units, "samples": plan.samples, "periods": list(plan.periods)}
    return data
