"""``foretrain report``: the doctor's findings as one interactive HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.frame import Answer, Command, Seed
from foretrain.support.errors import InputError, NotSupportedError

if TYPE_CHECKING:
    from foretrain.doctor import Diagnosis
    from foretrain.report.page import Patient


def report(
    model: Annotated[str, typer.Argument(help="The network: model.py:make, a function that returns it.")],
    data: Annotated[Path, typer.Argument(help="The data: data.npz with x and y, samples first.")],
    page: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="The file that is written.")
    ] = Path("report.html"),
    title: Annotated[str, typer.Option("--title", help="Of the page [default: MODEL on DATA].")] = "",
    optimizer: Annotated[
        str | None, typer.Option("--optimizer", help="sgd, adam, adamw or shampoo [default: sgd].")
    ] = None,
    lr: Annotated[
        float | None, typer.Option("--lr", help="Learning rate [default: chosen by the doctor].")
    ] = None,
    momentum: Annotated[float, typer.Option("--momentum", help="Of sgd.")] = 0.0,
    loss: Annotated[
        str | None, typer.Option("--loss", help="mse or cross_entropy [default: by the kind of y].")
    ] = None,
    batch: Annotated[
        int | None, typer.Option("--batch", min=1, help="Samples in a step [default: all].")
    ] = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Train briefly with and without the advice.")
    ] = True,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of this training.")] = 200,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the file if it is there.")] = False,
    seed: Seed = 0,
) -> Answer:
    """Examine a torch model on its data and write all of it to one HTML file, which opens without a network.

    The page holds the findings with evidence, advice and code, theory beside measurement, spectra, modes, learning
    curves and the phase diagram with the network's place in it.
    """
    from foretrain.report.page import write_page
    from foretrain.report.page.numbers import file_size

    _refuse(page, overwrite)
    found = _examined(model, data, loss, optimizer, lr, momentum, batch, seed)
    patient = _patient(title or f"{model} on {data.name}", found, steps if verify else 0)
    size = write_page(page, [patient], overwrite=overwrite)
    trained = patient.verification
    text = [found.headline] + ([f"Training: {trained.verdict}"] if trained is not None else [])
    text.append(
        f"Written: {page} ({file_size(size)}), one file that opens in any browser, without a network."
    )
    document = {
        "page": str(page),
        "bytes": size,
        **found.to_dict(),
        "verification": None if trained is None else trained.to_dict(),
    }
    return Answer(document, text)


def _refuse(page: Path, overwrite: bool) -> None:
    """What cannot be written is refused before the work."""
    if page.is_dir():
        raise InputError(f"{page} is a folder: give --output the name of a file.")
    if page.exists() and not overwrite:
        raise InputError(f"{page} already exists: give --output another name, or add --overwrite.")


def _examined(
    model: str,
    data: Path,
    loss: str | None,
    optimizer: str | None,
    lr: float | None,
    momentum: float,
    batch: int | None,
    seed: int,
) -> Diagnosis:
    import torch

    from foretrain.cli.doctor import _arrays, _check_optimizer, _optimizer
    from foretrain.doctor.entry import doctor
    from foretrain.support.loading import load_data, load_model

    _check_optimizer(optimizer, lr, momentum)
    samples = load_data(data)
    torch.manual_seed(seed)  # of what the model's file draws
    network = load_model(model)
    x, y = _arrays(network, samples.x, samples.y)
    given: Any = _optimizer(network, optimizer, lr, momentum)
    return doctor(network, x, y, loss=loss, optimizer=given, batch_size=batch, seed=seed)


def _patient(name: str, found: Diagnosis, steps: int) -> Patient:
    """With trainings of so many steps; without any for 0."""
    from foretrain.doctor.learning_curve import learning_curve
    from foretrain.doctor.setup import Case
    from foretrain.report.page import Patient

    if not steps:
        return Patient(name, found)
    try:
        curve = learning_curve(Case(found.setup), steps)
    except NotSupportedError:  # the page has no prediction for a model that cannot be linearised
        curve = None
    return Patient(name, found, found.verify(steps), curve)


COMMAND = Command(
    report,
    examples=(
        "foretrain report model.py:make data.npz -o report.html",
        "foretrain report model.py:make data.npz --optimizer adam --lr 0.001 --batch 64 --steps 400",
        "foretrain report model.py:make data.npz --no-verify --overwrite",
    ),
)
