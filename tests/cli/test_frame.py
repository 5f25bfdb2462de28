"""The frame with commands made for the purpose."""

from __future__ import annotations

import json
import os
import warnings
from pathlib import Path
from typing import Annotated

import pytest
import typer
import xarray as xr

import foretrain as ft
from foretrain.cli import frame
from foretrain.cli.frame import Command, Seed
from foretrain.support.answers import Answer, Figure, Table
from foretrain.support.errors import InputError, NotEnoughMemoryError

DATA = xr.Dataset({"x": ("i", [1.0, 2.0])})


def draw() -> Figure:
    figure = Figure("Doubles")
    figure.panel().curve([0, 1], [0, 2])
    return figure


def double(
    number: Annotated[float, typer.Argument(help="What to double.")],
    seed: Seed = 0,
    picture: Annotated[bool, typer.Option("--picture/--no-picture")] = True,
) -> Answer:
    """Double a number."""
    if number < 0:
        raise InputError("the number is\nnegative: give a positive one.")
    if number == 13:
        raise RuntimeError("bad luck")
    if number == 14:
        raise KeyboardInterrupt
    if number == 15:
        raise NotEnoughMemoryError("the answer needs 1 TB: ask for less.")
    if number == 16:
        warnings.warn("the answer\nis rough", UserWarning, stacklevel=1)
    table = Table(("number", "double"), [(number, 2 * number)])
    record = {"double": 2 * number, "seed": seed}
    return Answer("The answer", [table, *([draw] if picture else [])], DATA, record, number != 17)


DOUBLE = Command(double, examples=("foretrain double 2", "foretrain double 3 --json"))
BARE = Command(double, examples=("foretrain double 2",), saves=False, draws=False)


def run(*arguments: object, command: Command = DOUBLE) -> int:
    return frame.run("double", command, [str(argument) for argument in arguments])


def test_people_get_text(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(4) == 0
    assert capsys.readouterr() == ("The answer\n\nnumber  double\n------  ------\n     4       8\n", "")


def test_machines_get_one_document(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(4, "--json", "--seed", 3, "--save", tmp_path / "s", "--plot", tmp_path / "p.png") == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) == {"double": 8.0, "seed": 3}
    assert printed.err == ""


def test_an_answer_that_does_not_hold_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(17) == 1
    assert "34" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("number", "code", "message"),
    [
        (-1, 2, "foretrain: the number is negative: give a positive one.\n"),
        (15, 2, "foretrain: the answer needs 1 TB: ask for less.\n"),
        (13, 1, "foretrain: unexpected RuntimeError (bad luck): run it again with --debug.\n"),
        (14, 130, "foretrain: interrupted.\n"),
    ],
)
def test_errors_are_one_sentence_and_a_traceback_only_on_request(
    capsys: pytest.CaptureFixture[str], number: int, code: int, message: str
) -> None:
    assert run("--json", "--", number) == code
    assert capsys.readouterr() == ("", message)
    assert run("--debug", "--", number) == code
    printed = capsys.readouterr().err
    assert printed.startswith("Traceback")
    assert printed.endswith(message)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "Missing argument 'number': see 'foretrain double --help'."),
        (("two",), "Invalid value for 'number': "),
        ((2, "--sed", 3), "No such option: --sed"),
        ((2, 3), "Got unexpected extra argument"),
        ((2, "--seed"), "Option '--seed' requires an argument"),
        ((2, "--seed", -1), "Invalid value for '--seed'"),
    ],
)
def test_wrong_usage_is_one_sentence(
    capsys: pytest.CaptureFixture[str], arguments: tuple[object, ...], message: str
) -> None:
    assert run(*arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("foretrain: ")
    assert message.lower() in err.lower()
    assert err.count("\n") == 1
    assert err.endswith("see 'foretrain double --help'.\n")


def test_warnings_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(16, "--json") == 0
    out, err = capsys.readouterr()
    assert json.loads(out)["double"] == 32
    assert err == "foretrain: warning: the answer is rough\n"


def test_help_shows_examples_and_what_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("--help") == 0
    text = capsys.readouterr().out
    assert "Double a number." in text
    assert "What to double." in text
    assert "  Examples:\n    foretrain double 2\n    foretrain double 3 --json\n" in text
    for option in ("--json", "--save", "--overwrite", "--plot", "--debug", "--seed"):
        assert option in text
    assert run("--help", command=BARE) == 0
    text = capsys.readouterr().out
    assert "--json" in text
    for option in ("--save", "--overwrite", "--plot"):
        assert option not in text


def test_save_writes_data_answer_and_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "new" / "folder"
    assert run(4, "--save", folder) == 0
    assert sorted(os.listdir(folder)) == ["answer.json", "answer.txt", "data.zarr", "figure.png"]
    xr.testing.assert_identical(ft.load(folder / "data.zarr"), DATA)
    assert json.loads((folder / "answer.json").read_text()) == {"double": 8.0, "seed": 0}
    assert "     4       8\n" in (folder / "answer.txt").read_text()
    assert (folder / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert f"Written: {folder}" in capsys.readouterr().out


def test_save_replaces_an_earlier_answer_only_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(4, "--save", tmp_path) == 0
    (tmp_path / "notes.txt").write_text("mine")
    # Refused before the work: 13 would fail otherwise.
    assert run(13, "--save", tmp_path) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert run(5, "--save", tmp_path, "--overwrite") == 0
    assert json.loads((tmp_path / "answer.json").read_text())["double"] == 10
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_save_to_a_file_is_refused_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert run(13, "--save", tmp_path / "file") == 2
    assert "--save" in capsys.readouterr().err


@pytest.mark.parametrize(("suffix", "start"), [("png", b"\x89PNG"), ("pdf", b"%PDF"), ("SVG", b"<?xml")])
def test_plot_draws_what_the_name_says_and_replaces_it(tmp_path: Path, suffix: str, start: bytes) -> None:
    file = tmp_path / f"picture.{suffix}"
    file.write_text("old")
    assert run(4, "--plot", file) == 0
    assert file.read_bytes().startswith(start)
    assert os.listdir(tmp_path) == [file.name]


def test_an_unknown_kind_of_picture_is_refused_before_the_work(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(13, "--plot", "picture.doc") == 2
    assert ".png, .pdf, .svg" in capsys.readouterr().err


def test_a_picture_that_does_not_exist_cannot_be_plotted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(4, "--no-picture", "--plot", tmp_path / "p.png") == 2
    assert "--plot" in capsys.readouterr().err
    assert run(4, "--no-picture", "--save", tmp_path / "folder") == 0
    assert sorted(os.listdir(tmp_path / "folder")) == ["answer.json", "answer.txt", "data.zarr"]
