from __future__ import annotations

import math
import subprocess
import sys

import pytest
import xarray as xr

from foretrain.experiments import Experiment, Result, Row, Scale, get, names, registry
from foretrain.support.errors import InputError


def tiny(scale: Scale, seed: int) -> Result:
    return Result(f"{scale} {seed}", (Row("x", 1.0, 1.0, agrees=True),), xr.Dataset())


@pytest.mark.parametrize("name", names())
def test_every_entry_of_the_table_leads_to_a_function(name: str) -> None:
    experiment = get(name)
    assert callable(experiment.load())
    assert experiment.title
    assert experiment.source
    assert name == experiment.name == name.lower().replace("_", "-")


@pytest.mark.parametrize("name", names())
def test_the_function_is_called_like_its_experiment(name: str) -> None:
    function = get(name).address.partition(":")[2]
    assert function in (name.replace("-", "_"), name.removeprefix("attention-").replace("-", "_"))


def test_names_are_unique() -> None:
    assert len(registry._TABLE) == len(set(names()))


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"unknown experiment 'log-varance': did you mean 'log-variance'\?"):
        get("log-varance")


def test_scale_and_seed_reach_the_function() -> None:
    experiment = Experiment("tiny", "Tiny", "nobody", f"{__name__}:tiny")
    assert experiment.run().verdict == "quick 0"
    assert experiment.run("paper", seed=3).verdict == "paper 3"
    with pytest.raises(InputError, match="choose 'quick' or 'paper'"):
        experiment.run("huge")


def test_a_row_measures_its_distance_in_standard_errors() -> None:
    assert Row("x", 1.0, 1.5, 0.25).z == 2.0
    assert Row("x", 1.0, 1.5).z is None
    assert Row("x", 1.0, 1.0, 0.0).z is None
    z = Row("x", 1.0, math.nan, 0.25).z
    assert z is not None
    assert math.isnan(z)


def test_a_result_agrees_if_no_tested_row_disagrees() -> None:
    good, shown, bad = (Row("x", 1, 1, agrees=agrees) for agrees in (True, None, False))
    assert Result("", (good, shown), xr.Dataset()).agrees
    assert not Result("", (good, shown, bad), xr.Dataset()).agrees


def test_the_list_needs_no_heavy_library() -> None:
    code = (
        "import sys, foretrain.experiments as e; e.names()\n"
        "sys.exit(any(m in sys.modules for m in ('numpy', 'torch', 'xarray', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
