"""One training of the learning-bottleneck experiment: a GRU on Memory-Pro, watched through its global-state NTK.

Angles spread evenly are watched: with noise of their own for the loss, split by the modes of the target, and without
noise, on a coarser schedule, for the alignment of these modes with NTK_S and the rank of the kernel in time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, torch_generator
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch

    from foretrain.training.tasks.memory_pro import MemoryPro
    from foretrain.training.tasks.recurrent import Recurrent


MODES = 3
POINTS = 5
_STARTS = 40  # of the search for fixed points
_SAMPLES = 100  # places of the loss curve
_REPEATS = 10  # of every angle, with other noise
_ACCURACY = 0.1  # of the rank, and of the mean eigenvalue that Rayleigh quotients are relative to
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
    """How a network is trained: the fixed points planted in it, the optimizer, its rate, the noise of inputs."""

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

    from foretrain.training.optimizers import shampoo
    from foretrain.training.tasks.memory_pro import MemoryPro

    network_seed, data_seed, batch_seed, watch_seed = spawn(seed, 4)
    model, start = _network(sizes, training, network_seed)
    task = MemoryPro(*sizes.periods, noise_variance=training.noise_variance)
    X, Y = task.batch(sizes.inputs, data_seed)
    watch = _Watch.of(task, sizes.angles, watch_seed)
    kinds: dict[str, Callable[..., torch.optim.Optimizer]] = {"SGD": torch.optim.SGD, "Shampoo": shampoo}
    optimizer = kinds[training.optimizer](model.parameters(), lr=training.rate)
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
    axes = {"cosine": ("record", "kind", "mode"), "rayleigh": ("record", "mode"), "rank": ("record",)}
    answers = watch.outputs(model)[: sizes.angles].numpy()
    coords: dict[str, Any] = {"step": np.array(sorted(sampled)), "record": np.array(sorted(recorded))}
    coords |= {"mode": np.arange(1, MODES + 1), "kind": list(_KINDS), "channel": ["cos", "sin", "fixation"]}
    return xarray.Dataset(
        {
            "loss": ("step", _stacked(losses, "loss")),
            "unlearned": (("step", "mode"), _stacked(losses, "unlearned")),
            **{name: (dims, _stacked(records, name)) for name, dims in axes.items()},
            "output": (("angle", "time", "channel"), answers),
            **start,
        },
        coords=coords,
    )


def _network(sizes: Sizes, training: Training, seed: Seed) -> tuple[Recurrent, dict[str, Any]]:
    """A GRU by Xavier's rule, with fixed points if wanted; their spectral radii, and how many a search finds."""
    from foretrain.training.fixed_points import find_fixed_points, plant_fixed_points
    from foretrain.training.tasks.recurrent import Recurrent

    weights, points = spawn(seed, 2)
    model = Recurrent(3, sizes.units, 3, "gru", seed=weights)
    gru = model.recurrent
    radius = np.full(POINTS, np.nan)
    if training.points:
        planted = plant_fixed_points(gru, training.points, amplitude=sizes.amplitude, seed=points)
        radius[: training.points] = planted.radius.numpy()
    searched = find_fixed_points(gru, starts=_STARTS, seed=points)
    return model, {"planted_radius": ("point", radius), "stable_points": int(searched.stable.sum())}


def _schedules(steps: int, records: int) -> tuple[set[int], set[int]]:
    """When the kernel is measured and when the loss is, both partly evenly in the logarithm and partly evenly."""
    recorded = _spread(steps, records // 2, records - records // 2)
    return recorded, recorded | _spread(steps, _SAMPLES // 3, _SAMPLES)


def _spread(steps: int, in_logarithm: int, evenly: int) -> set[int]:
    early = np.geomspace(1, steps, in_logarithm)
    return {int(step) for step in np.concatenate([early, np.linspace(0, steps, evenly)]).round()}


def _stacked(entries: list[dict[str, FloatArray]], name: str) -> FloatArray:
    return np.stack([entry[name] for entry in entries])


@dataclass(frozen=True, eq=False)
class _Trials:
    """Inputs and targets (trials, time, channels), and the modes of the target: fixation, cos, sin."""

    x: torch.Tensor
    y: torch.Tensor
    left: torch.Tensor  # (trials * time, modes)
    values: torch.Tensor

    @classmethod
    def of(cls, task: MemoryPro, angles: torch.Tensor, seed: Seed) -> _Trials:
        import torch

        from foretrain.empirical.target_modes import target_modes

        y = task.targets(angles, torch.float64)
        modes = target_modes(y.flatten(0, 1).numpy(), MODES)
        left, values = torch.from_numpy(modes.left.T.copy()), torch.from_numpy(modes.values)
        return cls(task.inputs(angles, seed, torch.float64), y, left, values)


@dataclass(frozen=True, eq=False)
class _Watch:
    """What is watched, in double precision: trials with fresh noise for the loss, trials without for the kernel."""

    noisy: _Trials
    quiet: _Trials

    @classmethod
    def of(cls, task: MemoryPro, angles: int, seed: Seed) -> _Watch:
        shown = task.angles(angles)
        noisy = _Trials.of(task, shown.repeat(_REPEATS), seed)
        return cls(noisy, _Trials.of(replace(task, noise_variance=0.0), shown, seed))

    def outputs(self, model: Recurrent) -> torch.Tensor:
        """For the trials with noise, in the precision of the model."""
        import torch

        with torch.no_grad():
            found: torch.Tensor = model(self.noisy.x.to(model.readout.weight))
        return found

    def losses(self, model: Recurrent) -> dict[str, FloatArray]:
        """The mean squared error, and the residual of every mode as a share of the mode."""
        misfit = self.outputs(model).double() - self.noisy.y
        in_modes = self.noisy.left.t() @ misfit.flatten(0, 1)
        unlearned = in_modes.square().sum(1) / self.noisy.values.square()
        return {"loss": np.asarray(misfit.square().mean()), "unlearned": unlearned.numpy()}

    def alignment(self, model: Recurrent) -> dict[str, FloatArray]:
        """Cosines (kinds, modes), Rayleigh quotients through the readout over the mean, and the rank in time."""
        from foretrain.empirical.global_ntk import global_ntk
        from foretrain.empirical.global_ntk.reduced_views import reduced_view

        kernel = global_ntk(model, self.quiet.x.to(model.readout.weight), parameters="recurrent.*")
        through = kernel.alignment(self.quiet.y, model.readout.weight, modes=MODES, accuracy=_ACCURACY)
        view = reduced_view(kernel, "temporal", accuracy=_ACCURACY)
        modes = self.quiet.left.t()
        units = model.recurrent.hidden_size
        spread = modes[:, :, None].expand(-1, -1, units).flatten(1)
        averaged = kernel.apply(spread.to(kernel.dtype)).view(*modes.shape, units).mean(2).double()
        cosine = np.stack([through.cosine, _cosines(modes, modes @ view.matrix), _cosines(modes, averaged)])
        return {"cosine": cosine, "rayleigh": through.rayleigh, "rank": np.asarray(view.rank.value)}


def _cosines(modes: torch.Tensor, products: torch.Tensor) -> FloatArray:
    """Of u and A u; modes have length one."""
    return np.asarray(((modes * products).sum(1) / products.norm(dim=1)).numpy())
