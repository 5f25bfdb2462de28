"""The wheel builds, installs into an empty environment, and works there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import foretrain

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.packaging


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT], check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of executables of a fresh environment that holds the wheel and its dependencies only."""
    folder = tmp_path_factory.mktemp("env")
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    executables = folder / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run([executables / "python", "-m", "pip", "install", "--quiet", wheel], check=True)
    yield executables
    shutil.rmtree(folder)  # with torch in it, too large to keep


def call(environment: Path, *command: str, folder: Path) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    result = subprocess.run(
        [environment / command[0], *command[1:]],
        cwd=folder,
        env=clean,
        check=True,
        capture_output=True,
        text=True,
    )
    assert result.stderr == ""
    return result.stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel: Path) -> None:
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.split("/")[0] for name in names}
    assert tops == {"foretrain", f"foretrain-{foretrain.__version__}.dist-info"}
    assert "foretrain/py.typed" in names
    assert any(name.endswith("LICENSE") for name in names)
    here = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "foretrain").rglob("*.py")}
    assert here <= set(names)


def test_the_command_works_after_installation(environment: Path, tmp_path: Path) -> None:
    assert (
        call(environment, "foretrain", "--version", folder=tmp_path) == f"foretrain {foretrain.__version__}\n"
    )
    listed = json.loads(call(environment, "foretrain", "reproduce", "--json", folder=tmp_path))
    assert len(listed["experiments"]) >= 6
    answer = call(
        environment, "foretrain", "reproduce", "parameter-count", "--save", "saved", folder=tmp_path
    )
    assert "91" in answer
    assert (tmp_path / "saved" / "data.zarr").is_dir()


def test_the_library_works_after_installation(environment: Path, tmp_path: Path) -> None:
    code = (
        "import foretrain as ft, xarray as xr\n"
        "assert 'site-packages' in ft.__file__, ft.__file__\n"
        "print(float(ft.activation('tanh').derivative(0.0, 1)))\n"
        "ft.save(xr.Dataset({'a': 1.0}), 'a.zarr')\n"
        "print(float(ft.load('a.zarr')['a']))\n"
    )
    assert call(environment, "python", "-c", code, folder=tmp_path) == "1.0\n1.0\n"
