"""``foretrain doctor``: what will hold back the learning of a model, and what to do about it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from foretrain.cli.examination import (
    BatchSize,
    Checkpoint,
    Data,
    Momentum,
    Optimizer,
    Rate,
    examined,
)
from foretrain.cli.frame import Command, Seed, command_answer
from foretrain.cli.options import Loss, Model
from foretrain.support.answers import Answer

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor import Diagnosis
    from foretrain.doctor.verification import Verification

_LONG = 14  # lines of code; longer ones are shown in part


def doctor(
    model: Model,
    data: Data,
    loss: Loss = None,
    optimizer: Optimizer = None,
    lr: Rate = None,
    momentum: Momentum = 0.0,
    batch_size: BatchSize = None,
    checkpoint: Checkpoint = None,
    checks: Annotated[
        str | None, typer.Option("--checks", help="Names of checks, separated by commas [default: all].")
    ] = None,
    verify: Annotated[
        bool,
        typer.Option("--verify", help="Also train with and without the advice, for a minute at most."),
    ] = False,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of --verify.")] = 200,
    seed: Seed = 0,
) -> Answer:
    """Look at a torch model and its data, and say what will hold learning back and what to do.

    Every finding has its evidence, the theory behind it, advice, and where possible the code that carries it out.
    The model and its file are not changed. Exit code: 0 if the network can learn (also with warnings), 1 if
    a finding is critical, 2 if the model or the data cannot be used.
    """
    found = examined(
        model,
        data,
        loss=loss,
        optimizer=optimizer,
        lr=lr,
        momentum=momentum,
        batch_size=batch_size,
        checkpoint=checkpoint,
        seed=seed,
        checks=checks,
    )
    return _answer(model, found, found.verify(steps) if verify else None)


def _answer(name: str, found: Diagnosis, trained: Verification | None) -> Answer:
    from foretrain.doctor import Severity
    from foretrain.doctor.presentation.text import complaint, in_one_line_each, patient, plan_text
    from foretrain.report.doctor import doctor_figure

    plan = found.plan()  # asked first: what heals with another finding is then told as its consequence
    text = [f"{name}: {found.headline}", patient(found)]
    text += [complaint(found, check, finding) for check, finding in found.complaints()]
    text.append("\n".join(in_one_line_each(found)))
    if not found.healthy:
        text.append(plan_text(plan))
    if len(plan.code.splitlines()) > _LONG:
        text.append(
            "All of the code is in the answer of --json, under code, and in the page of foretrain report."
        )
    if trained is not None:
        text.append(f"Training: {trained.verdict}")
    document = {
        **found.to_dict(),
        "treatments": [{"check": step.check, "name": step.treatment.name} for step in plan.steps],
        "code": plan.code,
        "verification": None if trained is None else trained.to_dict(),
    }
    critical = any(finding.severity is Severity.CRITICAL for finding in found.findings)
    return command_answer(
        document,
        text,
        data=_data(found, trained),
        figure=partial(doctor_figure, found, trained, name),
        holds=not critical,
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
        "foretrain doctor model.py:make data.npz --checks initialisation,learning_rate --lr 0.1 --json",
        "foretrain doctor model.py:make data.npz --checkpoint weights.pt --save diagnosis --plot diagnosis.png",
    ),
    saves=True,
    draws=True,
)
