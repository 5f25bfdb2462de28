"""``foretrain reproduce``: the experiments of the registry."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.frame import Answer, Command, Seed
from foretrain.cli.output import Table
from foretrain.experiments import registry
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.experiments.registry import Experiment, Result, Scale


def reproduce(
    name: Annotated[str | None, typer.Argument(help="The experiment; without it, all are listed.")] = None,
    paper_scale: Annotated[
        bool, typer.Option("--paper-scale", help="The size that the source printed.")
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FOLDER",
            help="Keep finished parts of a long experiment here; run again to go on from them.",
        ),
    ] = None,
    seed: Seed = 0,
) -> Answer:
    """Reproduce a figure or table of the sources, and say whether it agrees (exit code 1 if it does not)."""
    if name is None:
        if keep is not None:
            raise InputError("--keep belongs to one experiment: name it, or leave --keep out.")
        return _list()
    experiment = registry.get(name)
    scale = registry.Scale.PAPER if paper_scale else registry.Scale.QUICK
    return _answer(experiment, scale, seed, experiment.run(scale, seed, keep=keep))


def _list() -> Answer:
    entries = [registry.get(name) for name in registry.names()]
    rows = [(entry.name, entry.title, entry.source) for entry in entries]
    document = [{"name": name, "title": title, "source": source} for name, title, source in rows]
    return Answer({"experiments": document}, [Table(("name", "what it shows", "source"), rows)])


def _answer(experiment: Experiment, scale: Scale, seed: int, result: Result) -> Answer:
    rows: list[dict[str, Any]] = [
        {
            "quantity": row.quantity,
            "expected": row.expected,
            "here": row.here,
            "standard_error": row.standard_error,
            "z": row.z,
            "agrees": row.agrees,
            "note": row.note,
        }
        for row in result.table
    ]
    facts = {"name": experiment.name, "title": experiment.title, "source": experiment.source}
    noted = any(row.note for row in result.table)
    columns = ("quantity", "published or theory", "here", "standard error", "z", "agrees", "note")
    cells = [tuple({**row, "z": _rounded(row["z"])}.values()) for row in rows]
    return Answer(
        {
            **facts,
            "scale": scale,
            "seed": seed,
            "verdict": result.verdict,
            "agrees": result.agrees,
            "rows": rows,
        },
        [
            experiment.title,
            experiment.source,
            Table(columns, cells) if noted else Table(columns[:-1], [cell[:-1] for cell in cells]),
            result.verdict,
        ],
        data=result.data.assign_attrs(facts | {"scale": str(scale), "seed": seed, "verdict": result.verdict}),
        figure=result.figure,
        holds=result.agrees,
    )


def _rounded(z: float | None) -> float | None:
    return None if z is None else round(z, 2)


COMMAND = Command(
    reproduce,
    examples=(
        "foretrain reproduce",
        "foretrain reproduce log-variance --plot log-variance.png",
        "foretrain reproduce metric-fluctuations --paper-scale --save results",
    ),
    saves=True,
    draws=True,
)
