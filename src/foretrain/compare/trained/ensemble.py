"""An ensemble of random networks, really trained: what each of them says before and after.

>>> import numpy as np, foretrain as ft
>>> from foretrain.compare.trained import Training, train_ensemble
>>> mlp = ft.MLP("tanh", depth=3, width=64, n_in=1, C_b=0.1)
>>> how = Training(targets=np.array([[1.0], [-1.0]]), eta=0.3)
>>> found = train_ensemble(mlp, np.array([[0.5], [-1.0]]), np.array([[0.0]]), how, draws=100)
>>> found.end.shape
(100, 3, 1)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from foretrain.compare.trained.networks import Networks, draw_networks, group_size, groups_of
from foretrain.compare.trained.training import Training, train
from foretrain.support.answers import Answer, Result, fields_answer
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.seeds import Seed, spawn, spawn_some, torch_generator
from foretrain.support.threads import PARTS_AT_ONCE, torch_over_cores
from foretrain.theory.architecture import MLP, FloatArray, check_network
from foretrain.theory.arguments import check_targets, whole

Columns = dict[str, NDArray[Any]]

KEPT_BEFORE = ("kernel_before", "free", "metric")
KEPT = (*KEPT_BEFORE, "kernel_after")


@dataclass(frozen=True, eq=False, repr=False)
class InitialEnsemble(Result):
    """What each network says on D = A ∪ B, training inputs first, before training; what was not asked for is None.

    Mirrored networks come in pairs, 2k and 2k + 1, with opposite outputs.
    """

    mlp: MLP
    training: Training
    mirrored: bool
    start: FloatArray  # (networks, D, outputs)
    offsets: FloatArray | None = None  # (networks, A, outputs): noise of the targets
    metric: FloatArray | None = None  # Ĝ_ab = C_b + C_W/n σ_a · σ_b of the output: (networks, D, D)
    kernel_before: FloatArray | None = None  # Ĥ_ij;ab: (networks, outputs, outputs, D, D)
    free: FloatArray | None = None  # outputs after training if Ĥ stayed as it is: (networks, D, outputs)

    @property
    def draws(self) -> int:
        """How many networks."""
        return len(self.start)

    @property
    def trained_inputs(self) -> int:
        """How many of the inputs are trained on: the first ones."""
        return len(self.training.targets)

    def answer(self) -> Answer:
        """How many networks of which width, on how many inputs, and what is known of them."""
        width, tests = max(self.mlp.hidden_widths, default=0), self.start.shape[1] - self.trained_inputs
        sizes = (
            f"{self.draws} networks of width {width}, {self.trained_inputs} training and {tests} test inputs"
        )
        return fields_answer(self, f"{sizes}{self._course()}.")

    def _course(self) -> str:
        return ""


@dataclass(frozen=True, eq=False, repr=False)
class TrainedEnsemble(InitialEnsemble):
    """The same networks before and after training."""

    end: FloatArray = field(kw_only=True)  # (networks, D, outputs)
    steps: FloatArray = field(kw_only=True)  # (networks,)
    diverged: NDArray[np.bool_] = field(kw_only=True)  # (networks,)
    kernel_after: FloatArray | None = None

    def _course(self) -> str:
        return f": {self.steps.mean():.0f} steps on average, {int(self.diverged.sum())} diverged"


def train_ensemble(
    mlp: MLP,
    X_train: ArrayLike,
    X_test: ArrayLike | None,
    training: Training,
    draws: int | range,
    *,
    seed: Seed = 0,
    mirrored: bool = False,
    keep: Sequence[str] = (),
    group: int | None = None,
) -> TrainedEnsemble:
    """Draw networks, train all of them on the same data, and keep what they say.

    Parameters
    ----------
    draws
        How many networks, or which of the endless sequence that belongs to the seed.
    mirrored
        Pairs of networks with opposite last layers (antithetic): what is odd in the outputs at initialisation
        averages out exactly. The number of networks is then even.
    keep
        What else is wanted of each network, any of ``kernel_before``, ``kernel_after``, ``free``, ``metric``.
    group
        Networks trained together; by default as many as fit the cache. The answer does not depend on it.
    """
    work = _Work.of(mlp, X_train, X_test, training, seed, mirrored, keep)
    return TrainedEnsemble(work.mlp, training, mirrored, **work.each(work.trained, draws, group, "training"))


def draw_ensemble(
    mlp: MLP,
    X_train: ArrayLike,
    X_test: ArrayLike | None,
    training: Training,
    draws: int | range,
    *,
    seed: Seed = 0,
    mirrored: bool = False,
    keep: Sequence[str] = (),
    group: int | None = None,
) -> InitialEnsemble:
    """The networks of :func:`train_ensemble`, untrained: what they are before, and where their own kernel leads."""
    work = _Work.of(mlp, X_train, X_test, training, seed, mirrored, keep, KEPT_BEFORE)
    return InitialEnsemble(work.mlp, training, mirrored, **work.each(work.untrained, draws, group, "drawing"))


def two_step_ensemble(
    mlp: MLP, X_train: FloatArray, X_test: FloatArray, targets: FloatArray, draws: range, *, seed: Seed = 0
) -> TrainedEnsemble:
    """Mirrored networks trained in two updates, a giant leap and a small step, by their own kernels (∞.68)-(∞.79).

    They are the networks of :func:`train_ensemble` with the same seed, with ``free``, ``kernel_before`` and
    ``kernel_after``.
    """
    training, keep = Training(targets, eta=1.0), ("free", "kernel_before")
    work = _Work.of(mlp, X_train, X_test, training, seed, True, keep)
    found = work.each(work.untrained, draws, None, "drawing")

    def leap(numbers: range) -> Columns:
        with torch.no_grad():
            networks = draw_networks(work.mlp, numbers, work.seeds[0], mirrored=True)
            _leap_and_step(networks, X_train, targets)
            z = networks.forward(networks.entry(work.inputs)).output.mT
            return {"end": z.numpy(), "kernel_after": networks.kernel(work.inputs).numpy()}

    # Mirrored networks together.
    found |= work.each(leap, draws, 2 * max(1, group_size(work.mlp) // 2), "leaps of")
    count, diverged = len(found["end"]), ~np.isfinite(found["end"]).all(axis=(1, 2))
    return TrainedEnsemble(work.mlp, training, True, steps=np.full(count, 2.0), diverged=diverged, **found)


def _leap_and_step(networks: Networks, X: FloatArray, targets: FloatArray) -> None:
    """Two updates, in place, by θ − λ Σ c ∇z with c = Ĥ⁻¹ (z − y), and Ĥ the kernel before the first."""
    kernel = networks.kernel(X).transpose(2, 3)  # (networks, i, a, j, b)
    legs = targets.size
    factor = torch.linalg.lu_factor(kernel.reshape(len(networks), legs, legs))
    y = torch.from_numpy(np.ascontiguousarray(targets.T))
    entry = networks.entry(X)
    for _ in range(2):
        trace = networks.forward(entry)
        error = trace.output - y
        coefficients = torch.linalg.lu_solve(*factor, error.reshape(len(networks), legs, 1))
        deltas = networks.sensitivities(trace, coefficients.reshape(error.shape))
        for layer, delta in zip(reversed(networks.mlp.layers), deltas):
            place = layer.number - 1
            signal = trace.signals[place]
            networks.weights[place].baddbmm_(delta, signal.mT, alpha=-layer.lambda_W / signal.shape[1])
            networks.biases[place].sub_(delta.sum(dim=2, keepdim=True), alpha=layer.lambda_b)


@dataclass(frozen=True, eq=False)
class _Work:
    """Draws, trains and reads groups of networks."""

    mlp: MLP
    inputs: FloatArray
    training: Training
    seeds: Sequence[np.random.SeedSequence]  # of networks and of noise
    mirrored: bool
    keep: tuple[str, ...]

    @classmethod
    def of(
        cls,
        mlp: MLP,
        X_train: ArrayLike,
        X_test: ArrayLike | None,
        training: Training,
        seed: Seed,
        mirrored: bool,
        keep: Sequence[str],
        known: Sequence[str] = KEPT,
    ) -> _Work:
        """Arguments checked; ``known`` is what may be kept."""
        check_network(mlp)
        train_inputs = mlp.check_inputs(X_train)
        mlp = mlp.with_inputs(train_inputs)
        inputs = train_inputs if X_test is None else np.concatenate([train_inputs, mlp.check_inputs(X_test)])
        check_targets(training.targets, len(train_inputs), mlp.n_out)
        for name in keep:
            if name not in known:
                raise unknown_name("result", name, known, "keep")
        if "free" in keep and training.loss != "squared_error":
            raise InputError("only training on squared errors is linear with a fixed kernel: leave free out.")
        return cls(mlp, inputs, training, spawn(seed, 2), mirrored, tuple(keep))

    def each(
        self, read: Callable[[range], Columns], draws: int | range, group: int | None, what: str
    ) -> dict[str, Any]:
        """What is read of all networks, in groups, on all cores."""
        numbers = draws if isinstance(draws, range) else range(whole_number("draws", draws))
        if not numbers or (self.mirrored and (len(numbers) % 2 or numbers.start % 2)):
            raise InputError(
                f"`draws` is {draws}: give a positive number, an even one for mirrored networks."
            )
        size = group_size(self.mlp) if group is None else group
        outputs, inputs, keep = self.mlp.n_out, len(self.inputs), self.keep
        each = 2 * inputs * outputs + ("metric" in keep) * inputs**2 + ("free" in keep) * inputs * outputs
        each += sum(name in keep for name in ("kernel_before", "kernel_after")) * (inputs * outputs) ** 2
        working = (
            6 * self.mlp.parameter_count + 4 * inputs * sum(self.mlp.widths) + 4 * (inputs * outputs) ** 2
        )
        needed = 8.0 * (len(numbers) * 2 * each + PARTS_AT_ONCE * size * working)
        what_for = f"training {len(numbers):,} networks of width {max(self.mlp.widths[1:])}"
        require_memory(needed, what_for, "use fewer draws")
        groups = groups_of(numbers, size)
        found = torch_over_cores(read, groups, f"{what} networks", uses_blas=True)
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def untrained(self, numbers: range) -> Columns:
        """What the networks of a group are before training."""
        with torch.no_grad():
            networks = draw_networks(self.mlp, numbers, self.seeds[0], mirrored=self.mirrored)
            return self._before(networks, self._offsets(numbers))

    def trained(self, numbers: range) -> Columns:
        """What they are before and after it."""
        with torch.no_grad():
            networks = draw_networks(self.mlp, numbers, self.seeds[0], mirrored=self.mirrored)
            offsets = self._offsets(numbers)
            found = self._before(networks, offsets)
            X = self.inputs[: len(self.training.targets)]
            course = train(networks, X, self.training, offsets)
            late = int((~course.ended & ~course.diverged).sum())
            if late:
                raise InputError(
                    f"{late} of {len(course.ended)} networks have not reached the end of training in "
                    f"{self.training.most_steps:,} steps: give a `time`, since the prediction holds at any, or fewer "
                    "or more different training inputs."
                )
            end = networks.forward(networks.entry(self.inputs)).output.mT.numpy()
            found |= {"end": end, "steps": course.steps, "diverged": course.diverged}
            if "kernel_after" in self.keep:
                found["kernel_after"] = networks.kernel(self.inputs).numpy()
        return found

    def _offsets(self, numbers: range) -> Tensor | None:
        """Noise of the targets, (networks, outputs, A); of opposite sign in mirrored networks."""
        if not self.training.noise:
            return None
        step = 2 if self.mirrored else 1
        seeds = spawn_some(self.seeds[1], (number // step for number in numbers))
        shape = self.training.targets.T.shape
        drawn = [
            (1 - 2 * (number % step))
            * torch.randn(shape, dtype=torch.float64, generator=torch_generator(own))
            for number, own in zip(numbers, seeds, strict=True)
        ]
        return torch.stack(drawn).mul_(self.training.noise**0.5)

    def _before(self, networks: Networks, offsets: Tensor | None) -> Columns:
        trace = networks.forward(networks.entry(self.inputs))
        found: Columns = {"start": trace.output.mT.numpy()}
        if offsets is not None:
            found["offsets"] = offsets.mT.numpy().copy()
        if "metric" in self.keep:
            last, signal = self.mlp.layers[-1], trace.signals[-1]
            metric = last.C_b + last.C_W / signal.shape[1] * (signal.mT @ signal)
            found["metric"] = metric.numpy()
        if {"kernel_before", "free"} & {*self.keep}:
            kernel = networks.kernel(self.inputs)
            if "kernel_before" in self.keep:
                found["kernel_before"] = kernel.numpy()
            if "free" in self.keep:
                found["free"] = free_outputs(kernel, trace.output, self.training, offsets).mT.numpy()
        return found


def free_outputs(kernel: Tensor, z: Tensor, training: Training, offsets: Tensor | None) -> Tensor:
    """z − Ĥ_DA f(Ĥ_AA) (z_A − y), f = 1/Ĥ at the end: training with kernels (networks, i, j, D, D) that stay.

    Outputs are (networks, outputs, D), offsets (networks, outputs, A) of training outputs or None.
    """
    count, outputs, samples = z.shape
    size = len(training.targets)
    error = z[..., :size] - torch.from_numpy(np.ascontiguousarray(training.targets.T))
    if offsets is not None:
        error = error + offsets
    columns = kernel[..., :size].transpose(2, 3)  # (networks, i, a, j, b)
    rows = columns.reshape(count, outputs * samples, outputs * size)
    own = columns[:, :, :size].reshape(count, outputs * size, outputs * size)
    own = own + training.noise * torch.eye(outputs * size, dtype=torch.float64)
    change = rows @ _learned(own, error.reshape(count, outputs * size, 1), training)
    return z - change.reshape(z.shape)


def _learned(own: Tensor, error: Tensor, training: Training) -> Tensor:
    """f(Ĥ_AA) ε: the sum of all error factors that were met, times η.

    Where η exceeds 2 / w, steps with a kernel that stays would run away, though those of a network whose kernel moves
    need not: there the error is held at its size, since what is averaged must stay finite.
    """
    found: Tensor
    if training.time is None:
        found = torch.linalg.solve(own, error)
        return found
    w, vectors = torch.linalg.eigh(own)
    w = w.clamp(min=1e-300)
    if training.algorithm == "flow":
        done = -torch.expm1(-training.eta * training.time * w) / w
    else:
        steps, small = whole(training.time), training.eta * w < 0.5
        careful = -torch.expm1(steps * torch.log1p(-training.eta * torch.where(small, w, 0.0)))
        done = torch.where(small, careful, 1 - (1 - training.eta * w).clamp(min=-1.0) ** steps) / w
    found = vectors @ (done[..., None] * (vectors.mT @ error))
    return found
