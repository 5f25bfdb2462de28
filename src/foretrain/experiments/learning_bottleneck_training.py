"""One training of the learning-bottleneck experiment: a GRU on Memory-Pro, watched through its global-state NTK.

Everything is measured without noise, on angles spread evenly: the loss split by the modes of the target, and on a
coarser schedule the alignment of these modes with NTK_S and the rank of the kernel in time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, torch_generator

if TYPE_CHECKING:
    import torch
    import xarray

    from foretrain.training.tasks.recurrent import Recurrent

Array = NDArray[np.float64]

MODES = 3
_SAMPLES = 120  # places of the loss curve
_RANK_ACCURACY = 0.1
_KINDS = ("readout", "temporal", "all_pairs")


@dataclass(frozen=True)
class Sizes:
    """What all trainings of a run share; ``amplitude`` is that of the planted fixed points."""

    units: int
    batch: int
    inputs: int
    angles: int
    records: int
    amplitude: float
    periods: tuple[int, int, int] = (30, 30, 30)


@dataclass(frozen=True)
class Training:
    """How one network is trained: the fixed points planted in it, the optimizer, its rate, the noise of the inputs."""

    points: int
    optimizer: str
    rate: float
    steps: int
    noise_variance: float

    @property
    def network(self) -> str:
        """As the source counts them."""
        return "network 2" if self.points else "network 1"


def train(sizes: Sizes, training: Training, seed: Seed) -> xarray.Dataset:
    """Everything that is kept of one training, by step, record and mode.

    ``unlearned`` is the residual in each mode of the target, as a share of that mode; the rest of the loss is outside
    of them. ``cosine`` is that of a mode u and A u for A = NTK_S with u brought back through the readout, for its
    true partial trace over units, and for the average over all pairs of units.
    """
    import torch
    import xarray

    from foretrain.training.tasks.memory_pro import MemoryPro

    network_seed, data_seed, batch_seed = spawn(seed, 3)
    model, radius = _network(sizes, training, network_seed)
    task = MemoryPro(*sizes.periods, noise_variance=training.noise_variance)
    X, Y = task.batch(sizes.inputs, data_seed)
    watch = _Watch.of(MemoryPro(*sizes.periods), sizes.angles)
    optimizer = _optimizer(model, training)
    source = torch_generator(batch_seed)
    losses, records = [], []
    recorded, sampled = _schedules(training.steps, sizes.records)
    for step in track(range(training.steps + 1), f"{training.network}, {training.optimizer}"):
        if step in sampled:
            losses.append(watch.losses(model))
        if step in recorded:
            records.append(watch.alignment(model))
        if step < training.steps:
            chosen = torch.randperm(len(X), generator=source)[: sizes.batch]
            optimizer.zero_grad()
            (model(X[chosen]) - Y[chosen]).square().mean().backward()
            optimizer.step()
    kept = {name: (("step", "mode")[: np.ndim(losses[0][name]) + 1], _stacked(losses, name)) for name in losses[0]}
    taken = {
        name: (("record", "kind", "mode")[: np.ndim(records[0][name]) + 1], _stacked(records, name))
        for name in records[0]
    }
    return xarray.Dataset(
        {
            **kept,
            **taken,
            "output": (("angle", "time", "channel"), watch.outputs(model).numpy()),
            "planted_radius": ("point", radius),
        },
        coords={
            "step": np.array(sorted(sampled)),
            "record": np.array(sorted(recorded)),
            "mode": np.arange(1, MODES + 1),
            "kind": list(_KINDS),
            "channel": ["cos", "sin", "fixation"],
        },
    )


def _network(sizes: Sizes, training: Training, seed: Seed) -> tuple[Recurrent, Array]:
    """A GRU drawn by Xavier's rule, with fixed points if wanted, and the spectral radii there."""
    from foretrain.training.gru_fixed_points import plant_fixed_points
    from foretrain.training.tasks.recurrent import Recurrent

    weights, points = spawn(seed, 2)
    model = Recurrent(3, sizes.units, 3, "gru", seed=weights)
    if not training.points:
        return model, np.empty(0)
    found = plant_fixed_points(model.recurrent, training.points, amplitude=sizes.amplitude, seed=points)
    return model, found.radius.numpy()


