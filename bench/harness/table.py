"""The results for people (one table) and for machines (one JSON record of the run)."""

from __future__ import annotations

import json
import math
import os
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.harness.jobs import Row
from bench.harness.rates import Rates, cores

COLUMNS = (
    "job",
    "ours",
    "peer",
    "ratio",
    "limit",
    "share of limit",
    "accuracy ours",
    "accuracy peer",
    "cost grows as",
    "how",
)
WIDTH_WITHOUT_TERMINAL = 180
PACKAGES = ("foretrain", "numpy", "scipy", "torch")


def show(rows: list[Row], rates: Rates) -> None:
    """Print the table and the rates behind its limits."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_WITHOUT_TERMINAL)
    table = Table(caption=f"ratio = peer / ours, behind it the aim; times are medians, {cores()} cores")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in ("job", "how") else "right")
    for row in rows:
        table.add_row(*_cells(row))
    console.print(table)
    for name, rate in rates.measured.items():
        console.print(f"{name}: {rate:.3g}", highlight=False, markup=False)
    for row in rows:
        if row.trouble:
            console.print(f"{row.name}: {row.trouble}", style="red", highlight=False, markup=False)


def record(rows: list[Row], rates: Rates, load_before: float) -> dict[str, Any]:
    """Everything a later run can be compared with."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {
            "cores": cores(),
            "load before": load_before,
            "platform": platform.platform(),
            "python": platform.python_version(),
        },
        "versions": {name: version(name) for name in PACKAGES},
        "rates": rates.measured,
        "rows": [_plain(asdict(row) | {"ratio": row.ratio, "share": row.share}) for row in rows],
    }


def _plain(values: dict[str, Any]) -> dict[str, Any]:
    """JSON has no nan and no infinity: they become words."""
    return {
        name: str(value) if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in values.items()
    }


def keep(content: dict[str, Any], target: Path) -> Path:
    """Write the record to a file, or under its date into a folder; returns where it is."""
    if target.is_dir():
        target = target / f"bench-{content['date'].replace(':', '').replace('+0000', 'Z')}.json"
    partial = target.with_name(target.name + ".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, target)
    return target


def _cells(row: Row) -> list[str]:
    if row.trouble and row.ours is None:
        return [row.name, "[red]failed", *[""] * 7, row.how]
    return [
        row.name,
        _seconds(row.ours),
        row.peer_missing or _seconds(row.peer),
        _ratio(row),
        _seconds(row.limit),
        "" if row.share is None else f"{100 * row.share:.0f} %",
        _error(row.error, row.tolerance),
        _error(row.peer_error, None),
        " ".join(f"{name}^{exponent:.2f}" for name, exponent in row.exponents.items()),
        row.how,
    ]


def _ratio(row: Row) -> str:
    if row.ratio is None:
        return ""
    if row.aim is None:
        return f"{row.ratio:.3g}"
    colour = "green" if row.ratio >= row.aim else "red"
    return f"[{colour}]{row.ratio:.3g}[/] / {row.aim:.3g}"


def _error(error: float | None, tolerance: float | None) -> str:
    if error is None:
        return ""
    if tolerance is None:
        return f"{error:.1e}"
    return f"[{'green' if error <= tolerance else 'red'}]{error:.1e}"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    unit, factor = ("s", 1) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{factor * seconds:.3g} {unit}"
