"""What the user brings, checked: a private copy of the model, and data that it takes. Refusals are one sentence.

Which tensor of a model's result counts is a hook on the private copy, so that calling the copy returns a tensor.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.compare.task import Loss, Task, paired_samples, prepare, sample_tensor, squared_error
from foretrain.empirical.models.model import entry_of
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.support.seeds import Seed, torch_generator

Output = str | int | None
_USUAL_NAME = "logits"
_MOST_SAMPLES = 4096  # enough for every statistic that is measured, and for a short training
_MOST_NUMBERS = 2**22  # in all inputs together, so that activations of all samples fit into memory
_FAILURES = (RuntimeError, ValueError, TypeError, IndexError, KeyError, AttributeError, AssertionError)
_SEQUENCE_MODULES = (nn.RNNBase, nn.TransformerEncoder, nn.TransformerEncoderLayer)


@dataclass(frozen=True)
class Samples:
    """Inputs and targets, the batch size of the loader that they came from, and what was left out."""

    x: Tensor
    y: Tensor
    batch_size: int | None = None
    notes: tuple[str, ...] = ()
    total: int = 0  # with what was left out, if more than here


def private_copy(model: Any) -> nn.Module:
    """A copy that may be hooked and trained, of a model that can be."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give a torch.nn.Module.")
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        raise InputError("the model is spread over devices: give the model inside, model.module.")
    if hasattr(model, "_orig_mod"):
        raise InputError("the model is compiled: give it as it was before torch.compile.")
    if isinstance(model, torch.jit.ScriptModule):
        raise NotSupportedError("the model is a TorchScript module: give the Python module it was made from.")
    _check_parameters(model)
    try:
        return copy.deepcopy(model)
    except _FAILURES as error:
        raise InputError(
            f"the model cannot be copied ({_first_line(error)}): keep no tensors of earlier passes in it."
        ) from error


def _check_parameters(model: nn.Module) -> None:
    parameters = list(model.named_parameters())
    for name, parameter in parameters:
        if nn.parameter.is_lazy(parameter):
            raise InputError(f"parameter {name} has no shape yet: run the model once, model(x[:2]), before.")
    devices = {str(parameter.device) for _, parameter in parameters}
    if "meta" in devices:
        raise InputError("the model is on the meta device and has no values: put it on a real one.")
    if len(devices) > 1:
        raise InputError(f"the model is on {', '.join(sorted(devices))}: put all of it on one device.")
    for name, parameter in parameters:
        if not torch.isfinite(parameter.detach()).all():
            raise InputError(f"parameter {name} has values that are infinite or not a number: mend them.")
    if not any(parameter.requires_grad for _, parameter in parameters):
        raise InputError("the model has no parameter with requires_grad: there is nothing to train.")


def gathered(x: Any, y: Any, seed: Seed) -> Samples:
    """Tensors with one entry for each sample; of many samples, a part that is drawn by the seed."""
    if isinstance(x, torch.utils.data.DataLoader):
        if y is not None:
            raise InputError("`x` is a DataLoader, which brings its targets: leave out `y`.")
        return _from_loader(x)
    if y is None:
        raise InputError("`y` is missing: give the targets, or as x a DataLoader of (x, y) pairs.")
    inputs, targets = paired_samples(x, y)
    most = _most(inputs)
    if len(inputs) <= most:
        return Samples(inputs, targets)
    order = torch.randperm(len(inputs), generator=torch_generator(seed))[:most].sort().values
    note = f"{most} of {len(inputs)} samples were looked at, drawn by the seed."
    return Samples(
        inputs[order.to(inputs.device)], targets[order.to(targets.device)], None, (note,), len(inputs)
    )


def _from_loader(loader: Iterable[Any]) -> Samples:
    inputs, targets, count, more = list[Tensor](), list[Tensor](), 0, False
    for pair in loader:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise InputError("the DataLoader does not give pairs (x, y): let its dataset return such pairs.")
        if count and count >= _most(inputs[0]):
            more = True
            break
        inputs.append(sample_tensor(pair[0], "x"))
        targets.append(sample_tensor(pair[1], "y"))
        count += len(inputs[-1])
    if not count:
        raise InputError("the DataLoader is empty: give at least one sample.")
    x, y, size = torch.cat(inputs), torch.cat(targets), len(inputs[0])
    note = (f"The first {len(x)} samples of the loader were looked at.",) if more else ()
    return Samples(x, y, size if size < len(x) else None, note)


