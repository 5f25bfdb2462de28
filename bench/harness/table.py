"""The lines of a record for people: one table on the terminal, one for each benchmark in Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.harness.lines import LIMIT, Line

Lines = Sequence[tuple[Line, Mapping[str, Any]]]

COLUMNS = (
    "job",
    "beside",
    "ratio",
    "of rounds",
    "ours",
    "other",
    "error",
    "its error",
    "memory",
    "its memory",
)
LEFT = ("job", "beside")
WIDTH_WITHOUT_TERMINAL = 190
CAPTION = (
    "ratio = other / ours in time (beside the limit: the share reached) and, where there is an aim, in memory; "
    "behind a slash the aim; 'of rounds': lowest and highest ratio of single rounds; times are medians, "
    "memory is what a call adds at its peak"
)
NOT_THERE = "not measured in the newest record; `python -m bench --only {}` does"


def show(lines: Lines) -> None:
    """Print the table, the facts of its runs, and all trouble in full."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDTH_WITHOUT_TERMINAL)
    table = Table(caption=CAPTION)
    for column in COLUMNS:
        table.add_column(column, justify="left" if column in LEFT else "right", overflow="fold")
    for benchmark, group in groupby(lines, key=lambda pair: pair[0].benchmark):
        table.add_row(f"[bold]{escape(benchmark)}")
        for job in _jobs(line for line, _ in group):
            for cells in _rows(job):
                table.add_row(*cells)
        table.add_section()
    console.print(table)
    told = ["; ".join(f"{name}: {value}" for name, value in run.items()) for run in facts(lines)]
    for text in [*told, *_troubles(lines)]:
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def facts(lines: Lines) -> list[dict[str, str]]:
    """What must be known of the runs that the lines come from, the oldest first."""
    runs = {run["date"]: run for _, run in lines}
    return [_facts(runs[date]) for date in sorted(runs)]


def facts_markdown(lines: Lines) -> str:
    """The facts as a table, one column a run."""
    runs = facts(lines)
    names = dict.fromkeys(name for run in runs for name in run)
    rows = [[name, *(run.get(name, "") for run in runs)] for name in names]
    return "\n".join(map(_markdown_row, [rows[0], ["---"] * (1 + len(runs)), *rows[1:]]))


def markdown(lines: Lines, benchmark: str) -> str:
    """The table of one benchmark."""
    jobs = list(_jobs(line for line, _ in lines if line.benchmark == benchmark))
    if not jobs:
        return NOT_THERE.format(benchmark)
    rows = [
        "| job | beside | ratio | of rounds | ours | other | error, ours / other | memory, ours / other |",
        "|---" * 8 + "|",
    ]
    for job in jobs:
        for index, line in enumerate(job):
            rows.append(_markdown_row(_markdown_cells(line, first=index == 0)))
    return "\n".join(rows)


def _markdown_cells(line: Line, *, first: bool) -> list[str]:
    trouble = f"<br>{_first_words(line.our_trouble)}" if line.our_trouble else ""
    return [
        f"{line.job}<br><small>{_labels(line)}</small>{trouble}" if first else "",
        line.beside,
        _ratio(line),
        _spread(line),
        _seconds(line.our_seconds) if first else "",
        _other(line),
        _pair(_error(line.our_error) if first else "", _error(line.other_error)),
        _pair(_bytes(line.our_bytes) if first else "", _bytes(line.other_bytes)),
    ]


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _jobs(lines: Iterator[Line]) -> Iterator[list[Line]]:
    for _, group in groupby(lines, key=lambda line: line.job):
        yield list(group)


def _rows(job: list[Line]) -> Iterator[list[str]]:
    """One row a line; what is the same in all of them stands in the first."""
    for index, line in enumerate(job):
        ours = ["", "", ""]
        if index == 0:
            name = f"{escape(line.job)}\n[dim]{escape(_labels(line))}[/]"
            name += f"\n[red]{escape(_first_words(line.our_trouble))}[/]" if line.our_trouble else ""
            ours = [name, _seconds(line.our_seconds), _bytes(line.our_bytes)]
        yield [
            ours[0],
            escape(line.beside) + (f"\n[red]{escape(_other(line))}[/]" if line.other_trouble else ""),
            _coloured(_ratio(line), line.ratio, line.aim),
            _spread(line),
            ours[1],
            _seconds(line.other_seconds),
            _coloured_error(line) if index == 0 else "",
            _error(line.other_error),
            ours[2],
            _bytes(line.other_bytes),
        ]


