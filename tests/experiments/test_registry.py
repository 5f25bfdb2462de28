from __future__ import annotations

import dataclasses
import importlib
import inspect
import math
import subprocess
import sys

import pytest
import xarray as xr

from foretrain.experiments import Experiment, Result, Row, Scale, get, names, registry
from foretrain.experiments.sweep.targets import of_experiment
from foretrain.support.errors import InputError


@dataclasses.dataclass(frozen=True)
class Plan:
    """As large as its name is long."""

    name: str


PLANS = {Scale.QUICK: Plan("few"), Scale.PAPER: Plan("many")}


def tiny(plan: Plan, seed: int) -> Result:
    return Result(f"{plan.name} {seed}", (Row("x", 1.0, 1.0, agrees=True),), xr.Dataset())


TINY = Experiment("tiny", "Tiny", "nobody", f"{__name__}:tiny")


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
    assert len(list(registry._entries())) == len(set(names()))


def test_a_wrong_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError, match=r"did you mean 'log-variance'"):
        get("log-varance")


@pytest.mark.parametrize("name", names())
def test_an_experiment_is_a_function_of_its_plan(name: str) -> None:
    """One frozen type for both scales, which is that of the function's first parameter."""
    experiment = get(name)
    assert set(experiment.plans) == set(Scale)
    (kind,) = {type(plan) for plan in experiment.plans.values()}
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen  # type: ignore[attr-defined]
    module = importlib.import_module(experiment.address.partition(":")[0])
    parameters = inspect.signature(experiment.load()).parameters
    assert list(parameters) == ["plan", "seed", *(["parts"] if experiment.resumable else [])]
    assert getattr(module, parameters["plan"].annotation) is kind


@pytest.mark.parametrize("name", names())
def test_what_a_plan_holds_can_be_swept(name: str) -> None:
    experiment = get(name)
    offered = {item.name for item in of_experiment(name).parameters}
    for plan in experiment.plans.values():
        fields = {item.name: getattr(plan, item.name) for item in dataclasses.fields(plan)}
        plain = {field for field, value in fields.items() if type(value) in (bool, int, float, str)}
        assert plain <= offered


def test_scale_and_seed_reach_the_function() -> None:
    assert TINY.run().verdict == "few 0"
    assert TINY.run("paper", seed=3).verdict == "many 3"
    with pytest.raises(InputError, match="choose 'quick' or 'paper'"):
        TINY.run("huge")


def test_another_plan_is_run_in_place_of_that_of_the_scale() -> None:
    assert TINY.run(seed=2, plan=dataclasses.replace(TINY.plans[Scale.QUICK], name="one")).verdict == "one 2"
    assert TINY.run().verdict == "few 0"
    with pytest.raises(InputError, match=r"tiny .*Plan.*dict"):
        TINY.run(plan={"name": "one"})


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
        "sys.exit(any(m in sys.modules for m in ('scipy', 'torch', 'xarray', 'matplotlib', 'plotly')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
