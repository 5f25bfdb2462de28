"""Whether the loss will wait on a plateau because layers are small (Rawal & DeWeese), and for how many steps.

The network's own gradient flow on a few samples is followed until the loss falls a tenth below that of the saddle,
from the weights as given and, where layers are small, from the rescaled ones. Steps are counted at the given rate, or
at the largest one that follows the flow where that is smaller.

Data: ``relative_scale`` (layer), norm over natural norm; ``at_bottleneck`` and ``factor`` (layer); ``imbalance``
(pair), difference of squared norms of neighbouring layers, where they form pairs; ``given_loss`` (given_step) and
``rescaled_loss`` (rescaled_step), the loss along the flow in steps. Attributes: ``level`` (loss at the saddle),
``left`` (loss at which the plateau counts as left), ``loss``, ``predicted_steps`` (what the finding says).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from foretrain.compare.plateau.forecast import FLAT, plateau_level
from foretrain.compare.plateau.layers import (
    Bottleneck,
    LayerScale,
    ScalingLaw,
    factors_to_natural,
    find_bottleneck,
    has_normalisation,
    read_layers,
)
from foretrain.compare.task import Task
from foretrain.doctor.finding import (
    Examination,
    Finding,
    Severity,
    Treatment,
    counted,
    number_of,
    scaling_code,
)
from foretrain.doctor.setup import Case, descent
from foretrain.doctor.stability import edge
from foretrain.empirical.imbalance import imbalance
from foretrain.support.errors import ForetrainError, NotSupportedError
from foretrain.training.gradient_flow import ModelFlow, gradient_flow

if TYPE_CHECKING:
    import xarray

Array = NDArray[np.float64]

_SOURCE = "Rawal & DeWeese, critical depth (12): r layers at scale ε wait ~ ε^-(r-2)"
_SAMPLES = 128
_EVALUATIONS = 300  # gradients, at most, for one flow
_FIRST_EVALUATIONS = 100  # after which a flow that stands still is given up
_OUT_OF_REACH = 1e6  # times as long as it was followed; the other gradients follow it 50 times as long
_WORK = 3e10  # products, at most, of weights, samples and gradients for one flow: about two seconds
_RELATIVE, _ABSOLUTE = 1e-2, 1e-4  # of the flow: waits are told to two digits
_LONG = 100  # steps: shorter waits cost real trainings less than a smaller stable rate after rescaling does
_HOPELESS = 3000
_FASTER = 30  # times: torch's own initialisation of up to eight layers stays below, and trains
_TINY = 0.25  # of natural scales: below, layers and curvatures grow by much on leaving (torch's own: 0.4)


@dataclass(frozen=True, eq=False)
class _Wait:
    """The flow from one set of weights, in steps, until it leaves the plateau or the work ends."""

    steps: Array
    losses: Array
    left: bool
    rate: float  # of one step
    stable: float  # half the largest stable rate, at the start or the end

    def at(self, rate: float) -> _Wait:
        """In steps of another rate."""
        return replace(self, steps=self.steps * self.rate / rate, rate=rate)

    @property
    def length(self) -> float:
        """Steps until the plateau is left; at least so many where it is not."""
        return float(self.steps[-1])


def check(case: Case) -> Examination:
    """Follow the flow from the weights as they are, and from natural scales if some layers are small."""
    if any(isinstance(module, nn.RNNBase) for module in case.model.modules()):
        raise NotSupportedError(
            "how long a recurrent network waits depends on its memory, not on the scale of its layers: see the "
            'check "states".'
        )
    if has_normalisation(case.model):
        raise NotSupportedError(
            "normalisation layers undo the scale of the weights before them: it tells nothing about a plateau."
        )
    task = case.chosen(_SAMPLES)
    layers = read_layers(case.model, task.x)
    small = find_bottleneck(layers)
    level = plateau_level(case.model, task)
    if not level > 0:
        raise NotSupportedError("the loss has no level of a saddle above zero, from which a plateau is told.")
    factors = factors_to_natural(small) if small.count else {}
    after = _followed(Case(case.setup.rescaled(factors)), task, level, _EVALUATIONS) if factors else None
    # Where larger layers do not help, it is not worth much how long the given ones wait.
    counts = after is None or after.left
    given = _followed(case, task, level, _EVALUATIONS if counts else _FIRST_EVALUATIONS)
    if after is not None:  # both are told and drawn in steps that can be compared
        if small.epsilon < _TINY:  # rates that tiny layers stand are too large once they have grown
            given = given.at(min(given.rate, after.rate))
        else:  # a wait because of a small rate is not because of the layers
            given, after = given.at(given.stable), after.at(after.stable)
    finding = _judged(case, small, given, after, level)
    data = _dataset(case, task, layers, factors, given, after, level)
    wait = finding.numbers.get("predicted_steps", given.length)
    return Examination((finding,), data.assign_attrs(predicted_steps=wait))


def _followed(case: Case, task: Task, level: float, evaluations: int) -> _Wait:
    """The flow at rates in the proportions of the optimizer, in steps that follow it."""
    largest = max(case.recipe.rates.values())
    times, losses, left, model = _flow(case, task, (1 - FLAT) * level, evaluations)
    bound = min(_stable_rate(case), _stable_rate(Case(case.setup.with_model(model))))
    bound = bound if math.isfinite(bound) else largest
    step = bound if case.recipe.is_adaptive else min(largest, bound)
    return _Wait(times / step, losses, left, step, bound)


def _flow(case: Case, task: Task, below: float, evaluations: int) -> tuple[Array, Array, bool, nn.Module]:
    """Times, losses, whether the loss fell so far, and the model there; in two parts, the second if it may leave."""
    rates = case.recipe.rates
    largest = max(rates.values())
    size = sum(parameter.numel() for parameter in case.model.parameters())
    most = int(min(evaluations, max(30, _WORK / (size * len(task.x)))))

    def followed(model: nn.Module, evaluations: int) -> ModelFlow:
        return gradient_flow(
            model,
            task.x,
            task.y,
            task.loss,
            max_time=1e9,
            # Zero within a hundredth, so that the crossing is not looked for in vain digits.
            stop=lambda _, loss: 0.0 if abs(loss - below) < 0.01 * below else loss - below,
            rates={name: rate / largest for name, rate in rates.items()},
            rtol=_RELATIVE,
            atol=_ABSOLUTE,
            max_evaluations=evaluations,
        )

    flow = followed(_only_training(case, rates), min(_FIRST_EVALUATIONS, most))
    parts = [flow.data]
    unfinished = flow.status == "evaluation limit" and most > _FIRST_EVALUATIONS
    if unfinished and flow.data.sizes["step"] == 1:  # no step was good yet: a new start would try the same
        flow = followed(_only_training(case, rates), most)
        parts = [flow.data]
    elif unfinished and not _stands_still(flow.data, below):
        flow = followed(flow.model, most - _FIRST_EVALUATIONS)
        parts.append(flow.data.isel(step=slice(1, None)))
    starts = np.cumsum([0.0, *(float(part["time"][-1]) for part in parts[:-1])])
    times = np.concatenate([start + np.asarray(part["time"]) for start, part in zip(starts, parts)])
    losses = np.concatenate([np.asarray(part["loss"]) for part in parts])
    return times, losses, flow.status == "reached", flow.model


def _stands_still(flow: xarray.Dataset, below: float) -> bool:
    """Whether at its present speed the loss would need far longer than gradients that are left could follow."""
    time, loss, rate = (float(flow[name][-1]) for name in ("time", "loss", "loss_rate"))
    return (loss - below) > _OUT_OF_REACH * time * abs(rate)


def _stable_rate(case: Case) -> float:
    """Half the largest stable rate of plain descent; infinite where nothing bounds it."""
    found = edge(Case(case.setup.with_recipe(descent(case.setup.model, 1.0))))
    return found.start if not found.reason and found.product > 0 else math.inf


def _only_training(case: Case, rates: dict[str, float]) -> nn.Module:
    """What the optimizer leaves alone stays."""
    model = Case(case.setup).model
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in rates)
    return model


def _judged(case: Case, small: Bottleneck, given: _Wait, after: _Wait | None, level: float) -> Finding:
    numbers = {
        "steps": given.length,
        "level": level,
        "small_layers": float(small.count),
        "epsilon": small.epsilon,
    }
    if after is None or not small.count:
        title = "No layer is small: if the loss waits, the scale of the weights is not why."
        if given.length == 0:
            title = "No plateau: the loss is below the level of the saddle already."
        elif given.left:
            title = f"No layer is small, and learning begins within {counted(given.length)} steps."
        return Finding(Severity.GOOD, title, _course(case, given, level) + ".", _SOURCE, numbers=numbers)
    # How much longer small layers wait by the law alone, for flows that were not followed to their end.
    longer = float(small.epsilon ** -ScalingLaw(small.count, small.epsilon, math.nan, True).exponent)
    wait = max(given.length, 0.0 if given.left else longer * after.length)
    gain = wait / max(after.length, 1.0)
    numbers |= {"rescaled_steps": after.length, "predicted_steps": wait, "times_longer": gain}
    law = "" if given.left else f", for which the law says {counted(longer)} times longer than without"
    evidence = (
        f"{_course(case, given, level)}; {number_of(small.count, 'layer')} at {small.epsilon:.2g} of the natural "
        f"scale{law}. Rescaled, it {'leaves' if after.left else 'has not left'} after {counted(after.length)} steps."
    )
    if wait < _LONG or gain < _FASTER or not after.left:
        when = f"within about {counted(wait)} steps" if wait > 1 else "at once"
        title = f"No long plateau: learning begins {when}."
        if not (given.left or after.left):
            title = "The scale of the layers is not why the loss waits: it does so with larger ones too."
        elif wait >= _LONG:
            title = f"Learning begins after about {counted(wait)} steps; larger layers would not change that much."
        return Finding(Severity.GOOD, title, evidence, _SOURCE, numbers=numbers)
    if case.recipe.is_adaptive and small.epsilon > _TINY:
        title = f"Plain descent would wait for {counted(wait)} steps here; {case.recipe.kind.__name__} waits less."
        return Finding(Severity.NOTE, title, evidence, _SOURCE, numbers=numbers)
    return _waiting(case, small, given, numbers, evidence)


def _waiting(
    case: Case, small: Bottleneck, given: _Wait, numbers: dict[str, float], evidence: str
) -> Finding:
    wait = numbers["predicted_steps"]
    # What is not followed to its end is told as such: measured, a lower bound, or extrapolated.
    amount, extrapolated = counted(wait), not given.left and wait > given.length
    about = "" if amount.startswith("more") else "about " if given.left or extrapolated else "more than "
    how = " (extrapolated by the law of small layers)" if extrapolated else ""
    adaptive = case.recipe.is_adaptive
    factors = {name: float(f"{factor:.4g}") for name, factor in factors_to_natural(small).items()}
    return Finding(
        Severity.CRITICAL if wait >= _HOPELESS and not adaptive else Severity.WARNING,
        f"The loss will wait on a plateau for {about}{amount} steps{how}{' by plain descent' if adaptive else ''}: "
        f"{number_of(small.count, 'layer')} at {small.epsilon:.2g} of the natural scale.",
        evidence,
        _SOURCE,
        "Multiply the small weights so that they reach their natural scale: the wait becomes "
        f"{counted(numbers['times_longer'])} times shorter.",
        scaling_code(factors),
        Treatment("rescale small layers", lambda setup: setup.rescaled(factors)),
        numbers,
        tuple(factors),
    )


def _course(case: Case, given: _Wait, level: float) -> str:
    told = f"{counted(given.length)} steps of rate {given.rate:.2g}"
    waits = f"leaves it after {told}" if given.left else f"was followed for {told} and has not left it"
    return (
        f"The loss of the saddle is {level:.3g}; by its own gradient flow on {min(_SAMPLES, len(case.task.x))} "
        f"samples the network {waits}"
    )


def _dataset(
    case: Case,
    task: Task,
    layers: tuple[LayerScale, ...],
    factors: dict[str, float],
    given: _Wait,
    after: _Wait | None,
    level: float,
) -> xarray.Dataset:
    import xarray

    flows = {"given": given} | ({"rescaled": after} if after is not None else {})
    variables: dict[str, Any] = {
        "relative_scale": ("layer", [layer.relative for layer in layers], {"units": "natural norms"}),
        "at_bottleneck": ("layer", [layer.name in factors for layer in layers]),
        "factor": ("layer", [factors.get(layer.name, 1.0) for layer in layers]),
        **{f"{name}_loss": (f"{name}_step", flow.losses) for name, flow in flows.items()},
    }
    coordinates: dict[str, Any] = {
        "layer": [layer.name for layer in layers],
        **{f"{name}_step": flow.steps for name, flow in flows.items()},
    }
    try:
        pairs = imbalance(case.model, task.x, task.y, task.loss).data
        variables["imbalance"] = ("pair", pairs["delta"].values)
        coordinates["pair"] = [str(name) for name in pairs["pair"].values]
    except (ForetrainError, RuntimeError):  # no chain of layers: there is no such difference
        pass
    attributes = {"level": level, "left": (1 - FLAT) * level, "loss": task.loss_name}
    return xarray.Dataset(variables, coordinates, attributes)
