from __future__ import annotations

import warnings
from typing import Annotated

import pytest
import typer

from foretrain.cli import frame
from foretrain.cli.frame import Command
from foretrain.cli.wording import in_options
from foretrain.support.answers import Answer
from foretrain.support.errors import InputError

OPTIONS = {
    "eta": "--eta",
    "time": "--time",
    "noise": "--noise",
    "draws": "--draws",
    "learner": "--learner",
    "loss": "--loss",
    "label_smoothing": "--label-smoothing",
    "c_b": "--c-b",
    "c_w": "--c-w",
    "workers": "--workers",
    "overwrite": "--overwrite",
    "inputs": "--inputs",
    "samples": "--samples",
}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("use learner='bayes', or stop with time=.", "use --learner bayes, or stop with --time."),
        ('use learner="bayes".', "use --learner bayes."),
        ("set C_b=0.55, C_W=1e-3 yourself.", "set --c-b 0.55, --c-w 1e-3 yourself."),
        ("pass workers=1.", "pass --workers 1."),
        ("pass overwrite=True to replace it.", "pass --overwrite to replace it."),
        ("eta is -1.0: give a positive number.", "--eta is -1.0: give a positive number."),
        ("draws is 'many': give a number.", "--draws is 'many': give a number."),
        ("eta is nan: give a number.", "--eta is nan: give a number."),
        ("C_b contains -1: give zero.", "--c-b contains -1: give zero."),
        ("leave loss and label_smoothing out.", "leave --loss and --label-smoothing out."),
        ("leave eta, time and noise out, or not.", "leave --eta, --time and --noise out, or not."),
        ("leave out draws, or eta.", "leave out --draws, or eta."),
        ("leave time out, or draws.", "leave --time out, or --draws."),
        ("give a smaller eta.", "give a smaller --eta."),
        ("leave C_b out.", "leave --c-b out."),
        ("samples is 0: give more with inputs=.", "--samples is 0: give more with --inputs."),
        ("label_smoothing is for classes.", "--label-smoothing is for classes."),
    ],
)
def test_arguments_become_options(said: str, told: str) -> None:
    assert in_options(said, OPTIONS) == told
    assert in_options(told, OPTIONS) == told


@pytest.mark.parametrize(
    "said",
    [
        "the loss is 3 at the start: check the data.",
        "loss is not finite: check the data.",
        "noise on targets goes with squares: leave one of them out.",
        "/data/eta=1/noise=/k.zarr is no store.",
        "beta=3 and theta= are others.",
        "runs-eta=1 is a file.",
        "it takes time, noise and draws.",
        "leave out inputs that are zero, or give smaller inputs.",
        "leave out samples without a target.",
    ],
)
def test_what_is_no_argument_stays(said: str) -> None:
    assert in_options(said, OPTIONS) == said


def test_phrases_of_a_command_come_first() -> None:
    phrases = (("pass overwrite=True", "add --anew"), ("give a time", "give --time"))
    said = "eta is 5: give a time, or pass overwrite=True."
    assert in_options(said, OPTIONS, phrases) == "--eta is 5: give --time, or add --anew."
    assert in_options(said, {}, phrases) == "eta is 5: give --time, or add --anew."


def fail(rate: Annotated[float, typer.Option("--learning-rate")] = 1.0) -> Answer:
    """Complain."""
    warnings.warn("learning_rate= is large", UserWarning, stacklevel=1)
    raise InputError("learning_rate is 1: give another rate, or leave learning_rate out.")


def test_errors_and_warnings_of_every_command_speak_of_its_options(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert frame.run("fail", Command(fail, examples=("foretrain fail",)), []) == 2
    assert capsys.readouterr().err == (
        "foretrain: warning: --learning-rate is large\n"
        "foretrain: --learning-rate is 1: give another rate, or leave --learning-rate out.\n"
    )
