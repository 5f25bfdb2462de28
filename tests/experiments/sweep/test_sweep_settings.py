"""Experiments as targets of sweeps: their settings, the fields of their plans."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from swept import write_spec

from foretrain.experiments import registry
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Experiment, Result, Row, Scale
from foretrain.experiments.sweep import sweep
from foretrain.experiments.sweep.targets import Settings, of_experiment


class _Course(NamedTuple):
    steps: int
    rate: float


@dataclass(frozen=True)
class _Plan:
    width: int
    gains: tuple[float, ...]
    activations: tuple[str, ...]
    shape: tuple[int, int]  # both are needed, so that it is no list
    draws: dict[int, int]
    course: _Course


PLANS = {
    Scale.QUICK: _Plan(8, (0.5, 1), ("tanh",), (2, 3), {8: 10}, _Course(5, 1)),
    Scale.PAPER: _Plan(64, (0.5, 1.0, 2.0), ("tanh", "relu"), (2, 3), {8: 10}, _Course(50, 0.1)),
}


def made_up(plan: _Plan, seed: int, parts: Parts) -> Result:
    """Rows that tell what was asked for."""
    import xarray

    rows = (
        Row("width", 1.0, plan.width + 0.1 * seed, standard_error=0.5, agrees=plan.width < 10),
        Row("gain", "several", float(np.mean(plan.gains))),
        Row("steps", 1.0, plan.course.steps),
        Row("steps", 1.0, len(plan.activations)),
    )
    return Result("", rows, xarray.Dataset())


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = Experiment("made-up", "Made up", "nobody", f"{__name__}:made_up", resumable=True)
    monkeypatch.setattr(registry, "_BY_NAME", {"made-up": entry})


def swept(folder: Path, text: str) -> Any:
    return sweep(write_spec(folder, f'experiment = "made-up"\n{text}'), workers=1).data


def test_settings_are_the_fields_of_the_plans(known: None) -> None:
    found = {item.name: (item.kind, item.help) for item in of_experiment("made-up").parameters}
    assert list(found) == ["scale", "seed", "width", "gains", "activations", "course_steps", "course_rate"]
    assert found["width"] == (int, "else 8 (quick), 64 (paper)")
    assert found["gains"] == (float, "one value, else 0.5 1 (quick), 0.5 1.0 2.0 (paper)")
    assert found["activations"][0] is str
    assert found["course_rate"] == (float, "else 1 (quick), 0.1 (paper)")


def test_experiments_are_swept_over_their_settings(known: None, tmp_path: Path) -> None:
    data = swept(tmp_path, "[axes]\nwidth = [8, 16]\nseed = [0, 5]")
    assert data["agrees"].values.tolist() == [[1, 1], [0, 0]]
    assert data["quantity"].values.tolist() == ["width", "gain", "steps", "steps (2)"]
    assert data["here"].sel(quantity="width").values.tolist() == [[8, 8.5], [16, 16.5]]
    assert np.isnan(data["expected"].sel(quantity="gain")).all()
    assert data.attrs["experiment"] == "made-up"


def test_lists_take_one_value_and_parts_of_plans_are_reached(known: None, tmp_path: Path) -> None:
    data = swept(tmp_path, "[axes]\ngains = [0.5, 3]\ncourse_steps = [7]\nscale = ['quick', 'paper']")
    assert data["here"].sel(quantity="gain").values.ravel().tolist() == [0.5, 0.5, 3.0, 3.0]
    assert (data["here"].sel(quantity="steps") == 7).all()
    assert data["here"].sel(quantity="steps (2)").values.ravel().tolist() == [1, 2, 1, 2]


def test_the_experiment_itself_stays_as_it_is(known: None) -> None:
    changed = Settings(PLANS).plan(Scale.QUICK, {"width": 3, "course_steps": 7})
    assert (changed.width, changed.course) == (3, _Course(7, 1))
    assert registry.get("made-up").run().table[0].here == 8


def test_a_wrong_scale_is_the_error_of_its_points(known: None, tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 'experiment = "made-up"\n[axes]\nscale = ["fast"]\nwidth = [8]')
    found = sweep(spec, workers=1)
    assert ["'quick' or 'paper'" in error for error in found.errors.values()] == [True]


def test_an_error_inside_an_experiment_is_told_with_its_line(tmp_path: Path) -> None:
    """Of the experiment, not of the library in which it came up."""
    found = sweep(write_spec(tmp_path, 'experiment = "critical-lines"\n[axes]\npoints = [-1]'), workers=1)
    (told,) = found.errors.values()
    assert told.startswith("ValueError: Number of samples, -1, must be non-negative")
    assert re.search(r" \(criticality\.py, line \d+\)$", told)


def test_real_experiments_offer_what_the_sources_vary() -> None:
    """That every experiment can be asked, and what the sources vary is there."""
    offered = {name: {item.name for item in of_experiment(name).parameters} for name in registry.names()}
    assert {"width", "epsilon"} <= offered["saddle-modes"]
    assert {"gains", "units"} <= offered["fixed-point-initialisation"]
    assert {"activations", "widths"} <= offered["metric-fluctuations"]
    assert sum(len(names) > 2 for names in offered.values()) > 25


def test_a_real_experiment_at_another_setting(tmp_path: Path) -> None:
    fixed = "[fixed]\ndraws = 2000\nwidths = 3"
    text = f'experiment = "metric-fluctuations"\n{fixed}\n[axes]\nactivations = ["relu", "sin"]'
    found = sweep(write_spec(tmp_path, text), workers=1)
    assert found.errors == {}
    assert found.data["here"].notnull().any("quantity").all()
