from __future__ import annotations

import json
from pathlib import Path

import pytest

import foretrain as ft
from foretrain.cli.main import main

SPEC = """\
observable = "escape_time"
title = "Plateaus"

[fixed]
activation = "tanh"
method = "leading"

[axes]
depth = [3, 4]
epsilon = [0.01, 0.03, 0.1]
"""
FAILING = """\
observable = "escape_time"
[fixed]
activation = "tanh"
method = "leading"
epsilon = 0.1
[axes]
depth = [1, 3]
"""


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "plateaus.toml"
    path.write_text(SPEC)
    return path


def test_people_see_a_table_and_the_store(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(spec), "--workers", "1"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("Plateaus: 6 of 6 points done, 0 failed, 6 computed now.\n")
    lines = text.splitlines()
    assert lines[2].split() == ["depth", "epsilon", "escape_time"]
    assert lines[-1] == f"Store: {spec.with_suffix('.sweep')}, for foretrain.load"
    assert main(["sweep", str(spec), "--workers", "1"]) == 0
    assert "0 computed now" in capsys.readouterr().out


def test_machines_see_the_same(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(spec), "--json", "--workers", "1", "-o", str(spec.parent / "here")]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["axes"] == {"depth": [3, 4], "epsilon": [0.01, 0.03, 0.1]}
    assert document["points"] == document["done"] == document["computed"] == 6
    values = document["values"]["escape_time"]
    assert values[1][2] == ft.saddle.escape_time("tanh", [0.1] * 4, width=64, threshold=0.3)
    assert ft.load(spec.parent / "here")["escape_time"].values.tolist() == values


def test_answers_are_saved_and_drawn(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer, picture = spec.parent / "answer", spec.parent / "p.svg"
    assert main(["sweep", str(spec), "--workers", "1", "--save", str(answer), "--plot", str(picture)]) == 0
    assert ft.load(answer).identical(ft.load(spec.with_suffix(".sweep")))
    assert picture.read_text().count("<!-- ") > 5  # texts of axes and legend


def test_failed_points_end_with_one(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(FAILING)
    assert main(["sweep", str(spec), "--workers", "1"]) == 1
    text = capsys.readouterr().out
    assert "1 of 2 points done, 1 failed" in text
    assert "Failed at depth = 1: depth is 1" in text
    assert "--retry-failed" in text
    assert main(["sweep", str(spec), "--workers", "1", "--retry-failed"]) == 1
    assert "1 computed now" in capsys.readouterr().out


@pytest.mark.slow
def test_a_dry_run_says_what_is_left(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(spec), "--dry-run", "--workers", "2"]) == 0
    text = capsys.readouterr().out
    assert "6 points: 0 done, 0 failed, 6 to compute." in text
    assert "from 3 points" in text
    assert "for each of 2 workers" in text
    assert [path.name for path in spec.parent.iterdir()] == ["plateaus.toml"]
    assert main(["sweep", str(spec), "--dry-run", "--workers", "2", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["left"] == 6


def test_the_list_names_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--list"]) == 0
    text = capsys.readouterr().out
    assert 'observable = "escape_time": How long' in text
    assert "epsilon     a number        required  initial scale of the small layers" in text
    assert main(["sweep", "--list", "--json"]) == 0
    names = [entry["name"] for entry in json.loads(capsys.readouterr().out)["observables"]]
    assert {"flow", "phase", "compare", "global_ntk"} <= set(names)


def test_the_list_shows_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "saddle-modes", "--list"]) == 0
    text = capsys.readouterr().out
    assert 'experiment = "saddle-modes"' in text
    assert "else 0.05 (quick), 0.05 (paper)" in text
    assert main(["sweep", "escape_time", "--list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"][0]["name"] == "activation"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "give one of these: the file of a sweep, --example, or --list"),
        (["--example", "--list"], "give one of these"),
        (["SPEC", "--example"], "give one of these"),
        (
            ["saddle-mode", "--list"],
            "unknown observable or experiment 'saddle-mode': did you mean 'saddle-modes'",
        ),
        (
            ["SPEC", "--workers", "1", "--quantity", "escape"],
            "unknown --quantity 'escape': did you mean 'escape_time'",
        ),
        (["none.toml"], "none.toml cannot be read"),
        (["SPEC", "--engine", "slurm"], "--engine 'slurm' is not known"),
    ],
)
def test_what_cannot_be_used_is_said(
    arguments: list[str], words: str, spec: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sweep", *(str(spec) if word == "SPEC" else word for word in arguments)]) == 2
    assert words in capsys.readouterr().err


def test_mistakes_in_the_file_name_the_line(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec.write_text(SPEC.replace("depth", "deph"))
    assert main(["sweep", str(spec)]) == 2
    expected = f"foretrain: {spec}, line 9: unknown parameter 'deph': did you mean 'depth'?\n"
    assert capsys.readouterr().err == expected


def test_grown_axes_are_offered_to_be_computed(spec: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(spec), "--workers", "1"]) == 0
    spec.write_text(SPEC.replace("[3, 4]", "[3, 4, 5]"))
    assert main(["sweep", str(spec), "--workers", "1"]) == 2
    assert "--extend" in capsys.readouterr().err
    assert main(["sweep", str(spec), "--workers", "1", "--extend"]) == 0
    assert "9 of 9 points done, 0 failed, 3 computed now" in capsys.readouterr().out
