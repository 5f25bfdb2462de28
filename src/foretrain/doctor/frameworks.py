"""What frameworks around torch know of a training: Lightning's modules and the Trainer of Hugging Face.

They are known by what they have, so that neither is imported.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from foretrain.doctor.intake import bare_model
from foretrain.doctor.step_task import Step
from foretrain.support.errors import InputError, NotSupportedError, error_text


class Configured(NamedTuple):
    """An optimizer, its scheduler, and whether that steps after an epoch instead of after a step."""

    optimizer: torch.optim.Optimizer | None = None
    scheduler: Any = None
    by_epoch: bool = False


def configured_optimizer(model: Any) -> Configured:
    """What ``configure_optimizers`` of a Lightning module returns, in any of the forms that Lightning allows."""
    try:
        given = model.configure_optimizers()
    except Exception as error:  # most often it asks for a trainer, which there is not
        raise InputError(f"configure_optimizers failed ({error_text(error)}): give `optimizer=`.") from error
    schedulers: Any = None
    if isinstance(given, tuple) and len(given) == 2 and isinstance(given[0], Sequence):
        given, schedulers = given
    entries = list(given) if isinstance(given, Sequence) else [given]
    if len(entries) != 1:
        raise NotSupportedError(
            f"configure_optimizers gives {len(entries)} optimizers: give `step=` and one of them as `optimizer=`."
        )
    entry: Any = entries[0]
    if isinstance(entry, Mapping):
        entry, schedulers = entry.get("optimizer"), entry.get("lr_scheduler", schedulers)
    if isinstance(schedulers, Sequence):
        schedulers = schedulers[0] if schedulers else None
    by_epoch = schedulers is not None
    if isinstance(schedulers, Mapping):
        by_epoch = schedulers.get("interval", "epoch") == "epoch"
        schedulers = schedulers.get("scheduler")
    return Configured(entry, schedulers, by_epoch)


class Trained(NamedTuple):
    """The parts of a Trainer: its model, batches and loss, and how it trains."""

    model: nn.Module
    batches: Any
    step: Step
    optimizer: torch.optim.Optimizer
    options: dict[str, Any]


def trainer_parts(trainer: Any) -> Trained:
    """Read off a Trainer, which is left as it was: an optimizer that it has not made yet is made for this only."""
    model, args, batches = bare_model(trainer.model), trainer.args, trainer.get_train_dataloader()
    own = trainer.optimizer, trainer.lr_scheduler
    accumulate = max(1, int(getattr(args, "gradient_accumulation_steps", 1)))
    steps = int(getattr(args, "max_steps", 0))
    if steps <= 0:
        steps = math.ceil(len(batches) / accumulate) * math.ceil(float(args.num_train_epochs))
    try:
        if trainer.optimizer is None:
            trainer.create_optimizer()
        optimizer = trainer.optimizer
        if trainer.lr_scheduler is None:
            trainer.create_scheduler(steps, optimizer)
        scheduler = trainer.lr_scheduler
    finally:
        trainer.optimizer, trainer.lr_scheduler = own
    clip = getattr(args, "max_grad_norm", None)
    half = torch.float16 if getattr(args, "fp16", False) else None
    options = {
        "clip_norm": float(clip) if clip else None,
        "accumulate": accumulate,
        "autocast": torch.bfloat16 if getattr(args, "bf16", False) else half,
        "scheduler": scheduler,
    }

    def compute_loss(model: nn.Module, batch: Any) -> Any:
        return trainer.compute_loss(model, batch)

    return Trained(model, batches, Step(compute_loss, "Trainer.compute_loss", model), optimizer, options)
