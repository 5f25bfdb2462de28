"""``foretrain doctor``: what will hold back the learning of a model, and what to do about it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from foretrain.cli.frame import Command, Seed
from foretrain.cli.models import (
    Accumulate,
    BatchSize,
    Checkpoint,
    ClipNorm,
    Data,
    Momentum,
    Optimizer,
    Rate,
    Training,
    WeightDecay,
)
from foretrain.cli.options import Model
from foretrain.support.answers import Answer
from foretrain.support.progress import parse_duration

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor import Diagnosis
    from foretrain.doctor.verification import Verification


def doctor(
    model: Model,
    data: Data,
    loss: Annotated[
        str | None,
        "mse, squared_error (half the SUM), cross_entropy, a loss of torch.nn.functional as in --loss l1_loss, or "
        "your own as in --loss losses.py:robust [default: cross_entropy for whole-number labels, else mse].",
    ] = None,
    optimizer: Optimizer = None,
    lr: Rate = None,
    momentum: Momentum = 0.0,
    weight_decay: WeightDecay = 0.0,
    batch_size: BatchSize = None,
    accumulate: Accumulate = 1,
    clip_norm: ClipNorm = None,
    checkpoint: Checkpoint = None,
    checks: Annotated[str | None, "Names of checks, separated by commas [default: all]."] = None,
    budget: Annotated[
        str | None,
        "Time it may take, as in --budget 60s or 2m [default: 30s up to a million parameters, 2m for ten million].",
    ] = None,
    verify: Annotated[bool, "Also train with and without the advice, for a minute at most."] = False,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of --verify.")] = 200,
    seed: Seed = 0,
) -> Answer:
    """Look at a torch model and its data, and say what will hold learning back and what to do.

    Every finding has its evidence, the theory behind it, advice, and where possible the code that carries it out.
    The model and its file are not changed. Exit code: 0 if the network can learn (also with warnings), 1 if
    a finding is critical, 2 if the model or the data cannot be used. Ctrl-C gives what is known so far (130).
    """
    training = Training(
        loss, optimizer, lr, momentum, batch_size, checkpoint, weight_decay, clip_norm, accumulate
    )
    found = training.examined(
        model, data, seed, checks, None if budget is None else parse_duration(budget, "--budget")
    )
    try:  # asked first: what heals with another finding is then told as its consequence
        plan = found.plan(found.account.left)
    except KeyboardInterrupt:
        found = replace(found, account=replace(found.account, interrupted=True))
        plan = found.plan(0.0)
    trained = found.verify(steps) if verify and not found.account.interrupted else None
    answer = found.answer()
    parts = [part for part in answer.parts if not callable(part)]
    record = {"verification": None if trained is None else trained.to_dict()}
    return replace(
        answer,
        title=model,
        parts=[
            *parts,
            *([f"Training: {trained.verdict}"] if trained else []),
            partial(found.figure, trained, model),
        ],
        data=partial(_data, found, trained),
        record={**found.to_dict(), **plan.to_dict(), **record},
    )


def _data(found: Diagnosis, trained: Verification | None) -> xarray.Dataset:
    data = found.to_dataset()
    if trained is None:
        return data
    runs = trained.to_dataset()
    names = {str(name): f"verification.{name}" for name in {*runs.variables, *runs.dims}}
    return data.merge(runs.rename(names), combine_attrs="override")


COMMAND = Command(
    doctor,
    examples=(
        "foretrain doctor model.py:make data.npz",
        "foretrain doctor model.py:make data.npz --optimizer adam --lr 0.001 --batch-size 64 --verify",
        "foretrain doctor model.py:make data.npz --optimizer rmsprop --lr 0.001 --clip-norm 1",
        "foretrain doctor model.py:make data.npz --budget 2m",
        "foretrain doctor model.py:make data.npz --checks initialisation,learning_rate --lr 0.1 --json",
        "foretrain doctor model.py:make data.npz --checkpoint weights.pt --save diagnosis --plot diagnosis.png",
    ),
)
