"""``foretrain report``: the doctor's findings as one interactive HTML file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from foretrain.cli.frame import Command, Seed
from foretrain.cli.models import BatchSize, Checkpoint, Momentum, Optimizer, Rate, Training
from foretrain.cli.options import Loss
from foretrain.support.answers import Answer
from foretrain.support.answers.folder import refuse_unwritable
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.report.page import Patient


def report(
    model: Annotated[
        str | None, typer.Argument(help="model.py:make, a function that returns the torch model.")
    ] = None,
    data: Annotated[Path | None, typer.Argument(help="data.npz with x and y, samples first.")] = None,
    example: Annotated[bool, "Of two built-in networks, instead of MODEL and DATA."] = False,
    page: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE.html", help="The file that is written.")
    ] = Path("report.html"),
    title: Annotated[str, "Of the page [default: MODEL on DATA]."] = "",
    optimizer: Optimizer = None,
    lr: Rate = None,
    momentum: Momentum = 0.0,
    loss: Loss = None,
    batch_size: BatchSize = None,
    checkpoint: Checkpoint = None,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Train briefly with and without the advice.")
    ] = True,
    steps: Annotated[int, typer.Option("--steps", min=1, help="Steps of this training.")] = 200,
    overwrite: Annotated[bool, "Replace the file if it is there."] = False,
    seed: Seed = 0,
) -> Answer:
    """Examine a torch model on its data and write all of it to one HTML file, which opens without a network.

    The page holds the findings with evidence, advice and code, theory beside measurement, spectra, modes, learning
    curves and the phase diagram with the network's place in it.
    """
    from foretrain.report.page import Patient, example_patients, write_page

    # What cannot be written is refused before the work.
    if page.is_dir():
        raise InputError(f"{page} is a folder: give --output the name of a file.")
    refuse_unwritable(page)
    if page.exists() and not overwrite:
        raise InputError(f"{page} already exists: give --output another name, or add --overwrite.")
    bound = steps if verify else 0
    training = Training(loss, optimizer, lr, momentum, batch_size, checkpoint)
    if example:
        if model is not None:
            raise InputError("--example is of two built-in networks: leave out the model and the data.")
        if training != Training():
            raise InputError(
                "--example is of two built-in networks with optimizers of their own: leave out --loss, --optimizer, "
                "--lr, --momentum, --batch-size and --checkpoint."
            )
        patients: list[Patient] = example_patients(bound, seed)
        title = title or "Two built-in networks"
    elif model is None or data is None:
        raise InputError("a report needs MODEL.py:FUNCTION and DATA.npz, or --example for built-in ones.")
    else:
        found = training.examined(model, data, seed)
        patients = [Patient.trained(title or f"{model} on {data.name}", found, bound)]
    size = write_page(page, patients, title, overwrite=overwrite)
    texts = list[str]()
    for patient in patients:
        texts.append(f"{patient.name}: {patient.diagnosis.headline}")
        texts += [f"Training: {patient.verification.verdict}"] if patient.verification else []
    large = f"{size / 1e6:.1f} MB" if size >= 1e6 else f"{size / 1e3:.0f} kB"
    texts.append(f"Written: {page} ({large}), one file that opens in any browser, without a network.")
    networks = [
        {
            "name": patient.name,
            **patient.diagnosis.to_dict(),
            "verification": patient.verification.to_dict() if patient.verification else None,
        }
        for patient in patients
    ]
    return Answer("", texts, record={"page": str(page), "bytes": size, "networks": networks})


COMMAND = Command(
    report,
    examples=(
        "foretrain report --example -o report.html",
        "foretrain report model.py:make data.npz -o report.html",
        "foretrain report model.py:make data.npz --optimizer adam --lr 0.001 --batch-size 64 --steps 400",
        "foretrain report model.py:make data.npz --no-verify --overwrite",
    ),
    saves=False,
    draws=False,
)