def _labels(line: Line) -> str:
    """Sizes, precision, threads, how both sides compute, how it was measured, and how the cost grows."""
    sizes = ", ".join(f"{count:,} {what}" for what, count in line.sizes.items())
    threads = f"{line.threads} thread{'s' * (line.threads > 1)}"
    powers = " ".join(f"{name}^{exponent:.2f}" for name, exponent in line.exponents.items())
    growth = f"cost grows as {powers}" if powers else ""
    parts = sizes, line.precision, threads, line.what, line.measured, growth
    return "; ".join(part for part in parts if part)


def _ratio(line: Line) -> str:
    found = [] if line.ratio is None else [_reached(line.ratio, line.aim, percent=line.beside == LIMIT)]
    if line.memory_aim and line.our_bytes and line.other_bytes is not None:
        found.append("memory " + _reached(line.other_bytes / line.our_bytes, line.memory_aim, percent=False))
    return ", ".join(found)


def _spread(line: Line) -> str:
    if line.lowest is None or line.highest is None:
        return ""
    low, high = (_number(value, percent=line.beside == LIMIT) for value in (line.lowest, line.highest))
    return low if low == high else f"{low} to {high}"


def _reached(value: float, aim: float | None, *, percent: bool) -> str:
    behind = f" / {_number(aim, percent=percent)}" if aim else ""
    return _number(value, percent=percent) + behind


def _number(value: float, *, percent: bool) -> str:
    if percent:
        return f"{value:.0%}"
    return f"{value:.3g}" if value < 1000 else f"{value:,.0f}"


def _coloured(text: str, value: float | None, aim: float | None) -> str:
    return text if value is None or not aim else f"[{'green' if value >= aim else 'red'}]{text}"


def _coloured_error(line: Line) -> str:
    text = _error(line.our_error)
    if line.our_error is None or line.tolerance is None:
        return text
    return f"[{'green' if line.our_error <= line.tolerance else 'red'}]{text}"


def _other(line: Line) -> str:
    return _first_words(line.other_trouble) if line.other_trouble else _seconds(line.other_seconds)


def _pair(ours: str, other: str) -> str:
    return f"{ours} / {other}" if other else ours


def _facts(run: Mapping[str, Any]) -> dict[str, str]:
    machine, settings = run["machine"], run["settings"]
    versions = {"python": machine["python"], **machine["versions"]}
    found = {
        "run": f"{run['date']}, {run['ended']} after {run['minutes']:.1f} minutes",
        "rounds of a job": f"up to {settings['rounds']}",
        "cores": f"{machine['cores']} ({machine['processor']})",
        "threads of every side": str(machine["threads"]),
        "load before": f"{float(machine['load before']):.1f}",
        "loops over pairs": machine.get("loops over pairs", "numpy"),
        **{name: f"{float(machine['rates'][name]):.3g}" for name in sorted(machine["rates"], key=_by_size)},
        "versions": ", ".join(f"{name} {number}" for name, number in versions.items()),
        **{f"peer {name}": _shortly(what) for name, what in machine["peers"].items()},
    }
    left_out = {"left out because they take long": "; ".join(run["left out"])} if run["left out"] else {}
    return found | left_out


def _by_size(name: str) -> list[tuple[int, str]]:
    """A key that sorts numbers inside of names by their size."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def _shortly(requirements: str) -> str:
    """The peer, and what it computes with."""
    return ", ".join(requirements.split(", ")[:2])


def _troubles(lines: Lines) -> list[str]:
    told = [(line.job, "ours", line.our_trouble) for line, _ in lines]
    told += [(line.job, line.beside, line.other_trouble) for line, _ in lines]
    return list(dict.fromkeys(f"{job}, {side}: {trouble}" for job, side, trouble in told if trouble))


def _first_words(trouble: str, most: int = 60) -> str:
    """What fits into a cell; the whole stands below the table."""
    line = (trouble.splitlines() or [""])[0]
    return line if len(line) <= most else line[:most].rsplit(" ", 1)[0] + " ..."


def _error(error: float | None) -> str:
    return "" if error is None else f"{error:.1e}"


def _bytes(count: float | None) -> str:
    if count is None:
        return ""
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return ""
    unit, factor = ("s", 1) if seconds >= 1 else ("ms", 1e3) if seconds >= 1e-3 else ("µs", 1e6)
    return f"{factor * seconds:.3g} {unit}"
