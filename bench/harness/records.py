"""What was measured, kept as one dated JSON file a day: `KIND-YYYY-MM-DD.json` in the folder of results.

A file appears complete or not at all. What kinds of records hold is up to their writers; all of them say the date and
the facts of the machine (`machine_facts`), without which no number can be read.
"""

from __future__ import annotations

import json
import math
import platform
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from bench.harness.rates import cores, load
from foretrain.support.acceleration import accelerator
from foretrain.support.atomic import new_file
from foretrain.support.errors import FileError

RESULTS = Path(__file__).resolve().parents[1] / "results"
PACKAGES = ("foretrain", "numpy", "scipy", "torch")


def machine_facts() -> dict[str, Any]:
    """Date, cores, processor, load and versions: to be asked for before anything is measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cores": cores(),
        "processor": _processor(),
        "load before": load(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "loops over pairs": accelerator(),
    }


def path_of(kind: str, date: str, folder: Path = RESULTS) -> Path:
    """Where the record of that day is kept; of an ISO date only the day counts."""
    return folder / f"{kind}-{date[:10]}.json"


def keep(content: dict[str, Any], target: Path) -> Path:
    """Write a record in place of the one that may be there; returns where it is."""
    text = json.dumps(plain(content), indent=1, allow_nan=False, ensure_ascii=False)
    with new_file(target, overwrite=True) as partial:
        partial.write_text(text + "\n", encoding="utf-8")
    return target


def read(path: Path) -> dict[str, Any]:
    """A record as it was kept."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise FileError(f"{path} is no record ({error}): move it away and measure again.") from error
    if not isinstance(found, dict):
        raise FileError(f"{path} is no record: move it away and measure again.")
    return found


def latest(kind: str, command: str, folder: Path = RESULTS) -> dict[str, Any]:
    """The newest record of a kind; `command` is what would measure one."""
    found = sorted(folder.glob(f"{kind}-????-??-??.json"))
    if not found:
        raise FileError(f"nothing was measured yet: run {command}.")
    return read(found[-1])


def plain(value: Any) -> Any:
    """JSON has no nan and no infinity: they become words, which `float` reads again."""
    if isinstance(value, dict):
        return {name: plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _processor() -> str:
    """Its name where the system tells, otherwise its family."""
    told = Path("/proc/cpuinfo")
    lines = told.read_text(encoding="utf-8", errors="replace").splitlines() if told.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()
