from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.cli.main import main


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["activation", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_all_names_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert {"tanh", "relu", "gelu"} <= set(ask(capsys)["activations"])


def test_moments_are_the_reference_values(capsys: pytest.CaptureFixture[str]) -> None:
    (row,) = ask(capsys, "tanh", "--variance", "1")["moments"]
    assert row == {
        "variance": 1.0,
        "mean": 0.0,
        "square": pytest.approx(0.3942944904, abs=1e-10),
        "fourth": pytest.approx(0.2529918832, abs=1e-10),
        "derivative_square": pytest.approx(0.4644029024, abs=1e-10),
        "radial_derivative": pytest.approx(0.1817976881, abs=1e-10),
    }


def test_facts_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    relu = ask(capsys, "leaky_relu", "--set", "slope=0.2")
    assert relu["parameters"] == {"slope": 0.2}
    assert relu["slopes"] == [0.2, 1.0]
    assert relu["taylor"] is None
    assert relu["kinks"][0]["location"] == 0.0
    tanh = ask(capsys, "tanh")
    assert tanh["taylor"][:4] == [0, 1, 0, -2]
    assert tanh["parity"] == "odd"
    assert ask(capsys, "perceptron")["moments"][0]["derivative_square"] == "Infinity"


def test_people_get_the_same_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["activation", "tanh"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Activation tanh\n")
    assert "0.394294" in text


def test_a_function_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "act.py"
    file.write_text("import numpy as np\ndef mine(z):\n    return np.tanh(z)\n")
    (row,) = ask(capsys, f"{file}:mine", "--variance", "1")["moments"]
    assert row["square"] == pytest.approx(0.3942944904, abs=1e-9)


@pytest.mark.slow
def test_pictures_and_data_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, folder = tmp_path / "p.pdf", tmp_path / "folder"
    assert main(["activation", "gelu", "--plot", str(picture), "--save", str(folder)]) == 0
    assert picture.read_bytes().startswith(b"%PDF")
    curves = ft.load(folder / "data.zarr")["derivative"]
    np.testing.assert_allclose(curves.sel(order=1), ft.activation("gelu").derivative(curves["z"].values, 1))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tahn",), "unknown activation 'tahn': did you mean 'tanh'?"),
        (("leaky_relu", "--set", "slope"), "cannot read 'slope'"),
        (("leaky_relu", "--set", "slpe=1"), "did you mean 'slope'?"),
        (("act.py",), "is not of the form file.py:name"),
        (("absent.py:f",), "absent.py is not a file"),
        (("absent.py:f", "--set", "a=1"), "--set is for activations with a name"),
        (("tanh", "--variance", "-1"), "--variance is -1: give zero or a positive number"),
        (("--variance", "1"), "name it"),
        (("tanh", "--variance", "wide"), "see 'foretrain activation --help'"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["activation", *arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
