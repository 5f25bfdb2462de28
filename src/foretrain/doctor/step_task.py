"""Losses that only a function of the model and a whole batch knows: ``step=``, ``training_step``, a model's own loss.

A function that holds the user's model, instead of taking one, is called while that model stands in for the copy that
is trained: it has the attributes of the copy, and afterwards its own again.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.compare.bundle import Bundle, bundle, change_tensors, shape_text
from foretrain.compare.task import Task, check_loss
from foretrain.doctor.intake import (
    Output,
    OutputChoice,
    Samples,
    choose_output,
    first_line,
    has_classes_last,
    private_tensors,
    refused_batch,
    returning_everything,
)
from foretrain.support.errors import ForetrainError, InputError, NotSupportedError, error_text
from foretrain.support.progress import stop_if_late

_TRIED = 32  # samples on which a step is tried, unless its batches have fewer


@dataclass(frozen=True)
class Step:
    """The loss of a batch, by a function of the model and the batch; without ``takes_model`` of the batch alone."""

    function: Callable[..., Any]
    name: str
    original: nn.Module  # the user's, which stands in for the model
    takes_model: bool = True

    def __call__(self, model: nn.Module, batch: Any) -> Tensor:
        """One number with its graph."""
        if type(model) is not type(self.original):
            raise NotSupportedError(f"{self.name} knows only the model itself, not a network in its place.")
        stop_if_late()
        batch = private_tensors(batch)
        with returning_everything(model), standing_in(self.original, model):
            result = self.function(model, batch) if self.takes_model else self.function(batch)
        loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", result)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            kind = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"
            raise InputError(f"{self.name} returns {kind}: let it return the loss of a batch, one number.")
        return loss.reshape(())


@contextmanager
def standing_in(original: nn.Module, model: nn.Module) -> Iterator[None]:
    """Inside, the original and its parts have the attributes of the model: whoever holds them uses the model."""
    ours, theirs = list(original.modules()), list(model.modules())
    if [type(part) for part in ours] != [type(part) for part in theirs]:
        ours, theirs = ours[:1], theirs[:1]
    before = [vars(part) for part in ours]
    try:
        for part, other in zip(ours, theirs):
            object.__setattr__(part, "__dict__", vars(other))
        yield
    finally:
        for part, own in zip(ours, before):
            object.__setattr__(part, "__dict__", own)


def user_step(function: Any, original: nn.Module) -> Step:
    """Of what was given as ``step=``: with two arguments it takes the model and a batch, with one the batch."""
    if not callable(function):
        raise InputError(
            f"step is a {type(function).__name__}: give a function of the model and a batch, or of a batch."
        )
    return Step(
        function, getattr(function, "__name__", type(function).__name__), original, _places(function) > 1
    )


def training_step(original: nn.Module) -> Step:
    """Of a model that has one, as Lightning's have."""
    if not getattr(original, "automatic_optimization", True):
        raise NotSupportedError(
            "the model's training_step makes its own steps (automatic_optimization is off): give `step=`, a function "
            "of the model and a batch that returns the loss."
        )

    def call(model: Any, batch: Any) -> Any:
        # Lightning's loggers warn at every call where no trainer listens.
        vars(model).update({name: _ignore for name in ("log", "log_dict") if hasattr(model, name)})
        return (
            model.training_step(batch, 0) if _places(model.training_step) > 1 else model.training_step(batch)
        )

    return Step(call, "training_step", original)


def _ignore(*_: Any, **__: Any) -> None:
    """In the place of a logger."""


