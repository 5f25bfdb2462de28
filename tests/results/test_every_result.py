"""Everything public that is returned can be printed, drawn, shown in a notebook, saved and read by machines.

``examples.py`` makes one instance of every type. A new type of result without an example fails here, and so does a
public function that returns a class which is no ``Result``.
"""

from __future__ import annotations

import importlib
import inspect
import json
import pkgutil
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import xarray
from tests.results.examples import EXAMPLES, NOT_RESULTS, example

import foretrain
from foretrain.support.answers import Result

ROOMS = ("activations", "compare", "doctor", "empirical", "experiments", "gaussian", "operators", "saddle")
ROOMS += ("theory", "training")
QUICK = 24  # so many examples are looked at in every run of the tests, all of them in the long one


@cache
def modules() -> tuple[ModuleType, ...]:
    found = pkgutil.walk_packages(foretrain.__path__, "foretrain.")
    return tuple(importlib.import_module(module.name) for module in found if "__main__" not in module.name)


@cache
def package_classes() -> dict[tuple[str, str], type]:
    """All public classes of the package by the modules that know them and their names."""
    return {
        (module.__name__, name): member
        for module in modules()
        for name, member in vars(module).items()
        if inspect.isclass(member) and member.__module__.startswith("foretrain.") and not name.startswith("_")
    }


def types_of_results() -> list[type]:
    """Classes that say themselves what their answer is, or that are results directly."""
    return sorted(
        (
            member
            for member in set(package_classes().values())
            if issubclass(member, Result)
            and member is not Result
            and not inspect.isabstract(member)
            and ("answer" in vars(member) or Result in member.__bases__)
        ),
        key=lambda one: (one.__qualname__, one.__module__),
    )


def public_functions() -> Iterator[tuple[str, Any]]:
    places = [foretrain, *(importlib.import_module(f"foretrain.{room}") for room in ROOMS)]
    for place in places:
        for name in getattr(place, "__all__", ()):
            member = getattr(place, name)
            if inspect.isfunction(member):
                yield f"{place.__name__}.{name}", member


@pytest.mark.slow
def test_every_type_of_result_has_an_example() -> None:
    made = [type(example(name)) for name in EXAMPLES]
    missing = [
        f"{one.__module__}.{one.__qualname__}"
        for one in types_of_results()
        if not any(issubclass(m, one) for m in made)
    ]
    assert not missing, f"add examples of {', '.join(missing)} to tests/results/examples.py"


@pytest.mark.slow
def test_public_functions_return_results_or_plain_values() -> None:
    strangers = []
    for place, function in public_functions():
        returned = str(inspect.signature(function).return_annotation)
        for word in re.findall(r"[A-Za-z_]\w*", returned):
            member = package_classes().get((function.__module__, word))
            if member is not None and not issubclass(member, Result) and word not in NOT_RESULTS:
                strangers.append(f"{place} returns {word}")
    assert not strangers, f"these are no results: {'; '.join(strangers)}"


@pytest.mark.slow(after=QUICK)
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_prints_numbers(name: str) -> None:
    text = repr(example(name))
    assert re.search(r"\d", text), f"no number in {text!r}"
    assert " at 0x" not in text
    assert len(text) < 20_000


@pytest.mark.slow(after=QUICK)
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_gives_json_that_parses(name: str) -> None:
    document = json.loads(json.dumps(example(name).to_dict(), allow_nan=False))
    assert isinstance(document, dict)
    assert document


@pytest.mark.slow(after=QUICK)
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_saves_its_numbers(name: str, tmp_path: Path) -> None:
    data = example(name).to_dataset()
    assert isinstance(data, xarray.Dataset)
    foretrain.save(data, tmp_path / "data.zarr")
    again = foretrain.load(tmp_path / "data.zarr")
    assert set(again.variables) == set(data.variables)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_it_plots(name: str, tmp_path: Path) -> None:
    drawing = example(name).plot(path=tmp_path / "picture.png")
    assert drawing.axes
    assert (tmp_path / "picture.png").stat().st_size > 3000


@pytest.mark.slow(after=QUICK)
@pytest.mark.parametrize("name", EXAMPLES)
def test_its_answer_stands_on_its_own(name: str) -> None:
    answer = example(name).answer()
    assert answer.statement or answer.parts
    assert answer.statement == answer.statement.strip()
