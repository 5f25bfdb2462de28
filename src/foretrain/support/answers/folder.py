"""An answer as a folder: labelled data, JSON, text and picture; and what is refused before any work is done."""

from __future__ import annotations

import os
from pathlib import Path

from foretrain.support.answers.answer import Answer
from foretrain.support.answers.matplotlib_renderer import refuse_unknown_picture as refuse_ending
from foretrain.support.answers.matplotlib_renderer import write
from foretrain.support.answers.text import plain
from foretrain.support.atomic import new_file
from foretrain.support.errors import InputError
from foretrain.support.json_text import json_text
from foretrain.support.store import DATA

DOCUMENT, TEXT, PICTURE = "answer.json", "answer.txt", "figure.png"


def refuse_taken_folder(folder: Path, *, overwrite: bool) -> None:
    """Raise if ``write_folder`` would not be allowed to write."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file: give --save the name of a folder.")
    refuse_unwritable(folder)
    for name in (DATA, DOCUMENT, TEXT, PICTURE):
        if (folder / name).exists() and not overwrite:
            raise InputError(
                f"{folder} holds an earlier answer: give --save another folder, or add --overwrite."
            )


def refuse_unwritable(path: Path) -> None:
    """Raise if neither the place of a file or folder nor the nearest folder above it can be written to."""
    there = path if path.exists() else next((one for one in path.absolute().parents if one.exists()), path)
    if not path.exists() and not there.is_dir():
        raise InputError(f"{path} cannot be written: {there} is a file, not a folder.")
    if not os.access(there, os.W_OK):
        raise InputError(f"{path} cannot be written: there is no permission to write to {there}.")


def refuse_unknown_picture(path: Path) -> None:
    """Raise if the file's name does not end like a picture, or cannot be written."""
    if path.is_dir():
        raise InputError(f"{path} is a folder: give --plot the name of a file.")
    refuse_ending(path)
    refuse_unwritable(path)


def write_folder(folder: Path, answer: Answer, *, overwrite: bool) -> None:
    """Write the data as a labelled store, the answer as JSON and as text, and the picture."""
    from foretrain.support.store import save

    data = answer.dataset()
    if data is not None:
        save(data, folder / DATA, overwrite=overwrite)
    for name, content in (
        (DOCUMENT, f"{json_text(answer.document())}\n"),
        (TEXT, plain(answer)),
    ):
        with new_file(folder / name, overwrite=overwrite) as path:
            path.write_text(content, encoding="utf-8")
    if answer.has_figure:
        write(answer.figures[0], folder / PICTURE, overwrite=overwrite)
