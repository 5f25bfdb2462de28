"""Running sweeps: labelled data, seeds, interruptions, failures, prices."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from swept import write_drawn, write_fragile, write_spec, written

import foretrain as ft
from foretrain.experiments.sweep import price, read, sweep
from foretrain.experiments.sweep.journal import LOG
from foretrain.experiments.sweep.spec import points, read_spec


def test_data_have_the_axes_of_the_sweep(tmp_path: Path) -> None:
    found = sweep(write_drawn(tmp_path, 3), workers=1)
    data = ft.load(tmp_path / "mine.sweep")
    assert data.identical(found.data)
    assert data["value"].dims == ("a", "b")
    assert data["a"].values.tolist() == [0, 1, 2]
    assert data["side"].sel(a=1).values.tolist() == ["left"] * 4 + ["right"] * 6
    assert (data["status"] == "done").all()
    assert "error" not in data
    # Answers of different lengths share one axis with all labels.
    assert data["curve"].dims == ("a", "b", "step")
    assert data["step"].values.tolist() == [0, 2, 4]
    assert data["curve"].notnull().sum("step").sel(b=0.1).values.tolist() == [1, 2, 3]


def test_numbers_are_those_of_the_function(tmp_path: Path) -> None:
    found = sweep(write_drawn(tmp_path, 2), workers=1)
    spec = read_spec(tmp_path / "mine.toml")
    for point in points(spec):
        own = found.data.sel(point.coordinates)
        answer = spec.target.function(**point.arguments)
        assert float(own["value"]) == answer["value"]
        np.testing.assert_array_equal(own["curve"].dropna("step"), answer["curve"])


def test_seeds_depend_on_parameters_alone(tmp_path: Path) -> None:
    """Not on the order of axes, other values, or whether a value is fixed."""
    whole = {point.key: point for point in points(read_spec(write_drawn(tmp_path, 4)))}
    seeds = {point.arguments["seed"] for point in whole.values()}
    assert len(seeds) == len(whole) == 40
    turned = 'observable = "mine.py:drawn"\nseed = 3\n[fixed]\nb = 0.1\n[axes]\na = [3, 1]'
    few = list(points(read_spec(write_spec(tmp_path, turned))))
    assert [whole[point.key].arguments == point.arguments for point in few] == [True, True]
    other = list(points(read_spec(write_spec(tmp_path, turned.replace("seed = 3", "seed = 4")))))
    assert not {point.arguments["seed"] for point in other} & seeds


def test_a_seed_on_an_axis_is_taken_as_it_is(tmp_path: Path) -> None:
    write_drawn(tmp_path)
    spec = write_spec(tmp_path, 'observable = "mine.py:drawn"\n[axes]\na = [1, 2]\nseed = [7, 8]')
    data = sweep(spec, workers=1).data
    for a in (1, 2):
        for seed in (7, 8):
            drawn = np.random.default_rng(seed).normal(size=a + 2)  # the curve, then the value
            assert float(data["value"].sel(a=a, seed=seed)) == a + drawn[-1]


def test_repeats_are_an_axis(tmp_path: Path) -> None:
    data = sweep(write_drawn(tmp_path, 2, "repeats = 4"), workers=1).data
    assert data["value"].dims == ("a", "b", "repeat")
    assert len(np.unique(data["value"])) == 80


def test_an_interrupted_sweep_goes_on(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path, "[0, 1, 3, 4]")
    whole = sweep(spec, workers=1)
    log = tmp_path / "mine.sweep" / LOG
    bytes_before = log.read_bytes()
    assert sweep(spec, workers=1).computed == 0
    assert log.read_bytes() == bytes_before
    log.write_bytes(bytes_before[:-3])  # killed while it wrote the last point
    assert read(spec)["status"].values.tolist() == ["done"] * 3 + ["missing"]
    assert np.isnan(read(spec)["value"].values[-1])
    again = sweep(spec, workers=1)
    assert again.computed == 1
    assert again.data.identical(whole.data)
    assert set(written(tmp_path / "mine.sweep").values()) == {1}


def test_damage_in_the_middle_is_computed_anew(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path, "[0, 1, 3, 4]")
    whole = sweep(spec, workers=1)
    log = tmp_path / "mine.sweep" / LOG
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    with pytest.warns(UserWarning, match="bytes between its points") as told:
        again = sweep(spec, workers=1)
    assert [item.filename for item in told] == [__file__]
    assert again.computed == 1
    assert again.data.identical(whole.data)


def test_failed_points_are_kept_and_retried_on_request(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path)
    found = sweep(spec, workers=1)
    assert found.errors == {
        "a = 2": "ValueError: 2 is too much (mine.py, line 6)",
        "a = 5": "ValueError: 5 is too much (mine.py, line 6)",
    }
    assert (found.done, found.missing) == (4, 0)
    assert found.data["status"].values.tolist() == ["done", "done", "failed"] * 2
    assert found.data["error"].values.tolist() == [
        *("", "", "ValueError: 2 is too much (mine.py, line 6)"),
        *("", "", "ValueError: 5 is too much (mine.py, line 6)"),
    ]
    (tmp_path / "mended").touch()
    assert sweep(spec, workers=1).computed == 0
    mended = sweep(spec, workers=1, retry_failed=True)
    assert (mended.computed, mended.errors) == (2, {})
    assert mended.data["value"].values.tolist() == [0, 1, 2, 3, 4, 5]
    assert "error" not in mended.data


@pytest.mark.slow
def test_the_price_is_told_before(tmp_path: Path) -> None:
    spec = write_fragile(tmp_path)
    before = price(spec, workers=2)
    assert (before.count, before.done, before.left, before.workers) == (6, 0, 6, 2)
    assert before.measured == "3 points tried now"
    assert before.errors == ("ValueError: 5 is too much (mine.py, line 6)",)
    assert before.bytes_per_worker > 1e7
    assert not (tmp_path / "mine.sweep").exists()
    sweep(spec, workers=1)
    after = price(spec, workers=2)
    assert (after.done, after.failed, after.left, after.seconds) == (4, 2, 0, 0.0)
    assert price(spec, workers=2, retry_failed=True).left == 2


def test_time_is_that_of_finished_points(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import time\n\ndef slow(a: int):\n    time.sleep(0.1)\n    return a\n")
    sweep(write_spec(tmp_path, 'observable = "mine.py:slow"\n[axes]\na = [0, 1]'), workers=1)
    grown = price(
        write_spec(tmp_path, 'observable = "mine.py:slow"\n[axes]\na = [0, 1, 2, 3, 4, 5]'), workers=2
    )
    assert grown.measured == "2 finished points"
    assert 0.2 <= grown.seconds < 2.0  # four points on two workers


def test_whole_numbers_and_others_are_one_axis(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("def same(a):\n    return a\n")
    data = sweep(write_spec(tmp_path, 'observable = "mine.py:same"\n[axes]\na = [0, 0.5]'), workers=1).data
    assert data["value"].values.tolist() == data["a"].values.tolist() == [0.0, 0.5]


def test_repeats_can_be_added(tmp_path: Path) -> None:
    once = sweep(write_drawn(tmp_path, 2), workers=1)
    found = sweep(write_drawn(tmp_path, 2, "repeats = 3"), workers=1, extend=True)
    assert found.computed == 40
    np.testing.assert_array_equal(found.data["value"].sel(repeat=0), once.data["value"])