def _optimizer(model: Recurrent, training: Training) -> torch.optim.Optimizer:
    import torch

    from foretrain.training.optimizers import shampoo

    if training.optimizer == "Shampoo":
        return shampoo(model.parameters(), lr=training.rate)
    return torch.optim.SGD(model.parameters(), lr=training.rate)


def _schedules(steps: int, records: int) -> tuple[set[int], set[int]]:
    """When the kernel is measured, evenly in the logarithm of the step, and when the loss is, evenly in both."""
    spread = {0, *np.geomspace(1, steps, records - 1).round().astype(int).tolist()}
    early = np.geomspace(1, steps, _SAMPLES // 3).round().astype(int).tolist()
    return spread, {*spread, *early, *range(0, steps + 1, max(1, steps // _SAMPLES))}


def _stacked(entries: list[dict[str, Array]], name: str) -> Array:
    return np.stack([entry[name] for entry in entries])


@dataclass(frozen=True, eq=False)
class _Watch:
    """Inputs without noise, their targets (angles, time, channels), and the target's modes in double precision."""

    x: torch.Tensor
    y: torch.Tensor
    left: torch.Tensor  # (angles * time, modes)
    values: torch.Tensor

    @classmethod
    def of(cls, task: object, angles: int) -> _Watch:
        import torch

        from foretrain.training.tasks.memory_pro import MemoryPro

        assert isinstance(task, MemoryPro)
        shown = task.angles(angles)
        y = task.targets(shown, torch.float64)
        left, values, _ = torch.linalg.svd(y.flatten(0, 1), full_matrices=False)
        return cls(task.inputs(shown, dtype=torch.float64), y, left, values)

    def outputs(self, model: Recurrent) -> torch.Tensor:
        """In the precision of the model."""
        import torch

        with torch.no_grad():
            found: torch.Tensor = model(self.x.to(model.readout.weight))
        return found

    def losses(self, model: Recurrent) -> dict[str, Array]:
        """The mean squared error, and the residual of every mode as a share of the mode."""
        misfit = self.outputs(model).double() - self.y
        in_modes = self.left.t() @ misfit.flatten(0, 1)
        unlearned = in_modes.square().sum(1) / self.values.square()
        return {"loss": np.float64(misfit.square().mean()), "unlearned": unlearned.numpy()}

    def alignment(self, model: Recurrent) -> dict[str, Array]:
        """Cosines (kinds, modes), Rayleigh quotients through the readout relative to the mean, and the rank in time."""
        from copy import deepcopy

        from foretrain.empirical.global_ntk import global_ntk
        from foretrain.empirical.global_ntk.reduced_views import reduced_view

        double = deepcopy(model).double()
        kernel = global_ntk(double, self.x, parameters="recurrent.*")
        through = kernel.alignment(self.y, double.readout.weight, modes=MODES)
        view = reduced_view(kernel, "temporal", accuracy=_RANK_ACCURACY)
        modes = self.left.t()
        units = double.recurrent.hidden_size
        spread = modes[:, :, None].expand(-1, -1, units).flatten(1)
        averaged = kernel.apply(spread).view(*modes.shape, units).mean(2)
        cosine = np.stack([through.cosine, _cosines(modes, modes @ view.matrix), _cosines(modes, averaged)])
        return {"cosine": cosine, "rayleigh": through.rayleigh[None], "rank": np.float64(view.rank.value)}


def _cosines(modes: torch.Tensor, products: torch.Tensor) -> Array:
    """Of u and A u; modes have length one."""
    return np.asarray(((modes * products).sum(1) / products.norm(dim=1)).numpy())
