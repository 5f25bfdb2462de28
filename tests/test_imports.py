"""Importing is fast and light, and every module can be the first one imported."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

import foretrain

PACKAGE = Path(foretrain.__file__).parent
COMMAND = Path(sys.executable).with_name("foretrain")
HEAVY = ("torch", "xarray", "scipy", "matplotlib", "zarr", "pandas", "joblib", "rich", "typer", "numpy")


def test_the_package_alone_loads_nothing_heavy() -> None:
    code = f"import sys, foretrain; print([m for m in {HEAVY!r} if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert run.stdout == "[]\n"


def test_every_public_name_leads_somewhere() -> None:
    for name in foretrain.__all__:
        assert getattr(foretrain, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        foretrain.__getattr__("nonsense")


ROOMS = sorted(path.name for path in PACKAGE.iterdir() if path.suffix in ("", ".py"))
QUICK = ("__init__.py", "saddle", "report")  # of the others every module costs a tenth of a second


@pytest.mark.parametrize(
    "room", [pytest.param(room, marks=() if room in QUICK else pytest.mark.slow) for room in ROOMS]
)
def test_every_module_can_be_imported_first(room: str) -> None:
    """A circle of imports shows only from where it starts, so each module starts once."""
    place = PACKAGE / room
    names = [
        ".".join(("foretrain", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for path in sorted([place] if place.is_file() else place.rglob("*.py"))
    ]
    code = (
        "import importlib, sys\n"
        "brought = {}\n"  # by each package: these modules are never the first
        f"for name in {names!r}:\n"
        "    if name in brought.get(name.rpartition('.')[0], ()):\n"
        "        continue\n"
        "    for known in [m for m in sys.modules if m.partition('.')[0] == 'foretrain']:\n"
        "        del sys.modules[known]\n"
        "    try:\n"
        "        module = importlib.import_module(name)\n"
        "    except ImportError as error:\n"
        "        print(f'{name} cannot be imported first: {error}')\n"
        "    else:\n"
        "        brought[name] = set(sys.modules) if hasattr(module, '__path__') else ()\n"
    )
    compiled_once = {**os.environ, "PYTHONDONTWRITEBYTECODE": ""}
    run = subprocess.run(
        [sys.executable, "-c", code], check=True, capture_output=True, text=True, env=compiled_once
    )
    assert run.stdout == ""


@pytest.mark.parametrize("option", ["--version", "--help"])
def test_the_command_answers_in_half_a_second(option: str) -> None:
    times = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run([COMMAND, option], check=True, capture_output=True)
        times.append(time.perf_counter() - start)
    assert min(times) < 0.5
