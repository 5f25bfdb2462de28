"""``foretrain advise`` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.cli.advise import COMMAND
from foretrain.cli.frame import run


def ask(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    assert run("advise", COMMAND, [*arguments, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_the_document_has_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "relu", "--width", "256", "--depth", "4", "--n-out", "10")
    assert found["best_ratio"] == pytest.approx(0.016)
    assert (found["best_depth"], found["perturbative_depth"], found["marginal_depth"]) == (4, 6, 16)
    assert found["position"] == "inside"
    assert found["optimal_skip"] == 0
    assert len(found["layers"]) == 4


def test_a_depth_outside_ends_with_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "relu", "--width", "64", "--depth", "40", "--n-out", "10", code=1)
    assert found["position"] == "outside"
    assert found["optimal_skip"] > 0.9


@pytest.mark.slow
def test_people_get_a_verdict_a_table_and_code(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("advise", COMMAND, ["tanh", "--width", "128", "--depth", "20", "--n-out", "10"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Depth 20 at width 128")
    assert "r*           0.12 " in text
    assert "mlp = ft.MLP.critical('tanh', depth=20, width=128, n_out=10)" in text
    assert "truncated series" in text


@pytest.mark.slow
def test_data_give_a_stable_step_and_pictures_are_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    np.savez(tmp_path / "data.npz", x=np.random.default_rng(0).normal(size=(20, 3)), y=np.zeros(20))
    picture, folder = tmp_path / "a.png", tmp_path / "saved"
    options = ["--data", str(tmp_path / "data.npz"), "--samples", "8", "--loss", "MSE", "--n-out", "2"]
    places = ["--plot", str(picture), "--save", str(folder)]
    found = ask(capsys, "relu", "--width", "64", *options, *places)
    assert found["stable_step"]["inputs"] == 8
    assert found["stable_step"]["loss"] == "mse"
    whole = ask(capsys, "relu", "--width", "64", *options, "--loss", "squared-error")["stable_step"]
    assert whole["largest"] == pytest.approx(2 / whole["eigenvalue"])  # the default, half the SUM of squares
    assert whole == ask(capsys, "relu", "--width", "64", *options[:4], "--n-out", "2")["stable_step"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert ft.load(folder / "data.zarr")["size"].dims == ("ratio", "layer")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tahn", "--width", "9"), "did you mean 'tanh'?"),
        (("tanh",), "--width"),
        (("tanh", "--width", "-3"), "--width is -3"),
        (("tanh", "--width", "9", "--n-out", "0"), "--n-out is 0"),
        (("softplus", "--width", "9"), "no critical initialisation"),
        (("tanh", "--width", "9", "--samples", "0"), "'--samples'"),
        (("tanh", "--width", "9", "--loss", "crossentropy"), "did you mean 'cross_entropy'?"),
        (("tanh", "--width", "9", "--gamma", "-1.5"), "gamma"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("advise", COMMAND, list(arguments)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
