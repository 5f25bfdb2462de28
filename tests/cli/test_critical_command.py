from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import foretrain as ft
from foretrain.cli.critical import COMMAND
from foretrain.cli.frame import run

FEW = ("--points", "6")


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run("critical", COMMAND, [*arguments, *FEW, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_document_has_the_facts(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "gelu")
    assert found["universality_class"] == "half-stable"
    assert found["point"]["C_W"] == pytest.approx(1.9830582574, abs=1e-10)
    assert found["point"]["exponents"]["p_parallel"] == 2
    assert found["others"][0]["C_W"] == 4
    assert found["layers"] is None


def test_layers_of_a_residual_network(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "tanh", "--gamma", "0.6", "--depth", "4", "--width", "100", "--tuned")
    relative = 1 + 2 / 3 * 1.36 / 100
    expected = [1, 0.64 * relative, 0.64 * relative, relative]
    assert [layer["C_W"] for layer in found["layers"]] == pytest.approx(expected)
    assert [layer["lambda_b"] for layer in found["layers"]] == pytest.approx([1, 1 / 2, 1 / 3, 1 / 4])


def test_people_get_a_table_and_a_line_of_python(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("critical", COMMAND, ["leaky_relu", "--set", "slope=0.5", *FEW]) == 0
    text = capsys.readouterr().out
    assert "C_W              1.6" in text
    assert "ft.MLP.critical('leaky_relu(slope=0.5)', depth=10, width=128)" in text


def test_no_criticality_is_an_answer_with_exit_code_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("critical", COMMAND, ["sigmoid", *FEW]) == 1
    assert (
        "none, since the susceptibilities agree only at K = 0, which needs C_b = -4 < 0"
        in capsys.readouterr().out
    )


def test_a_function_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "act.py"
    file.write_text("import numpy as np\ndef mine(z):\n    return 2 * np.tanh(z)\n")
    assert ask(capsys, f"{file}:mine")["point"]["C_W"] == pytest.approx(0.25)
    assert run("critical", COMMAND, [f"{file}:mine", *FEW]) == 0
    assert "ft.MLP.critical(mine, depth=10, width=128)" in capsys.readouterr().out


@pytest.mark.slow
def test_pictures_and_data_are_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, folder = tmp_path / "p.pdf", tmp_path / "folder"
    ranges = ["--c-b-range", "0", "0.4", "--c-w-range", "0.5", "2"]
    assert (
        run("critical", COMMAND, ["erf", *FEW, *ranges, "--plot", str(picture), "--save", str(folder)]) == 0
    )
    assert picture.read_bytes().startswith(b"%PDF")
    diagram = ft.load(folder / "data.zarr")
    assert diagram["phase"].shape == (6, 6)
    assert (float(diagram["C_b"].max()), float(diagram["C_W"].min())) == (0.4, 0.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tahn",), "did you mean 'tanh'?"),
        (("tanh", "--gamma", "1"), "no C_W > 0 is critical"),
        (("tanh", "--tuned"), "add --depth"),
        (("gelu", "--depth", "3", "--tuned"), "not known for gelu"),
        (("tanh", "--c-w-range", "3", "1"), "--c-w-range runs from 3 to 1"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("critical", COMMAND, [*arguments, *FEW]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert message in err
    assert err.count("\n") == 1
