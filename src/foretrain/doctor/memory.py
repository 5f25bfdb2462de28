"""What the states of a recurrent layer still tell about the target when it is asked for, and how to lengthen that.

Of every target time t, the targets of all samples span a few directions over samples, Q_t. The states of step s hold
|Q_t* H_s|^2 of them, less what random states of the same size would. ``retention`` is the root of what is held when
the target is read, over the most that was held at any step: 1 if the states tell it when they are asked, 0 if they
have forgotten it by then. The reach is the gradient of what is asked by what the layer was given at earlier steps.

The update gate of a GRU and the forget gate of an LSTM are sigmoids: with bias log T they forget in about T steps
(Tallec & Ollivier 2018, chrono initialisation; input gates stay, since real runs were faster so). Units get all times
from 1 to the length of the sequences. A plain recurrent layer keeps what its matrix keeps: the orthogonal matrix
nearest to the given one, or the identity.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.compare.task import Task
from foretrain.doctor.finding import body_of
from foretrain.doctor.setup import Group, Recipe, Setup
from foretrain.empirical.global_ntk.recurrent.dynamics import as_samples_first
from foretrain.empirical.kernel_operator.passes import differentiable_kernels
from foretrain.support.errors import NotSupportedError

Array = NDArray[np.float64]

_TIMES = 24  # target times that are looked at, of those with energy
_DIRECTIONS = 64  # of a target over samples, at one time, at most
_NEGLIGIBLE = 1e-6  # of the energy of a target
_TOLD = 0.1  # of the states' variance: a target that never explains so much of it is not held in a linear way
_SURE = 3.0  # standard errors of what random states would hold


@dataclass(frozen=True, eq=False)
class Pass:
    """One pass of a model: what its recurrent layer was given and has returned, samples first, and its outputs."""

    name: str
    module: nn.RNNBase
    given: Tensor  # (samples, steps, features)
    states: Tensor  # (samples, steps, units)
    outputs: Tensor

    @property
    def steps(self) -> int:
        """Length of the sequences."""
        return int(self.states.shape[1])


@dataclass(frozen=True, eq=False)
class Memory:
    """``energy`` (step) of the target's part that differs between samples, as shares; ``held`` (step), what states
    hold of the target that carries most of it, relative to the most; ``reach`` (step), the size of gradients from
    where that target is read, relative to the largest. ``retention`` and ``lag`` are means over target times.
    """

    energy: Array
    held: Array
    reach: Array
    retention: float
    lag: float  # steps between where the states hold most of the target and where it is read
    asked: int  # the step at which the loudest target is read
    best: int  # the step at which the states hold most of it


def recurrent_layers(model: nn.Module) -> dict[str, nn.RNNBase]:
    """By path."""
    return {name: part for name, part in model.named_modules() if isinstance(part, nn.RNNBase)}


def run(model: nn.Module, x: Tensor) -> Pass:
    """Run a model and note what goes through its last recurrent layer, with gradients from there on."""
    calls: list[tuple[str, nn.RNNBase, Tensor, Tensor]] = []

    def enter(module: nn.Module, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        if not isinstance(arguments[0], Tensor) or arguments[0].ndim != 3:
            raise NotSupportedError(
                "the recurrent layer is given packed or unbatched sequences, whose steps cannot be compared."
            )
        return (arguments[0].detach().requires_grad_(), *arguments[1:])

    def leave(name: str) -> Any:
        def note(module: nn.RNNBase, arguments: tuple[Any, ...], result: Any) -> None:
            calls.append((name, module, arguments[0], result if isinstance(result, Tensor) else result[0]))

        return note

    handles = []
    for name, part in recurrent_layers(model).items():
        handles.append(part.register_forward_pre_hook(enter))
        handles.append(part.register_forward_hook(leave(name), prepend=True))
    try:
        with torch.enable_grad(), differentiable_kernels():
            outputs = model(x)
    finally:
        for handle in handles:
            handle.remove()
    if not calls:
        raise NotSupportedError("the recurrent layer is not called in a pass of the model.")
    name, module, given, states = calls[-1]
    states = as_samples_first(module, states)
    if len(states) != len(x):
        raise NotSupportedError(
            f"a recurrent layer is given {len(states)} sequences where there are {len(x)} samples (batch_first may "
            "be missing), so that its steps are not those of the samples."
        )
    return Pass(name, module, given, states, outputs)


def measure_memory(seen: Pass, task: Task) -> Memory:
    """What the states hold of the target, and how far gradients reach back."""
    targets = target_by_step(seen, task)
    energy = np.square(targets - targets.mean(0)).sum(2).mean(0)
    if not energy.sum() > 0:
        raise NotSupportedError(
            "the target is the same for all samples: nothing of the inputs has to be remembered."
        )
    # Some of the times at which targets differ between samples, evenly.
    heard = np.flatnonzero(energy > _NEGLIGIBLE * energy.max())
    places = np.unique(np.linspace(0, len(heard) - 1, min(_TIMES, len(heard))).round().astype(np.intp))
    times = heard[places]
    held, told = _held(seen, targets, times)
    if not told.any():
        raise NotSupportedError(
            "the states never tell the target in a linear way, so that nothing says if they forget."
        )
    times, held = times[told], held[told]
    readers = _readers(seen, len(energy))[times]
    read, best = np.einsum("ts,ts->t", held, readers), held.max(1)
    shares = energy[times] / energy[times].sum()
    lags = np.abs(readers.argmax(1) - held.argmax(1))
    loudest = int(np.argmax(shares))
    return Memory(
        energy=energy / energy.sum(),
        held=np.sqrt(held[loudest] / best[loudest]),
        reach=_reach(seen, targets, int(times[loudest])),
        retention=float(shares @ np.sqrt(read / best)),
        lag=float(shares @ lags),
        asked=int(readers[loudest].argmax()),
        best=int(held[loudest].argmax()),
    )


def target_by_step(seen: Pass, task: Task) -> Array:
    """(samples, times, numbers): one time where the outputs have no axis of the steps; labels as one of many."""
    y: Tensor = task.y.detach()
    outputs = seen.outputs
    over_time = outputs.ndim >= 3 and outputs.shape[1] == seen.steps
    if not y.is_floating_point():
        moved = (
            outputs.ndim >= 3 and outputs.shape[2] == seen.steps and y.ndim == 2 and y.shape[1] == seen.steps
        )
        classes = nn.functional.one_hot(y.clamp(min=0)).double()
        return (
            (classes if moved or (over_time and y.ndim == 2) else classes.flatten(1)[:, None]).cpu().numpy()
        )
    values = y.double().cpu()
    if over_time and y.shape[:2] == outputs.shape[:2]:
        return values.flatten(2).numpy() if y.ndim > 2 else values[..., None].numpy()
    return values.flatten(1)[:, None].numpy()


def _readers(seen: Pass, times: int) -> Array:
    """Where a target is read: at its own step, or where the outputs depend on the states; (times, steps)."""
    if times > 1:
        return np.eye(seen.steps)
    probe = torch.ones_like(seen.outputs)
    (slope,) = torch.autograd.grad(
        seen.outputs, seen.states, probe, retain_graph=True, allow_unused=True, materialize_grads=True
    )
    sizes = slope.detach().double().square().sum((0, 2)).cpu().numpy()
    if not sizes.sum() > 0:  # the last state is read, which is another tensor than the sequence
        return np.eye(seen.steps)[-1:]
    return np.asarray(sizes[None] / sizes.sum())


def _held(seen: Pass, targets: Array, times: NDArray[np.intp]) -> tuple[Array, NDArray[np.bool_]]:
    """|Q_t* H_s|^2 less chance, but no less than can be told from it (times, steps); which targets are ever told."""
    states = seen.states.detach().double().cpu().numpy()
    samples, _, units = states.shape
    states = states - states.mean(0)
    sizes = np.square(states).sum((0, 2))
    held, told = [], []
    for time in times:
        left, values, _ = np.linalg.svd(targets[:, time] - targets[:, time].mean(0), full_matrices=False)
        basis = left[:, values > 1e-6 * values[0]][:, : min(_DIRECTIONS, max(1, samples // 4))]
        inside = np.square(np.einsum("nk,nsu->ksu", basis, states)).sum((0, 2))
        chance = basis.shape[1] / max(1, samples - 1)
        unsure = _SURE * chance * np.sqrt(2 / (basis.shape[1] * min(units, samples))) * sizes
        excess = inside - chance * sizes
        most = int(np.argmax(excess))
        told.append(bool(excess[most] > max(unsure[most], _TOLD * sizes[most])))
        held.append(np.maximum(excess, np.minimum(unsure, inside)))
    return np.stack(held), np.array(told)


def _reach(seen: Pass, targets: Array, time: int) -> Array:
    """|d <target, outputs at its time> / d what the layer was given at step s|, relative to the largest."""
    outputs = seen.outputs
    over_time = targets.shape[1] > 1 and outputs.ndim >= 3 and outputs.shape[1] == seen.steps
    asked = outputs[:, time] if over_time else outputs[..., time] if targets.shape[1] > 1 else outputs
    aim = torch.as_tensor(targets[:, time] - targets[:, time].mean(0)).to(outputs)
    weights = aim.reshape(asked.shape) if aim.numel() == asked.numel() else torch.ones_like(asked)
    (slope,) = torch.autograd.grad(asked, seen.given, weights, retain_graph=True)
    sizes = as_samples_first(seen.module, slope).detach().double().square().sum((0, 2)).sqrt().cpu().numpy()
    return np.asarray(sizes / sizes.max()) if sizes.max() > 0 else sizes


@dataclass(frozen=True)
class Change:
    """A change of a recurrent layer, inside of torch.no_grad(), and what it does in words."""

    name: str
    advice: str
    apply: Callable[[nn.RNNBase, int], None]

    @property
    def code(self) -> str:
        """The same in Python, for a ``layer`` and the number of ``steps``: the lines that carry it out."""
        return body_of(self.apply)


def _open_gates(layer: nn.RNNBase, steps: int) -> None:
    units = layer.hidden_size
    for name, bias in layer.named_parameters():
        if name.startswith("bias_hh"):
            bias[units : 2 * units] += torch.linspace(1, steps, units).log().to(bias)


def _nearest_orthogonal(layer: nn.RNNBase, steps: int) -> None:
    for name, weight in layer.named_parameters():
        if name.startswith("weight_hh"):
            left, _, right = torch.linalg.svd(weight)
            weight.copy_(left @ right)


def _identity(layer: nn.RNNBase, steps: int) -> None:
    for name, weight in layer.named_parameters():
        if name.startswith("weight_hh"):
            weight.copy_(torch.eye(layer.hidden_size))


_GATES = {
    kind: Change(
        f"open the {gates} gates",
        f"Raise the biases of the {gates} gates by log T, with T from 1 to the length of the sequences, so that some "
        "units hold what they were told until it is asked for.",
        _open_gates,
    )
    for kind, gates in ((nn.GRU, "update"), (nn.LSTM, "forget"))
}
_ORTHOGONAL = Change(
    "make the recurrent weights orthogonal",
    "Replace the recurrent matrix by the orthogonal one that is nearest to it, so that states keep their size.",
    _nearest_orthogonal,
)
_IDENTITY = Change(
    "start the recurrent weights from the identity",
    "Start the recurrent matrix from the identity, so that states stay where they are until inputs move them.",
    _identity,
)


def changes_for(layer: nn.RNNBase, fresh: bool) -> Sequence[Change]:
    """What may lengthen the memory of a layer; the identity only where nothing is learned yet."""
    if isinstance(layer, nn.GRU | nn.LSTM):
        return (_GATES[nn.GRU if isinstance(layer, nn.GRU) else nn.LSTM],) if layer.bias else ()
    return (_ORTHOGONAL, _IDENTITY) if fresh else (_ORTHOGONAL,)


def changed(setup: Setup, change: Change, names: Sequence[str], steps: int) -> Setup:
    """With a change carried out on the layers of these names."""

    def carry_out(model: nn.Module) -> None:
        for name in names:
            layer = model.get_submodule(name)
            assert isinstance(layer, nn.RNNBase)
            change.apply(layer, steps)

    return setup.with_weights(carry_out)


def change_code(change: Change, names: Sequence[str], steps: int) -> str:
    """The same for the user's own model."""
    indented = "\n".join(f"    {line}" for line in change.code.splitlines())
    loop = f"    for layer in [model.get_submodule(name) for name in {list(names)!r}]:"
    return "\n".join([f"steps = {steps}  # length of the sequences", "with torch.no_grad():", loop, indented])


def adaptive_rate(layer: nn.RNNBase) -> float:
    """For Adam, whose steps change the sum over all units of a layer at once: a third of a unit, within custom.

    Without gates a change of the recurrent matrix acts anew at every step: there only the smallest trains well.
    """
    gated = isinstance(layer, nn.GRU | nn.LSTM)
    return float(f"{min(1e-2, max(1e-3, 0.3 / layer.hidden_size)):.2g}") if gated else 1e-3


def adaptive(setup: Setup, rate: float) -> Setup:
    """Trained by Adam instead."""
    names = tuple(name for group in setup.recipe.groups for name in group.names)
    return setup.with_recipe(Recipe(torch.optim.Adam, (Group(names, {"lr": rate}),)))


def adaptive_code(rate: float) -> str:
    """The same in Python."""
    return (
        'trained = [p for group in optimizer.param_groups for p in group["params"]]\n'
        f"optimizer = torch.optim.Adam(trained, lr={rate:g})"
    )
