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
from rich.markup import escape
from rich.table import Table

from bench.harness.jobs import Row
from bench.harness.rates import Rates, cores

COLUMNS = (
    "job",
    "ours",
    "limit",
    "share of limit",
    "error",
    "memory",
    "peer",
    "its time",
    "ratio",
    "its error",
    "its memory",
    "cost grows as",
    "how",
)
LEFT = ("job", "peer", "how")
WIDTH_WITHOUT_TERMINAL = 200
PACKAGES = ("foretrain", "numpy", "scipy", "torch")


def show(rows: list[Row], rates: Rates) -> None:
    """Print the table and the rates behind its limits."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_WITHOUT_TERMINAL)
    table = Table(
        caption="ratio = peer / ours, in time and then, where there is an aim, in memory; behind a slash the aim; "
        f"times are medians, memory is what a call adds at its peak; {cores()} cores"
    )
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in LEFT else "right", overflow="fold")
    for row in rows:
        for cells in _lines(row):
            table.add_row(*cells)
        table.add_section()
    console.print(table)
    for name, rate in rates.measured.items():
        console.print(f"{name}: {rate:.3g}", highlight=False, markup=False)
    for row in rows:
        for name, side in {"ours": row.ours, **row.peers}.items():
            if side.trouble:
                console.print(
                    f"{row.name}, {name}: {side.trouble}", style="red", highlight=False, markup=False
                )


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
        "rows": [_plain(asdict(row) | {"ratios": row.ratios, "share": row.share}) for row in rows],
    }


def _plain(value: Any) -> Any:
    """JSON has no nan and no infinity: they become words."""
    if isinstance(value, dict):
        return {name: _plain(entry) for name, entry in value.items()}
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def keep(content: dict[str, Any], target: Path) -> Path:
    """Write the record to a file, or under its date into a folder; returns where it is."""
    if target.is_dir():
        target = target / f"bench-{content['date'].replace(':', '').replace('+0000', 'Z')}.json"
    partial = target.with_name(target.name + ".partial")
    partial.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(partial, target)
    return target


def _lines(row: Row) -> list[list[str]]:
    """One line a peer; ours stands in the first."""
    if row.ours.trouble:
        return [[row.name, "[red]failed", *[""] * 10, row.how]]
    peers = [_peer(row, name) for name in row.peers] or [[""] * 5]
    exponents = " ".join(f"{name}^{exponent:.2f}" for name, exponent in row.exponents.items())
    lines = [[*[""] * 6, *peer, "", ""] for peer in peers]
    lines[0] = [*_ours(row), *peers[0], exponents, row.how]
    return lines


def _ours(row: Row) -> list[str]:
    return [
        row.name,
        _seconds(row.ours.seconds),
        _seconds(row.limit),
        "" if row.share is None else _reached(100 * row.share, 100 * (row.share_aim or 0), " %"),
        _error(row.ours.error, row.tolerance),
        _bytes(row.ours.memory),
    ]


def _peer(row: Row, name: str) -> list[str]:
    peer = row.peers[name]
    if peer.trouble:
        return [name, f"[red]{escape(_first_words(peer.trouble))}", "", _error(peer.error, None), ""]
    ratios = [_reached(row.ratios[name], row.aims.get(name))]
    if name in row.memory_aims and peer.memory is not None and row.ours.memory:
        ratios += ["memory " + _reached(peer.memory / row.ours.memory, row.memory_aims[name])]
    return [
        name,
        _seconds(peer.seconds),
        "\n".join(ratios),
        _error(peer.error, None),
        _bytes(peer.memory),
    ]


def _first_words(trouble: str, most: int = 60) -> str:
    """What fits into a cell; the whole stands below the table."""
    line = trouble.splitlines()[0]
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + " ..."


def _reached(value: float, aim: float | None, unit: str = "") -> str:
    if not aim:
        return f"{value:.3g}{unit}"
    return f"[{'green' if value >= aim else 'red'}]{value:.3g}[/] / {aim:.3g}{unit}"


def _error(error: float | None, tolerance: float | None) -> str:
    if error is None:
        return ""
    if tolerance is None:
        return f"{error:.1e}"
    return f"[{'green' if error <= tolerance else 'red'}]{error:.1e}"


def _bytes(count: int | None) -> str:
    if count is None:
        return ""
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    unit, factor = ("s", 1) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{factor * seconds:.3g} {unit}"
