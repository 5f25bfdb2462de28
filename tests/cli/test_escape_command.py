from __future__ import annotations

import json
from pathlib import Path

import pytest

import foretrain as ft
from foretrain.cli.main import main


def test_the_table_holds_the_reference_values(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["escape", "tanh", "--depth", "3,4", "--epsilon", "0.1", "--threshold", "0.3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    times = [row["times"] for row in found["rows"]]
    assert [t["leading"]["time"] for t in times] == pytest.approx([88.0516, 587.011], rel=1e-5)
    assert [t["reduced"]["time"] for t in times] == pytest.approx([101.465, 616.103], rel=1e-5)
    assert (found["class"], found["q"], found["note"]) == ("B", 3, None)
    assert [row["K"] for row in found["rows"]] == pytest.approx(
        [ft.saddle.coupling("tanh", L) for L in (3, 4)]
    )
    assert "learning rate" in found["time_unit"]


def test_steps_are_times_over_the_learning_rate(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["escape", "tanh", "--scales", "0.03,0.05,0.07,0.09", "--lr", "0.1"]
    assert main([*arguments, "--json"]) == 0
    times = json.loads(capsys.readouterr().out)["times"]
    assert times["reduced"]["time"] == pytest.approx(1887.7, abs=0.1)
    assert times["reduced"]["steps"] == pytest.approx(18877, abs=1)
    assert main(arguments) == 0
    assert "steps are at learning rate 0.1" in capsys.readouterr().out


@pytest.mark.slow
def test_bottlenecks_and_the_saved_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["escape", "gelu", "--depth", "3,4", "--bottleneck", "2,4", "--epsilon", "0.05,0.1"]
    options = ["--methods", "leading", "--save", str(tmp_path / "out"), "--plot", str(tmp_path / "p.png")]
    assert main([*arguments, *options]) == 0
    text = capsys.readouterr().out
    assert text.count("\n     3      2") == 2  # three layers with four small ones are left out
    assert text.count("\n     4      4") == 2
    assert (tmp_path / "p.png").stat().st_size > 1000
    saved = ft.load(tmp_path / "out")
    assert dict(saved.sizes) == {"epsilon": 2, "depth": 2, "bottleneck": 2, "formula": 1}


def test_two_zero_scales_never_escape(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["escape", "tanh", "--scales", "0,0,0.1,0.1"]) == 0
    assert capsys.readouterr().out.count("inf") == 3


def test_outside_the_classes_there_is_no_correction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "act.py").write_text("def bent(z):\n    return z + 0.1 * z**4\n")
    arguments = ["escape", f"{tmp_path / 'act.py'}:bent", "--epsilon", "0.1", "--depth", "3"]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    assert "outside" in text
    assert "first correction" not in text
    assert main([*arguments, "--methods", "corrected"]) == 2


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--depth", "x"], "whole numbers"),
        (["--epsilon", "small"], "give numbers"),
        (["--scales", "0.1,0.1", "--depth", "3"], "leave --depth"),
        (["--methods", "guess"], "choose from leading, corrected, reduced"),
        (["--lr", "0"], "positive learning rate"),
        (["--epsilon", "-0.1"], "epsilon"),
        (["--depth", "1"], "at least 2"),
        (["--threshold", "-1"], "threshold"),
        (["--bottleneck", "9"], "more layers than any --depth"),
        (["--others", "2"], "add --bottleneck"),
        (["--epsilon", ""], "--epsilon is ''"),
        (["--scales", "0.1,-0.1"], "give none below 0"),
    ],
)
def test_bad_input_is_answered_in_one_sentence(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["escape", "tanh", *arguments]) == 2
    error = capsys.readouterr().err
    assert told in error
    assert error.count("\n") == 1


def test_a_teacher_that_pushes_away_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "act.py").write_text("def cubic(z):\n    return z - z**3\n")
    assert main(["escape", f"{tmp_path / 'act.py'}:cubic"]) == 2
    assert "K" in capsys.readouterr().err


def test_class_d_says_that_its_columns_are_for_two_networks(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["escape", "softplus", "--depth", "3", "--epsilon", "0.1"]
    assert main(arguments) == 0
    assert "Note: softplus is in class D" in capsys.readouterr().out
    assert main([*arguments, "--json"]) == 0
    assert "centred" in json.loads(capsys.readouterr().out)["note"]


def test_an_infinite_time_is_valid_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["escape", "tanh", "--scales", "0,0,0.1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert found["times"]["reduced"]["time"] == "Infinity"
    assert found["K"] == pytest.approx(ft.saddle.coupling("tanh", 3))
