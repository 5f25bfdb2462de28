"""What the user brings, checked: a private copy of the model, and data that it takes. Refusals are one sentence.

Which tensor of a model's result counts is a hook on the private copy, so that calling the copy returns a tensor.
Another hook takes bundles of several input tensors apart, so that ``model(task.x)`` is right for every model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from foretrain.compare.bundle import Bundle, bundle, change_tensors, shape_text, unpack_bundles
from foretrain.compare.task import (
    Loss,
    Task,
    input_samples,
    named_loss,
    paired_samples,
    prepare,
    squared_error,
)
from foretrain.empirical.models.arguments import leaves, mapped
from foretrain.empirical.models.model import entry_of
from foretrain.support.errors import InputError, NotSupportedError, error_text
from foretrain.support.progress import stop_if_late
from foretrain.support.seeds import Seed, integer, kept_random_states, torch_generator

Output = str | int | None
_USUAL_NAME = "logits"
_MOST_SAMPLES = 4096  # enough for every statistic that is measured, and for a short training
_MOST_NUMBERS = 2**22  # in all inputs together, so that activations of all samples fit into memory
_MOST_BATCHES = 4096  # of a loader, in search of some that fit together
_USUAL_BATCH = 32  # samples of a dataset that comes without a loader
_TARGETS = ("labels", "label", "targets", "target", "y")  # what dicts call them
_TRAINER = ("model", "args", "compute_loss", "get_train_dataloader", "create_optimizer", "create_scheduler")
_SEQUENCE_MODULES = (nn.RNNBase, nn.TransformerEncoder, nn.TransformerEncoderLayer)


@dataclass(frozen=True)
class Samples:
    """A batch of all samples as a training step gets it, its inputs and targets, and where they are in the batch.

    ``inputs``: the key or place of the inputs in the batch; a tuple of them where each is an argument of the model by
    itself; None where the batch is nothing else. ``target``: that of the targets, if there are any.
    """

    batch: Bundle
    x: Any  # a tensor or a Bundle
    y: Tensor | None
    inputs: Any = None
    target: Any = None
    batch_size: int | None = None  # of the loader that they came from
    notes: tuple[str, ...] = ()  # what was left out
    total: int = 0  # with what was left out, if more than here
    in_order: bool = False  # whether they come in the same order in every epoch
    unlike: Bundle | None = None  # a batch that was left out because its samples have other shapes

    def taken(self, places: Tensor) -> Samples:
        """Some of them."""
        y = None if self.y is None else self.y[places.to(self.y.device)]
        return replace(self, batch=self.batch[places], x=self.x[places], y=y)


def is_trainer(given: Any) -> bool:
    """Whether it is a Trainer of Hugging Face, or something that can do the same."""
    return not isinstance(given, nn.Module) and all(hasattr(given, name) for name in _TRAINER)


def bare_model(model: Any) -> Any:
    """The model inside of what torch wraps around it for speed or for several devices."""
    model = uncompiled(model) if isinstance(model, nn.Module) else model
    return model.module if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel) else model


def uncompiled(module: nn.Module) -> nn.Module:
    """Without torch.compile, on the module or its parts: compiled code has no second derivative.

    The parameters are the same tensors, and the given modules are not changed.
    """
    module = getattr(module, "_orig_mod", module)
    parts = {name: None if part is None else uncompiled(part) for name, part in module._modules.items()}
    if all(part is module._modules[name] for name, part in parts.items()):
        return module
    outer = copy.copy(module)
    vars(outer)["_modules"] = parts
    return outer


def private_copy(model: Any) -> nn.Module:
    """A copy that may be hooked and trained, of a model that can be."""
    if not isinstance(model, nn.Module):
        raise InputError(f"model is a {type(model).__name__}: give a torch.nn.Module.")
    if isinstance(model, torch.jit.ScriptModule):
        raise NotSupportedError("the model is a TorchScript module: give the Python module it was made from.")
    _check_parameters(model)
    try:
        private = copy.deepcopy(model)
    except Exception as error:  # whatever the user's model stumbles over
        raise InputError(
            f"the model cannot be copied ({first_line(error)}): keep no tensors of earlier passes in it."
        ) from error
    for part in private.modules():
        if isinstance(part, nn.Embedding | nn.EmbeddingBag):
            part.sparse = False  # gradients have the same values, and can be measured
    unpack_bundles(private)
    private.register_forward_pre_hook(begin_pass, with_kwargs=True)
    return private


def begin_pass(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any]) -> Any:
    """A forward pre-hook: no pass begins after the deadline, and what a model writes into is a copy of the data."""
    stop_if_late()
    return private_tensors(given), private_tensors(named)


@contextmanager
def showing_writes(model: nn.Module) -> Iterator[None]:
    """Inside, the model gets its inputs themselves, so that it can be seen whether it writes into them."""
    hooks = model._forward_pre_hooks
    model._forward_pre_hooks = type(hooks)(
        {key: hook for key, hook in hooks.items() if hook is not begin_pass}
    )
    try:
        yield
    finally:
        model._forward_pre_hooks = hooks


def private_tensors(values: Any) -> Any:
    """The same arguments with copies of their tensors, which may be written into."""
    return tree_map_only(Tensor, Tensor.clone, values)


@contextmanager
def kept_states_of(loader: Any) -> Iterator[None]:
    """Inside, a loader may draw from its own generators, and anything from the global ones; all go on as before."""
    batches = getattr(loader, "batch_sampler", None)
    drawing = (loader, batches, getattr(loader, "sampler", None), getattr(batches, "sampler", None))
    generators = (getattr(one, "generator", None) for one in drawing)
    own = [(one, one.get_state()) for one in generators if isinstance(one, torch.Generator)]
    try:
        with kept_random_states():
            yield
    finally:
        for one, state in own:
            one.set_state(state)


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
        if parameter.is_complex():
            raise NotSupportedError(
                f"parameter {name} is complex: keep its real and imaginary parts as two real parameters."
            )
        if not torch.isfinite(parameter.detach()).all():
            raise InputError(f"parameter {name} has values that are infinite or not a number: mend them.")
    if not any(parameter.requires_grad for _, parameter in parameters):
        raise InputError("the model has no parameter with requires_grad: there is nothing to train.")


def gathered(x: Any, y: Any, seed: Seed) -> Samples:
    """All samples in one batch; of many, a part that is drawn by the seed, or the first ones of a loader.

    ``x`` may be the inputs, with ``y`` for their targets; or without ``y`` one batch, a list of batches, a dataset or
    anything that gives batches, as a DataLoader does.
    """
    made = isinstance(x, torch.utils.data.Dataset)
    if made:
        x = torch.utils.data.DataLoader(x, _USUAL_BATCH)
    whole = isinstance(x, Tensor | np.ndarray | Mapping | tuple) or _is_pair(x)
    if y is not None:
        if isinstance(x, torch.utils.data.DataLoader):
            raise InputError("`x` is a DataLoader, which brings its targets: leave out `y`.")
        inputs, targets = paired_samples(x, y)
        arguments = inputs.arguments if isinstance(inputs, Bundle) else inputs
        samples = Samples(bundle((arguments, targets)), inputs, targets, 0, 1)
    elif whole:
        samples = _parted(bundle(tuple(x) if isinstance(x, list) else x))
    elif isinstance(x, Iterable) and not isinstance(x, str):
        with kept_states_of(x):
            torch.manual_seed(integer(seed))  # loaders shuffle
            sampler = getattr(x, "sampler", None)
            in_order = isinstance(x, list) or isinstance(sampler, torch.utils.data.SequentialSampler)
            return replace(_from_batches(x), in_order=in_order and not made)
    else:
        raise InputError("`y` is missing: give the targets, or as x a DataLoader of (x, y) pairs.")
    most = _most(samples.batch)
    if len(samples.batch) <= most:
        return samples.taken(torch.arange(len(samples.batch)))  # a copy: the user's data stay as they are
    order = torch.randperm(len(samples.batch), generator=torch_generator(seed))[:most].sort().values
    note = f"{most} of {len(samples.batch)} samples were looked at, drawn by the seed."
    return replace(samples.taken(order), notes=(note,), total=len(samples.batch))


def _is_pair(x: Any) -> bool:
    """Whether a list is one batch: its entries are tensors, not batches of tensors."""
    return isinstance(x, list) and all(isinstance(value, Tensor | np.ndarray) for value in x)


def _from_batches(batches: Iterable[Any]) -> Samples:
    """Batches one after the other, as long as there is room, without those whose samples have other shapes."""
    kept, count, more, others, unlike = list[Bundle](), 0, False, 0, None
    for given in islice(batches, _MOST_BATCHES):
        if kept and count >= _most(kept[0]):
            more = True
            break
        if not any(isinstance(value, Tensor | np.ndarray) for value in leaves(given)):
            raise InputError(f"a batch is a {type(given).__name__} without tensors: give batches of tensors.")
        batch = bundle(tuple(given) if isinstance(given, list) else given)
        if kept and _shapes(batch) != _shapes(kept[0]):
            others, unlike = others + 1, unlike or batch
            continue
        kept.append(batch)
        count += len(batch)
    if not kept:
        raise InputError("the DataLoader is empty: give at least one sample.")
    columns = zip(kept[0].holders, *(leaves(batch.arguments) for batch in kept))
    joined = iter([torch.cat(values) if held else values[0] for held, *values in columns])
    samples = _parted(
        replace(kept[0], arguments=mapped(lambda _: next(joined), kept[0].arguments), count=count)
    )
    size, notes = len(kept[0]), list[str]()
    if more:
        notes.append(f"The first {count} samples of the loader were looked at.")
    if others:
        which = "1 batch was" if others == 1 else f"{others} batches were"
        notes.append(
            f"{which} left out because of other shapes of samples than in the first: pad them to one size for a look "
            "at all."
        )
    size_of_step = size if size < count or others else None
    return replace(samples, batch_size=size_of_step, notes=tuple(notes), unlike=unlike)


def refused_batch(batch: Bundle, error: Exception) -> InputError:
    """For a batch of other shapes than the first, where a training would end."""
    return InputError(
        f"the model takes the first batch, but not one of other shapes, {shape_text(batch)} ({error_text(error)}): "
        "give batches whose samples have one shape."
    )


def _shapes(batch: Bundle) -> list[Any]:
    """Of one sample of what belongs to samples."""
    held = zip(leaves(batch.arguments), batch.holders)
    return [tuple(value.shape[1:]) if holds else None for value, holds in held]


def _parted(batch: Bundle) -> Samples:
    """Inputs and targets of a batch: those of a pair, or what a dict calls so; else all of it is inputs."""
    given = batch.arguments
    if isinstance(given, Tensor):
        return Samples(batch, given, None)
    if isinstance(given, Mapping):
        target = next((name for name in _TARGETS if isinstance(given.get(name), Tensor)), None)
        names = tuple(name for name in given if name != target)
        y = None if target is None else given[target]
        if len(names) == 1 and isinstance(given[names[0]], Tensor):  # however the model calls it
            return Samples(batch, given[names[0]], y, names[0], target)
        return Samples(batch, bundle({name: given[name] for name in names}), y, names, target)
    if len(given) == 2 and isinstance(given[1], Tensor):
        x, y = paired_samples(given[0], given[1])
        return Samples(batch, x, y, 0, 1)
    if len(given) == 1:
        return Samples(batch, input_samples(given[0]), None, 0)
    return Samples(batch, bundle(given), None, tuple(range(len(given))))


def with_targets(samples: Samples) -> Samples:
    """For a loss of outputs and targets: of a tuple with more entries than two, the last one holds the targets."""
    if samples.y is not None:
        return samples
    given = samples.batch.arguments
    if isinstance(given, tuple) and len(given) > 2 and isinstance(given[-1], Tensor):
        x, y = paired_samples(tuple(given[:-1]), given[-1])
        return replace(samples, x=x, y=y, inputs=tuple(range(len(given) - 1)), target=len(given) - 1)
    if isinstance(given, Mapping):
        raise InputError(
            f"batches have {', '.join(map(str, given))}, of which none is called {', '.join(_TARGETS)}: name the "
            "targets so, or give `step=`, a function of the model and a batch that returns the loss."
        )
    raise InputError("`y` is missing: give the targets, or as x a DataLoader of (x, y) pairs.")


def _most(batch: Bundle) -> int:
    return max(16, min(_MOST_SAMPLES, _MOST_NUMBERS // max(1, batch.numbers)))


def samples_first(model: nn.Module, samples: Samples) -> Samples:
    """For a bare recurrent or transformer module of torch that takes (time, samples, features): the axes swapped.

    The module is told so. Inside of models of the user's own such modules stay as they are.
    """
    if not isinstance(model, _SEQUENCE_MODULES) or not isinstance(samples.x, Tensor) or samples.y is None:
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


def fitted_task(model: nn.Module, samples: Samples, loss: Loss | str | None, output: Output) -> Task:
    """Hooks the model so that it returns one tensor, and prepares data and loss for it.

    Everything is tried on a copy at rest, so that running statistics of the model stay as they are.
    """
    samples, function = with_targets(samples), named_loss(loss)
    assert samples.y is not None
    trial = copy.deepcopy(model).eval()
    choice = OutputChoice(output)
    choose_output(trial, choice)
    like = next(trial.parameters())

    def in_precision(value: Tensor) -> Tensor:
        return value.to(like.dtype) if value.is_floating_point() else value

    inputs = change_tensors(samples.x.to(like.device), in_precision)
    inputs, outputs = _taken(trial, inputs, like)
    if outputs.is_complex():
        raise InputError(
            "the model returns complex numbers: let it return real ones, such as their absolute value."
        )
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
        function is None
        or function is nn.functional.cross_entropy
        or isinstance(function, nn.CrossEntropyLoss)
    )
    if wants_classes and has_classes_last(outputs, samples.y):
        choice = replace(choice, classes_last=True)
        choose_output(trial, choice)
        outputs = choice(trial, (), outputs)
    choose_output(model, choice)
    task = prepare(trial, inputs, samples.y, loss, outputs)
    if samples.unlike is not None:
        other = with_targets(_parted(samples.unlike.to(like.device)))
        try:
            with torch.no_grad():
                trial(change_tensors(other.x, in_precision)[:2])
        except Exception as error:  # whatever the user's model stumbles over
            raise refused_batch(samples.unlike, error) from error
    if task.loss is nn.functional.cross_entropy and not callable(loss):
        _check_classes(outputs, task.y)
    return task


def has_classes_last(outputs: Tensor, labels: Tensor) -> bool:
    """Whether labels fit outputs of shape (samples, positions, classes), as language models return them."""
    shape, last = outputs.shape, not labels.is_floating_point() and outputs.ndim >= 3
    return last and labels.shape[1:] == shape[1:-1] and labels.shape[1:] != shape[2:]


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


def _taken(model: nn.Module, inputs: Tensor | Bundle, like: Tensor) -> tuple[Tensor | Bundle, Tensor]:
    """The inputs as the model takes them, and what it returns for the first two.

    Whole numbers become real ones where it does not take whole ones.
    """

    def with_whole(kind: torch.dtype) -> Tensor | Bundle:
        return change_tensors(inputs, lambda value: value if value.is_floating_point() else value.to(kind))

    failure: Exception | None = None
    for candidate in (inputs, with_whole(torch.long), with_whole(like.dtype)):
        try:
            with torch.no_grad():
                return candidate, model(candidate[:2])
        except InputError:
            raise
        except Exception as error:  # whatever the user's model stumbles over
            failure = failure or error
    assert failure is not None
    raise InputError(
        f"the model does not take x of shape {shape_text(inputs)} in evaluation mode ({error_text(failure)}): "
        "check the data or the model."
    ) from failure


def first_line(error: BaseException) -> str:
    """What an error says, without the rest and without its full stop."""
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


@contextmanager
def returning_everything(model: nn.Module) -> Iterator[None]:
    """Inside, the model returns what the user's model returns."""
    hooks = model._forward_hooks
    kept = {key: hook for key, hook in hooks.items() if not isinstance(hook, OutputChoice)}
    model._forward_hooks = type(hooks)(kept)
    try:
        yield
    finally:
        model._forward_hooks = hooks


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
