"""Packages that are called like functions: with their signature, their help and their types."""

from __future__ import annotations

import inspect
import os
import pydoc
import subprocess
import sys
from pathlib import Path
from typing import Any, get_overloads

import pytest

import foretrain as ft
from foretrain.compare import compare
from foretrain.compare.infinite_width.beside import compare_infinite_width
from foretrain.compare.initial import compare_initial
from foretrain.compare.trained import compare_trained, compare_trained_finite
from foretrain.doctor.examine import doctor
from foretrain.support.errors import InputError

# What lies outside is of no concern here, and reading it would take minutes.
SETTINGS = """
[mypy]
strict = True
follow_imports = silent
[mypy-torch.*,numpy.*,scipy.*,xarray.*]
follow_imports = skip
follow_imports_for_stubs = True
"""
RIGHT = """
import foretrain as ft
mlp, data = ft.MLP("relu", depth=3, width=32), ([[1.0]], [0.5], [[2.0]])
verdict: str = ft.doctor(ft.compare.build.build(mlp), [[1.0]], [0.5], loss="mse").headline
drawn: bool = ft.compare(mlp, [[1.0]], ["K"], draws=500, widths=[32, 64, 128]).agrees
trained = ft.compare(mlp, *data, trained=True, time=3, scales=[1, 2, 4]).power("mean")
finite: str = ft.compare(mlp, *data, trained=True, regime="finite", widths=[32, 64, 128]).goal.statement
print(isinstance(drawn, ft.compare.Comparison), isinstance(verdict, ft.doctor.Diagnosis))
"""
WRONG = """
import foretrain as ft
mlp = ft.MLP("relu", depth=3, width=32)
ft.doctor(x=[[1.0]], checks=3)
ft.compare(mlp, [[1.0]], draw=500)
ft.compare(mlp, [[1.0]], [0.5], [[2.0]], trained=True, regime="final")
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What a type checker says about a right and a wrong file, line by line."""
    folder = tmp_path_factory.mktemp("user")
    (folder / "mypy.ini").write_text(SETTINGS)
    (folder / "right.py").write_text(RIGHT)
    (folder / "wrong.py").write_text(WRONG)
    source = Path(ft.__file__).parents[1]
    run = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(folder / "cache"), "right.py", "wrong.py"],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "MYPYPATH": str(source)},
    )
    lines = [line for line in run.stdout.splitlines() if ": error:" in line]
    assert run.stdout.splitlines()[-1].endswith("(checked 2 source files)"), run.stdout + run.stderr
    return {name: [line for line in lines if line.startswith(name)] for name in ("right.py", "wrong.py")}


@pytest.mark.slow
def test_right_calls_pass_a_type_checker(answers: dict[str, list[str]]) -> None:
    assert answers["right.py"] == []


@pytest.mark.slow
def test_wrong_calls_do_not(answers: dict[str, list[str]]) -> None:
    assert {line.split(":")[1] for line in answers["wrong.py"]} == {"4", "5", "6"}


@pytest.mark.parametrize(("room", "function"), [(ft.compare, compare), (ft.doctor, doctor)])
def test_signature_and_help_are_those_of_the_function(room: Any, function: Any) -> None:
    assert inspect.signature(room) == inspect.signature(function)
    told = pydoc.plain(pydoc.render_doc(room))
    for line in inspect.getdoc(function).splitlines():
        assert line in told
    assert set(dir(room)) == set(room.__all__)


def test_every_form_of_a_comparison_has_the_options_of_its_function() -> None:
    own = {"trained", "regime", "keeper"}
    every = set().union(*(inspect.signature(form).parameters for form in get_overloads(compare)))
    assert set(inspect.signature(ft.compare).parameters) == {"data"} | every - {
        "make",
        "x",
    }  # by their places only
    forms = [set(inspect.signature(form).parameters) - own for form in get_overloads(compare)]
    functions = (compare_initial, compare_infinite_width, compare_trained, compare_trained_finite)
    assert forms == [set(inspect.signature(each).parameters) - own for each in functions]
    paragraphs = compare.__doc__.split("``compare(")[1:]
    for options, told in zip(forms, paragraphs, strict=True):
        assert all(name in told for name in options)


def test_a_package_stays_the_function_after_one_of_its_modules_is_imported() -> None:
    import foretrain.compare.build

    assert ft.compare is foretrain.compare
    assert ft.compare.build.build is foretrain.compare.build.build
    with pytest.raises(TypeError, match="time"):  # an option of another form
        ft.compare(ft.MLP("relu", depth=3, width=32), [[1.0]], time=3)
    with pytest.raises(InputError, match="training inputs, targets and test inputs"):
        ft.compare(ft.MLP("relu", depth=3, width=32), [[1.0]], trained=True)