def _places(function: Callable[..., Any]) -> int:
    """How many arguments by position it must have; two where it does not say."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:
        return 2
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return len([p for p in parameters if p.kind in by_place and p.default is p.empty])


def own_loss(original: nn.Module, model: nn.Module, samples: Samples) -> Step | None:
    """Of a model that returns its loss with its outputs where batches have labels, as those of Hugging Face do."""
    batch = samples.batch.arguments
    if not isinstance(batch, Mapping) or "labels" not in batch:
        return None
    trial = copy.deepcopy(model).eval()
    few = samples.batch.to(next(trial.parameters()).device)[:2].arguments
    try:
        with torch.no_grad():
            result = trial(**few)
    except Exception:  # whatever the user's model stumbles over
        return None
    loss = result.get("loss") if isinstance(result, Mapping) else getattr(result, "loss", None)
    if not isinstance(loss, Tensor):
        return None
    return Step(lambda model, batch: model(**batch), "the model's own loss", original)


@dataclass(frozen=True, kw_only=True)
class StepTask(Task):
    """A task whose loss only the step of a whole batch knows; ``y`` is None where the targets are not known.

    ``inputs`` and ``target`` say where in the batch ``x`` and ``y`` belong, as in :class:`Samples`.
    """

    step: Step = field(repr=False)
    batch: Bundle = field(repr=False)
    inputs: Any = None
    target: Any = None

    def taken(self, places: Tensor) -> StepTask:
        """Some of the samples, by their numbers."""
        y = None if self.y is None else self.y[places.to(self.y.device)]
        return replace(self, x=self.x[places.to(self.x.device)], y=y, batch=self.batch[places])

    def loss_of(self, model: nn.Module) -> Tensor:
        """The loss that the step of the whole batch has."""
        return self.step(model, self._batch())

    def _batch(self) -> Any:
        """With the present inputs and targets in their places, since treatments change them."""
        x = self.x.arguments if isinstance(self.x, Bundle) else self.x
        if self.inputs is None:
            return x
        given = self.batch.arguments
        entries = dict(given) if isinstance(given, Mapping) else dict(enumerate(given))
        entries |= (
            {key: x[key] for key in self.inputs} if isinstance(self.inputs, tuple) else {self.inputs: x}
        )
        if self.target is not None:
            entries[self.target] = self.y
        return entries if isinstance(given, Mapping) else tuple(entries.values())


def fitted_step_task(model: nn.Module, samples: Samples, step: Step, output: Output) -> StepTask:
    """Hooks the model so that it returns one tensor where it can be called with the inputs, and tries the step."""
    trial = copy.deepcopy(model).eval()
    choice = OutputChoice(output)
    choose_output(trial, choice)
    like = next(trial.parameters()).detach()
    samples = replace(
        samples,
        batch=samples.batch.to(like.device),
        x=samples.x.to(like.device),
        y=None if samples.y is None else samples.y.to(like.device),
    )
    outputs = None
    for candidate in _candidates(samples, like):
        try:
            with torch.no_grad():
                outputs = trial(candidate.x[:2])
        except Exception:  # whatever the user's model stumbles over
            continue
        if outputs.is_floating_point() and outputs.ndim and len(outputs) == len(candidate.x[:2]):
            samples = candidate
            break
        outputs = None
    if outputs is None:
        reason = f"only {step.name} knows how the model is called, so that its outputs are not known."
        samples = replace(samples, x=replace(samples.batch, unusable=reason), inputs=None, target=None)
    elif samples.y is not None and has_classes_last(outputs, samples.y):
        choice = replace(choice, classes_last=True)
    choose_output(model, choice)

    def refuse(outputs: Any, targets: Any) -> Tensor:
        raise NotSupportedError(
            f"the loss is that of {step.name}, which is no function of outputs and targets."
        )

    task = StepTask(
        x=samples.x,
        y=samples.y,
        loss=refuse,
        loss_name=step.name,
        step=step,
        batch=samples.batch,
        inputs=samples.inputs,
        target=samples.target,
    )
    few = min(samples.batch_size or _TRIED, _TRIED, len(samples.batch))
    _try_step(task.taken(torch.arange(few)), copy.deepcopy(model).train())
    if samples.unlike is not None:
        try:
            step(copy.deepcopy(model).train(), samples.unlike.to(like.device)[:few].arguments)
        except Exception as error:  # whatever the user's step stumbles over
            raise refused_batch(samples.unlike, error) from error
    return task


def _candidates(samples: Samples, like: Tensor) -> Iterator[Samples]:
    """What the model may be called with: the inputs, the first, the only one by its name, or all of the batch."""
    for one in (samples, _in_precision(samples, like)):
        yield one
        given, keys = one.batch.arguments, one.inputs
        if isinstance(keys, tuple) and isinstance(given[keys[0]], Tensor):
            yield replace(one, x=given[keys[0]], inputs=keys[0])
        if isinstance(given, Mapping) and not isinstance(keys, tuple):
            yield replace(one, x=bundle({keys: given[keys]}), inputs=(keys,))
        if isinstance(given, Mapping):
            yield replace(one, x=one.batch, inputs=tuple(given), target=None)


def _in_precision(samples: Samples, like: Tensor) -> Samples:
    def cast(value: Tensor) -> Tensor:
        return value.to(like.dtype) if value.is_floating_point() else value

    y = None if samples.y is None else cast(samples.y)
    return replace(samples, batch=samples.batch.changed(cast), x=change_tensors(samples.x, cast), y=y)


def _try_step(task: StepTask, trial: nn.Module) -> None:
    """Refuse a step that cannot be trained with, in one sentence, before anything is computed."""
    name, count = task.step.name, len(task.batch)
    with torch.random.fork_rng(devices=[]), torch.enable_grad():
        try:
            loss = task.loss_of(trial)
        except ForetrainError:
            raise
        except Exception as error:  # whatever the user's step stumbles over
            raise InputError(
                f"{name} failed on a batch of {count} samples, {shape_text(task.batch)} "
                f"({error_text(error)}): give batches as it takes them."
            ) from error
        check_loss(loss, name)
        ours = [p for p in trial.parameters() if p.requires_grad]
        theirs = [p for p in task.step.original.parameters() if p.requires_grad]
        try:
            slopes = torch.autograd.grad(loss, [*ours, *theirs], allow_unused=True)
        except RuntimeError as error:
            raise InputError(
                f"the loss that {name} returns cannot be differentiated ({first_line(error)}): let it return the "
                "loss with its graph, and leave backward() and the optimizer's step to the doctor."
            ) from error
    if any(slope is not None for slope in slopes[len(ours) :]):
        raise InputError(
            f"{name} holds parameters that it took from the model earlier: let it ask the model for them every time."
        )
    if all(slope is None for slope in slopes):
        raise InputError(
            f"the loss that {name} returns does not depend on the model: let it use the given model."
        )