def _most(inputs: Tensor) -> int:
    return max(16, min(_MOST_SAMPLES, _MOST_NUMBERS // max(1, inputs[0].numel())))


def samples_first(model: nn.Module, samples: Samples) -> Samples:
    """For a bare recurrent or transformer module of torch that takes (time, samples, features): the axes swapped.

    The module is told so. Inside of models of the user's own such modules stay as they are.
    """
    if not isinstance(model, _SEQUENCE_MODULES):
        return samples
    if isinstance(model, nn.RNNBase) and samples.x.ndim != 3:
        raise InputError(
            f"x has shape {tuple(samples.x.shape)}: give (samples, time, features), or (time, samples, features) "
            "where the module has batch_first=False."
        )
    parts = [part for part in model.modules() if getattr(part, "batch_first", None) is False]
    if not parts or samples.x.ndim != 3:
        return samples
    for part in parts:
        part.batch_first = True  # type: ignore[assignment]
    swap = samples.y.ndim >= 2 and samples.y.shape[:2] == samples.x.shape[:2]
    if not swap:
        raise InputError(
            f"the module takes (time, samples, features), but y has shape {tuple(samples.y.shape)}: give targets "
            "with time and samples first, or make the module with `batch_first=True`."
        )
    return replace(samples, x=samples.x.transpose(0, 1), y=samples.y.transpose(0, 1))


def fitted_task(model: nn.Module, samples: Samples, loss: Loss | None, output: Output) -> Task:
    """Hooks the model so that it returns one tensor, and prepares data and loss for it.

    Everything is tried on a copy at rest, so that running statistics of the model stay as they are.
    """
    trial = copy.deepcopy(model).eval()
    choice = OutputChoice(output)
    choose_output(trial, choice)
    like = next(trial.parameters())
    inputs = samples.x.to(like.device)
    inputs = inputs.to(like.dtype) if inputs.is_floating_point() else inputs
    inputs = _taken(trial, inputs, like)
    with torch.no_grad():
        outputs = trial(inputs[:2])
    if not outputs.is_floating_point():
        raise InputError(
            f"the model returns {outputs.dtype}: let it return real numbers, before any argmax or rounding."
        )
    if not outputs.ndim or len(outputs) != len(inputs[:2]):
        raise InputError(
            f"the model returns shape {tuple(outputs.shape)} for {len(inputs[:2])} samples: "
            "let it return one entry for each sample, along the first axis."
        )
    wants_classes = (
        loss is None or loss is nn.functional.cross_entropy or isinstance(loss, nn.CrossEntropyLoss)
    )
    # Labels may fit outputs of shape (samples, positions, classes), as language models return them.
    shape, labels = outputs.shape, samples.y
    last = not labels.is_floating_point() and outputs.ndim >= 3
    if wants_classes and last and labels.shape[1:] == shape[1:-1] and labels.shape[1:] != shape[2:]:
        choice = replace(choice, classes_last=True)
        choose_output(trial, choice)
    choose_output(model, choice)
    task = prepare(trial, inputs, samples.y, loss)
    if task.loss is nn.functional.cross_entropy or isinstance(task.loss, nn.CrossEntropyLoss):
        with torch.no_grad():
            _check_classes(trial(inputs[:2]), task.y)
    return task


def _check_classes(outputs: Tensor, y: Tensor) -> None:
    """Torch takes all of these without a word, and the loss is then zero or has no minimum."""
    classes = outputs.shape[1] if outputs.ndim > 1 else 1
    if classes < 2:
        raise InputError(
            "cross-entropy of one output is always 0: give the model one output for each class, or use "
            "loss=torch.nn.BCEWithLogitsLoss() for two classes, `loss='mse'` for real targets."
        )
    if y.is_floating_point() and float(y.min()) < 0:
        raise InputError(
            f"y has values down to {float(y.min()):.3g}, but cross-entropy takes labels or probabilities of the "
            "classes: give those, or `loss='mse'`."
        )


def _taken(model: nn.Module, inputs: Tensor, like: Tensor) -> Tensor:
    """The inputs as the model takes them: whole numbers become real ones where it does not take whole ones."""
    kinds = [inputs] if inputs.is_floating_point() else [inputs, inputs.long(), inputs.to(like.dtype)]
    failure: Exception | None = None
    for candidate in kinds:
        try:
            with torch.no_grad():
                model(candidate[:2])
        except InputError:
            raise
        except _FAILURES as error:
            failure = failure or error
            continue
        return candidate
    assert failure is not None
    raise InputError(
        f"the model does not take x of shape {tuple(inputs.shape)} ({_first_line(failure)}): "
        "check the data or the model."
    ) from failure


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")


@dataclass(frozen=True)
class OutputChoice:
    """A forward hook: the entry that was asked for, or the first tensor; with the classes on axis 1 if told so."""

    output: Output = None
    classes_last: bool = False

    def __call__(self, module: nn.Module, arguments: Any, result: Any) -> Tensor:
        """What the hooked model returns instead."""
        found = _first_tensor(result) if self.output is None else entry_of(result, self.output)
        if not isinstance(found, Tensor):
            raise InputError(
                f"the model returns a {type(result).__name__} in which no tensor was found: "
                "say with `output=` which entry is meant, or wrap the model so that it returns a tensor."
            )
        return found.movedim(-1, 1) if self.classes_last else found


def choose_output(model: nn.Module, choice: OutputChoice) -> None:
    """Let this model return the chosen tensor from now on; an earlier choice is replaced."""
    _remove_choice(model)
    model.register_forward_hook(choice)


def without_choice(model: nn.Module) -> nn.Module:
    """A copy that returns what the user's model returns."""
    bare = copy.deepcopy(model)
    _remove_choice(bare)
    return bare


def _remove_choice(model: nn.Module) -> None:
    for key, hook in list(model._forward_hooks.items()):
        if isinstance(hook, OutputChoice):
            del model._forward_hooks[key]


def _first_tensor(result: Any) -> Any:
    """The first tensor, looking into tuples, lists and mappings; what is called "logits" comes before others."""
    if isinstance(result, Mapping):
        if isinstance(result.get(_USUAL_NAME), Tensor):
            return result[_USUAL_NAME]
        entries = list(result.values())
    elif isinstance(result, list | tuple):
        entries = list(result)
    else:
        return result
    found = (_first_tensor(entry) for entry in entries)
    return next((tensor for tensor in found if isinstance(tensor, Tensor)), None)


@dataclass(frozen=True)
class StepSum:
    """The checks look at some of the samples: what a step sums over is as many times larger."""

    samples: int  # in a step

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Of any samples, as if there were as many as in a step."""
        return squared_error(outputs, targets) * (self.samples / len(outputs))


def summed_over_steps(task: Task, samples: int) -> Task:
    """With a loss that has the size of a step's on any part of the data; means have it already."""
    if task.loss is not squared_error:
        return task
    return replace(task, loss=StepSum(samples), loss_name=f"{task.loss_name} in a step")
