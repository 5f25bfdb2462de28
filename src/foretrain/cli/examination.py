"""What the commands that examine a model share: their options, and the way from files to a diagnosis."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.model_inputs import known_to_torch, model_from, takes_time_first
from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    from torch import nn

    from foretrain.doctor import Diagnosis

_OPTIMIZERS = ("sgd", "adam", "adamw", "shampoo")

Data = Annotated[Path, typer.Argument(help="data.npz with x and y, samples first.")]
Optimizer = Annotated[str | None, "sgd, adam, adamw or shampoo [default: sgd]."]
Rate = Annotated[float | None, "Learning rate [default: half the largest stable one, for sgd]."]
Momentum = Annotated[float, "Of sgd."]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, help="Samples in a step [default: all].")
]
Checkpoint = Annotated[
    Path | None,
    typer.Option("--checkpoint", metavar="WEIGHTS.pt", help="Weights to start from: training has begun."),
]


def examined(
    model: str,
    data: Path,
    *,
    loss: str | None,
    optimizer: str | None,
    lr: float | None,
    momentum: float,
    batch_size: int | None,
    checkpoint: Path | None,
    seed: int,
    checks: str | None = None,
) -> Diagnosis:
    """The diagnosis of a model's file on a data file; what cannot be used is refused before the work."""
    from foretrain.compare.task import named_loss
    from foretrain.doctor.examine import chosen_checks, doctor
    from foretrain.support.loading import load_checkpoint, load_data

    chosen_checks(checks)
    named_loss(loss)
    optimizer = None if optimizer is None else optimizer.lower()
    if optimizer is not None and optimizer not in _OPTIMIZERS:
        raise unknown_name("`optimizer`", optimizer, _OPTIMIZERS)
    if lr is not None and not 0 < lr < float("inf"):
        raise InputError(f"--lr is {lr:g}: give a positive learning rate.")
    if not 0 <= momentum < 1:
        raise InputError(f"--momentum is {momentum:g}: give a number from 0 to below 1.")
    if momentum and optimizer not in (None, "sgd"):
        raise InputError(f"--momentum is an option of sgd: leave it out for {optimizer}.")
    if momentum and lr is None:
        raise InputError(
            "--momentum needs --lr: the rate that is chosen without it is that of plain descent."
        )
    samples = load_data(data)
    network = model_from(model, seed)
    if checkpoint is not None:
        load_checkpoint(network, checkpoint)
    x, y = known_to_torch(samples.x), known_to_torch(samples.y)
    # A recurrent layer alone may take time first; a file has samples first.
    if takes_time_first(network, x) and y.ndim >= 2 and y.shape[:2] == x.shape[:2]:
        x, y = x.swapaxes(0, 1), y.swapaxes(0, 1)
    return doctor(
        network,
        x,
        y,
        loss=loss,
        optimizer=_optimizer(network, optimizer, lr, momentum),
        batch_size=batch_size,
        fresh=None if checkpoint is None else False,
        checks=checks,
        seed=seed,
    )


def _optimizer(network: nn.Module, name: str | None, lr: float | None, momentum: float) -> Any:
    """A torch optimizer; None where the doctor is to choose the rate of plain descent."""
    import torch

    trained = [parameter for parameter in network.parameters() if parameter.requires_grad]
    if not trained:
        raise InputError("the model has no parameter with requires_grad: there is nothing to train.")
    if name in (None, "sgd"):
        return None if lr is None else torch.optim.SGD(trained, lr=lr, momentum=momentum)
    rate = 1e-3 if lr is None else lr  # the usual one of all three
    if name == "shampoo":
        from foretrain.training.optimizers import shampoo  # it takes seconds to import

        return shampoo(trained, lr=rate)
    return (torch.optim.Adam if name == "adam" else torch.optim.AdamW)(trained, lr=rate)
