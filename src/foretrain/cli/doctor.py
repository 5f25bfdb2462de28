"""``foretrain doctor``: what will hold back the learning of a model, and what to do about it."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.frame import Answer, Command, Seed
from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    import xarray
    from torch import nn

    from foretrain.doctor import Diagnosis
    from foretrain.doctor.verification import Verification

_OPTIMIZERS = ("sgd", "adam", "adamw", "shampoo")


def doctor(
    model: Annotated[str, typer.Argument(help="model.py:make, a function that returns the torch model.")],
    data: Annotated[Path, typer.Argument(help="data.npz with x and y, samples first.")],
    loss: Annotated[
        str | None,
        typer.Option("--loss", help="mse or cross_entropy [default: cross_entropy for whole-number labels]."),
    ] = None,
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="sgd, adam, adamw or shampoo [default: sgd].")
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option("--lr", help="Learning rate [default: half the largest stable one, for sgd]."),
    ] = None,
    momentum: Annotated[float, typer.Option("--momentum", help="Of sgd.")] = 0.0,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Samples in a step [default: all].")
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="WEIGHTS.pt", help="Weights to start from: training has begun."),
    ] = None,
    checks: Annotated[
        str | None, typer.Option("--checks", help="Names of checks, separated by commas [default: all].")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Also train briefly with and without the advice.")
    ] = False,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of --verify.")] = 200,
    seed: Seed = 0,
) -> Answer:
    """Look at a torch model and its data, and say what will hold learning back and what to do.

    Every finding has its evidence, the theory behind it, advice, and where possible the code that carries it out.
    The model and its file are not changed. Exit code: 0 if the network can learn (also with warnings), 1 if
    a finding is critical, 2 if the model or the data cannot be used.
    """
    import torch

    from foretrain.doctor.entry import chosen_checks
    from foretrain.doctor.entry import doctor as examine
    from foretrain.support.loading import load_checkpoint, load_data, load_model

    chosen_checks(checks)  # refuses unknown names before the work
    _check_optimizer(optimizer, lr, momentum)
    samples = load_data(data)
    torch.manual_seed(seed)  # of what the model's file draws
    network = load_model(model)
    if checkpoint is not None:
        load_checkpoint(network, checkpoint)
    x, y = _arrays(network, samples.x, samples.y)
    found = examine(
        network,
        x,
        y,
        loss=loss,
        optimizer=_optimizer(network, optimizer, lr, momentum),
        batch_size=batch,
        fresh=None if checkpoint is None else False,
        checks=checks,
        seed=seed,
    )
    return _answer(model, found, found.verify(steps) if verify else None)


def _check_optimizer(name: str | None, lr: float | None, momentum: float) -> None:
    if name is not None and name not in _OPTIMIZERS:
        raise unknown_name("optimizer", name, _OPTIMIZERS)
    if lr is not None and not 0 < lr < float("inf"):
        raise InputError(f"--lr is {lr:g}: give a positive learning rate.")
    if not 0 <= momentum < 1:
        raise InputError(f"--momentum is {momentum:g}: give a number from 0 to below 1.")
    if momentum and name not in (None, "sgd"):
        raise InputError(f"--momentum is an option of sgd: leave it out for {name}.")
    if momentum and lr is None:
        raise InputError(
            "--momentum needs --lr: the rate that is chosen without it is that of plain descent."
        )


def _optimizer(network: nn.Module, name: str | None, lr: float | None, momentum: float) -> Any:
    """A torch optimizer; None where the doctor is to choose the rate of plain descent."""
    import torch

    from foretrain.training.optimizers import shampoo

    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("the model has no parameter with requires_grad: there is nothing to train.")
    if name in (None, "sgd"):
        return None if lr is None else torch.optim.SGD(trained, lr=lr, momentum=momentum)
    rate = 1e-3 if lr is None else lr  # the usual one of all three
    if name == "shampoo":
        return shampoo(trained, lr=rate)
    return (torch.optim.Adam if name == "adam" else torch.optim.AdamW)(trained, lr=rate)


def _arrays(network: nn.Module, x: Any, y: Any) -> tuple[Any, Any]:
    """A recurrent layer alone may take time first; a file has samples first."""
    import torch

    time_first = isinstance(network, torch.nn.RNNBase) and not network.batch_first and x.ndim == 3
    swaps = time_first and y.ndim >= 2 and y.shape[:2] == x.shape[:2]
    return (x.swapaxes(0, 1), y.swapaxes(0, 1)) if swaps else (x, y)


def _answer(name: str, found: Diagnosis, trained: Verification | None) -> Answer:
    from foretrain.doctor import Severity
    from foretrain.doctor.presentation import complaint, in_one_line_each, patient, plan_text
    from foretrain.report.doctor import doctor_figure

    plan = found.plan()  # asked first: what heals with another finding is then told as its consequence
    text = [f"{name}: {found.headline}", patient(found)]
    text += [complaint(found, check, finding) for check, finding in found.complaints()]
    text.append("\n".join(in_one_line_each(found)))
    if not found.healthy:
        text.append(plan_text(plan))
    if trained is not None:
        text.append(f"Training: {trained.verdict}")
    document = {
        **found.to_dict(),
        "treatments": [{"check": step.check, "name": step.treatment.name} for step in plan.steps],
        "code": plan.code,
        "verification": None if trained is None else trained.to_dict(),
    }
    critical = any(finding.severity is Severity.CRITICAL for finding in found.findings)
    return Answer(
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
        "foretrain doctor model.py:make data.npz --optimizer adam --lr 0.001 --batch 64 --verify",
        "foretrain doctor model.py:make data.npz --checks initialisation,learning_rate --lr 0.1 --json",
        "foretrain doctor model.py:make data.npz --checkpoint weights.pt --save diagnosis --plot diagnosis.png",
    ),
    saves=True,
    draws=True,
)
