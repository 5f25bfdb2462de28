from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.cli.compare import COMMAND
from foretrain.cli.frame import run
from foretrain.compare.initial import comparison

QUICK = ("--depth", "3", "--width", "24", "--draws", "1000", "--method", "conditional")


def call(*arguments: str) -> int:
    return run("compare", COMMAND, arguments)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert call(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_document_holds_every_entry(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "tanh", "relu", *QUICK)
    assert found["agrees"] is True
    assert [part["activation"] for part in found["comparisons"]] == ["tanh", "relu"]
    tanh, relu = found["comparisons"]
    assert tanh["C_W"] == [1, 1, 1]
    assert relu["C_W"] == [2, 2, 2]
    assert len(tanh["entries"]) == 2 * 3 + 2 * 6 + 3
    theory = ft.flow(ft.MLP("tanh", depth=3, width=24), [[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]], ["V"])["V"]
    (row,) = [row for row in tanh["entries"] if (row["layer"], row["entry"]) == (3, "V_(00)(01)")]
    assert row["theory"] == pytest.approx(float(theory.sel(layer=3)[0, 0, 0, 1]))
    assert {"limit", "standard_error", "z", "own_width"} <= set(row)
    exact = [row for row in relu["entries"] if row["z"] is None]
    assert {row["entry"] for row in exact} == {"G1_00", "G1_11"}


def test_people_get_tables_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("tanh", "sin", *QUICK) == 0
    text = capsys.readouterr().out
    for part in (
        "measured limit",
        "V_(01)(01)",
        "theory with 1/n",
        "largest |z|",
        "Theory agrees with networks",
    ):
        assert part in text


@pytest.mark.slow
def test_same_seed_same_numbers_other_seed_others(capsys: pytest.CaptureFixture[str]) -> None:
    limits = [
        ask(capsys, "tanh", *QUICK, "--seed", seed)["comparisons"][0]["entries"][0]["limit"] for seed in "001"
    ]
    assert limits[0] == limits[1] != limits[2]


@pytest.mark.slow
def test_a_disagreement_ends_with_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = comparison.theory

    def wrong(*arguments: Any) -> dict[str, Any]:
        found = right(*arguments)
        return {**found, "V": 1.5 * found["V"]} if "V" in found else found

    monkeypatch.setattr(comparison, "theory", wrong)
    assert call("tanh", *QUICK, "--draws", "4000") == 1
    assert "does NOT agree" in capsys.readouterr().out


@pytest.mark.slow
def test_variances_skip_connections_and_observables(capsys: pytest.CaptureFixture[str]) -> None:
    given = ask(capsys, "tanh", *QUICK, "--c-b", "0.1", "--c-w", "1.3", "--observables", "K")
    assert given["comparisons"][0]["C_b"] == [0.1, 0.1, 0.1]
    half = ask(capsys, "tanh", *QUICK, "--c-b", "0.1", "--observables", "K")
    assert half["comparisons"][0]["C_W"] == [1, 1, 1]
    residual = ask(capsys, "tanh", *QUICK, "--depth", "4", "--gamma", "0.5")
    assert residual["comparisons"][0]["gamma"] == [0, 0.5, 0.5, 0]
    names = {row["entry"].split("_")[0] for row in residual["comparisons"][0]["entries"]}
    assert names == {"K", "V", "three"}


def test_inputs_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "data.npz", x=np.array([[[1.0, 2.0]], [[0.5, -1.0]]]), y=np.zeros(2))
    found = ask(capsys, "relu", *QUICK, "--data", str(tmp_path / "data.npz"), "--observables", "K")
    (row,) = [
        row for row in found["comparisons"][0]["entries"] if row["entry"] == "K_00" and row["layer"] == 3
    ]
    assert row["theory"] == pytest.approx(5.0)


def test_unequal_widths(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "relu", *QUICK, "--width", "20,30", "--observables", "K", "--scales", "1,2,3")
    assert found["comparisons"][0]["widths"] == [20, 40, 60]


@pytest.mark.slow
def test_a_function_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "act.py").write_text("import numpy as np\ndef mine(z):\n    return np.tanh(z)\n")
    options = (*QUICK, "--c-b", "0", "--c-w", "1", "--observables", "K", "--inputs", "1")
    found = ask(capsys, f"{tmp_path / 'act.py'}:mine", *options)
    assert found["comparisons"][0]["activation"] == "mine"


@pytest.mark.slow
def test_saved_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        call(
            "tanh",
            "relu",
            *QUICK,
            "--observables",
            "K,G1",
            "--save",
            str(tmp_path / "out"),
            "--plot",
            str(tmp_path / "c.png"),
        )
        == 0
    )
    data = ft.load(tmp_path / "out" / "data.zarr")
    assert data["activation"].values.tolist() == ["tanh", "relu"]
    assert data["limit"].dims == ("activation", "entry")
    assert "agrees" in str(data["verdict"].values[0])
    for picture in (tmp_path / "c.png", tmp_path / "out" / "figure.png"):
        assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tanhh",), "did you mean 'tanh'"),
        (("tanh", "--draws", "3"), "--draws is 3"),
        (("tanh", "--scales", "1,2"), "at least 3 different"),
        (("tanh", "--scales", "one"), "numbers separated by commas"),
        (("tanh", "--width", "20,30"), "--width lists 2 layers"),
        (("tanh", "--width", "20.5"), "--width is '20.5'"),
        (("tanh", "--inputs", "1", "--data", "x.npz"), "leave one out"),
        (("quadratic",), "critical"),
        (("tanh", "--method", "magic"), "unknown sampling --method"),
        (("tanh", "--depth", "2", "--observables", "H1,A"), "H1 vanishes in layers 1 and 2"),
        (("tanh", "--observables", "K,,V"), "names separated by commas"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error


def test_a_summary_without_fluctuations(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (
        "--c-w",
        "0",
        "--c-b",
        "1",
        "--depth",
        "3",
        "--width",
        "16",
        "--observables",
        "K",
        "--draws",
        "500",
    )
    assert call("tanh", *arguments) == 0
    assert "no entry fluctuates" in capsys.readouterr().out
