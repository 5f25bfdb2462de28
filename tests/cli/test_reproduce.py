from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
import xarray as xr

import foretrain as ft
from foretrain.cli.main import main
from foretrain.experiments import registry
from foretrain.experiments.registry import Experiment, Result, Row, Scale
from foretrain.support.answers import Figure
from foretrain.support.errors import NotEnoughMemoryError

PLANS = {scale: scale for scale in Scale}


def made_up(scale: Scale, seed: int) -> Result:
    if seed == 9:
        raise NotEnoughMemoryError("this needs 1 TB: use --seed 1.")
    rows: tuple[Row, ...] = (
        Row("two-point", 1.0, 1.02, standard_error=0.01, agrees=seed != 1),
        Row("count", 91, 91, agrees=True),
        Row("escape time", math.inf, math.inf),
    )
    if seed == 2:
        rows = (*rows, Row("slope", -2.0, -1.0, agrees=False, note="Misprinted.", disputed=True))
    verdict = "It agrees." if seed == 0 else "It does not."
    return Result(verdict, rows, xr.Dataset({"a": ("n", [1.0])}), lambda _: Figure())


@pytest.fixture(autouse=True)
def only_made_up(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Experiment("made-up", "Made up", "nobody, figure 0", f"{__name__}:made_up")
    monkeypatch.setattr(registry, "_BY_NAME", {"made-up": entry})


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce"]) == 0
    last = "made-up  Made up        nobody, figure 0  10 s"
    assert capsys.readouterr().out.splitlines()[-1] == last
    assert main(["reproduce", "--json"]) == 0
    facts = {"name": "made-up", "title": "Made up", "source": "nobody, figure 0"}
    assert json.loads(capsys.readouterr().out) == {
        "experiments": [{**facts, "seconds": 10.0, "resumable": False}]
    }


def test_options_without_an_experiment_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "--paper-scale", "--workers", "3"]) == 2
    assert "--paper-scale and --workers" in capsys.readouterr().err
    assert main(["reproduce", "made-up", "--keep", "folder"]) == 2
    assert "--keep" in capsys.readouterr().err
    assert not Path("folder").exists()


def test_a_claim_known_not_to_hold_is_marked_as_such(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "made-up", "--seed", "2"]) == 1
    text = capsys.readouterr().out
    assert re.search(r"^slope +-2 +-1 +no, known +Misprinted\.$", text, re.M)
    assert main(["reproduce", "made-up", "--seed", "2", "--json"]) == 1
    row = json.loads(capsys.readouterr().out)["rows"][-1]
    assert (row["agrees"], row["disputed"]) == (False, True)


@pytest.mark.parametrize(("option", "file"), [("--plot", "p.png"), ("--save", "folder")])
def test_the_list_has_nothing_to_draw_or_save(
    option: str, file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", option, str(tmp_path / file)]) == 2
    assert f"leave out {option}" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_people_see_source_table_and_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "made-up"]) == 0
    text = capsys.readouterr().out
    assert "nobody, figure 0" in text
    assert "two-point           1  1.02            0.01  2  yes" in text
    assert "escape time       inf   inf" in text
    assert text.endswith("It agrees.\n")


def test_machines_see_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "made-up", "--json", "--paper-scale"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["scale"] == "paper"
    assert document["agrees"] is True
    assert document["rows"][0] == {
        "quantity": "two-point",
        "expected": 1.0,
        "here": 1.02,
        "standard_error": 0.01,
        "z": pytest.approx(2.0),
        "agrees": True,
        "note": "",
        "disputed": False,
    }
    assert document["rows"][2]["expected"] == "Infinity"


def test_a_disagreement_ends_with_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "made-up", "--seed", "1"]) == 1
    assert capsys.readouterr().out.endswith("It does not.\n")


def test_data_are_saved_with_their_origin(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        main(["reproduce", "made-up", "--save", str(tmp_path / "r"), "--plot", str(tmp_path / "p.svg")]) == 0
    )
    data = ft.load(tmp_path / "r" / "data.zarr")
    assert data.attrs["source"] == "nobody, figure 0"
    assert data.attrs["scale"] == "quick"
    assert data.attrs["seed"] == 0
    assert (tmp_path / "p.svg").exists()


def test_errors_of_an_experiment_are_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "made-up", "--seed", "9"]) == 2
    assert capsys.readouterr().err == "foretrain: this needs 1 TB: use --seed 1.\n"
    assert main(["reproduce", "made-down"]) == 2
    assert "did you mean 'made-up'?" in capsys.readouterr().err
