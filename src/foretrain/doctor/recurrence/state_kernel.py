"""The kernel of the states of a recurrent layer in short: ranks, where it moves states, and the target's modes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.doctor.finding import counted
from foretrain.doctor.kernels.tangent import Tangent
from foretrain.doctor.recurrence.memory import Pass
from foretrain.doctor.setup import Case
from foretrain.doctor.setup.recipe import descent
from foretrain.doctor.trials.stability import edge, loss_curvature
from foretrain.empirical.global_ntk import GlobalNTK, global_ntk
from foretrain.empirical.global_ntk.reduced_views import reduced_view
from foretrain.empirical.global_ntk.summary import members_of
from foretrain.empirical.target_modes import target_modes
from foretrain.support.answers import labelled
from foretrain.support.errors import ForetrainError

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

_PLACES = 400  # samples x steps of the temporal kernel
_SAMPLES = 128  # for the modes of the target
_MODES = 3
_EIGENMODES = 20
_ACCURACY = 0.1


@dataclass(frozen=True, eq=False)
class Ranks:
    """Effective ranks of the kernel over time and units; nan where it is not offered for the model."""

    numbers: Mapping[str, float]
    data: xarray.Dataset

    @property
    def sentence(self) -> str:
        """In words."""
        if not self.numbers:
            return ""
        return (
            f"Descent can change the states in about {self.numbers['temporal_rank']:.2g} ways over samples and time, "
            f"and in {self.numbers['spatial_rank']:.3g} over {self.numbers['units']:.0f} units."
        )


@dataclass(frozen=True, eq=False)
class Modes:
    """Half-times of the target's modes in steps of descent, (mode,); empty where the target has no such modes."""

    data: xarray.Dataset
    half_times: Array = field(default_factory=lambda: np.zeros(0))

    @property
    def slowest(self) -> float:
        """The longest; nan where none is known."""
        return float(self.half_times.max()) if len(self.half_times) else math.nan

    @property
    def sentence(self) -> str:
        """In words."""
        if not len(self.half_times):
            return ""
        told = ", ".join(counted(time) for time in self.half_times)
        return f"From its Rayleigh quotients, descent halves the modes of the target in {told} steps."


def measure_ranks(case: Case, seen: Pass) -> Ranks:
    """From products with random vectors, on a few samples."""
    samples = max(2, _PLACES // seen.steps)
    try:
        kernel = _kernel(case, seen, samples)
        temporal, spatial = (
            reduced_view(kernel, kind, accuracy=_ACCURACY, seed=0) for kind in ("temporal", "spatial")
        )
        try:
            cosine = float(kernel.cosine(kernel.concatenated_core, accuracy=_ACCURACY, seed=0).value)
        except ForetrainError:
            cosine = math.nan
    except (ForetrainError, MemoryError, RuntimeError):  # layers that the operators do not take
        return Ranks({}, labelled({}))
    matrix = temporal.matrix.double().cpu().numpy()
    steps = seen.steps
    blocks = (
        np.einsum("btbs->ts", matrix.reshape(len(matrix) // steps, steps, -1, steps)) * steps / len(matrix)
    )
    values = np.linalg.eigvalsh(matrix)[::-1][:_EIGENMODES]
    numbers = {
        "temporal_rank": float(temporal.rank.value),
        "spatial_rank": float(spatial.rank.value),
        "units": float(seen.states.shape[2]),
        "core_cosine": cosine,
    }
    variables = {
        "temporal_gram": ("step step_2", blocks),
        "changed_states": ("step", np.diag(blocks)),
        "temporal_share": ("eigenmode", values / np.trace(matrix)),
    }
    return Ranks(numbers, labelled(variables, counted=["eigenmode"]))


def _kernel(case: Case, seen: Pass, samples: int) -> GlobalNTK:
    """Of the layer's own parameters: what comes before it acts through its inputs, which are held."""
    prefix = f"{seen.name}." if seen.name else ""
    own = [name for name, p in case.model.named_parameters() if name.startswith(prefix) and p.requires_grad]
    whole = global_ntk(case.raw_model, case.chosen(samples).x[:samples], parameters=own)
    members = members_of(whole)
    return next((part for name, part in members.items() if name.startswith("hidden")), whole)


def measure_modes(case: Case, seen: Pass) -> Modes:
    """Half-times ln 2 / <H m, Theta m> with rates inside Theta and the loss's curvature H, for modes m of targets."""
    import xarray

    task = case.chosen(_SAMPLES)
    y, shape = task.y, seen.outputs.shape
    if not y.is_floating_point() or y.shape[1:] != shape[1:] or not bool((y != 0).any()):
        return Modes(xarray.Dataset())
    found = target_modes(y.detach().double().cpu().reshape(-1, shape[-1]).numpy(), _MODES)
    if case.recipe.is_descent:
        faster = 1 / (1 - case.recipe.momentum)
        rates = {name: rate * faster for name, rate in case.recipe.rates.items()}
    else:  # half the largest stable rate of descent
        trial = case.setup.with_recipe(descent(case.setup.model, 1.0))
        rates = dict.fromkeys(case.recipe.rates, edge(Case(trial)).start)
    times = []
    with Tangent(case.model, task.x, rates) as tangent:
        curvature = loss_curvature(task, tangent.outputs.detach())
        for vector in found.vectors:
            mode = torch.as_tensor(vector).to(y).reshape(y.shape)
            pulled, bent = tangent.pull(mode), tangent.pull(curvature(mode))
            speed = sum(
                rates[name] * float((a * b).sum()) for name, a, b in zip(tangent.weights, pulled, bent)
            )
            times.append(math.log(2) / speed if speed > 0 else math.inf)
    variables: dict[str, Any] = {"half_time": ("mode", times, {"units": "steps"})}
    if y.ndim == 3 and y.shape[1] == seen.steps:  # where in time the modes live
        size = np.sqrt(np.square(found.left.reshape(len(times), len(y), seen.steps)).sum(1))
        variables["mode_course"] = (("mode", "step"), size)
    return Modes(xarray.Dataset(variables, {"mode": np.arange(1, len(times) + 1)}), np.array(times))
