"""Messages name parameters as data: Python prints them as they are, the command line as its options."""

from __future__ import annotations

import pickle
from typing import Annotated

import pytest
import typer

from foretrain.cli import frame
from foretrain.cli.frame import Command
from foretrain.support.answers import Answer
from foretrain.support.errors import (
    FileError,
    ForetrainError,
    InputError,
    NotEnoughMemoryError,
    on_the_command_line,
)
from foretrain.support.user_warnings import warn_user

OPTIONS = {"eta": "--eta", "learner": "--learner", "c_b": "--c-b", "overwrite": "--anew", "time": "--time"}


@pytest.mark.parametrize(
    ("message", "python", "command"),
    [
        ("`eta` is -1: give more.", "eta is -1: give more.", "--eta is -1: give more."),
        (
            "leave `time=` out, or use `learner='bayes'`.",
            "leave time= out, or use learner='bayes'.",
            "leave --time out, or use --learner bayes.",
        ),
        ("set `C_b=0.5`.", "set C_b=0.5.", "set --c-b 0.5."),
        ("pass `overwrite=True`.", "pass overwrite=True.", "pass --anew."),
        ("`width` is 0, the time is up.", "width is 0, the time is up.", "width is 0, the time is up."),
        ("`call ntk()|run the command` again", "call ntk() again", "run the command again"),
    ],
)
def test_parameters_are_spelt_for_the_reader(message: str, python: str, command: str) -> None:
    assert str(InputError(message)) == python
    assert on_the_command_line(message, OPTIONS) == command


def test_an_error_carries_the_parameters_it_speaks_of() -> None:
    error = InputError("`eta` is 3: give less, or a `time=`.")
    assert error.parameter == "eta"
    assert error.parameters == ("eta", "time")
    assert InputError("nothing is named.").parameter is None


@pytest.mark.parametrize("kind", [ForetrainError, FileError, NotEnoughMemoryError])
def test_errors_travel_between_processes_with_their_marks(kind: type[ForetrainError]) -> None:
    error = pickle.loads(pickle.dumps(kind("`memory=` is too small: give more.")))
    assert str(error) == "memory= is too small: give more."
    assert error.parameter == "memory"


def fail(rate: Annotated[float, typer.Option("--learning-rate")] = 1.0) -> Answer:
    """Complain."""
    warn_user("`learning_rate` is large.")
    raise InputError(f"`learning_rate` is {rate:g}: give another, or change `lr=`.")


def test_every_command_speaks_of_its_own_options(capsys: pytest.CaptureFixture[str]) -> None:
    command = Command(fail, examples=("foretrain fail",), aliases={"lr": "--learning-rate"})
    assert frame.run("fail", command, []) == 2
    assert capsys.readouterr().err == (
        "foretrain: warning: --learning-rate is large.\n"
        "foretrain: --learning-rate is 1: give another, or change --learning-rate.\n"
    )
