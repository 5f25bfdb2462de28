"""``foretrain sweep``: any experiment or observable over any of its parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.frame import Command
from foretrain.cli.options import Engine, Workers
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.experiments.sweep.targets import Parameter

_OWN = (
    'observable = "file.py:function": any function; its parameters are those of its signature, and it returns '
    "numbers, arrays or a dict of these"
)


def sweep(
    spec: Annotated[
        Path | None,
        typer.Argument(help="TOML file that says what is swept over what; with --list, a name to be shown."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="STORE", help="Folder of the points [default: SPEC.sweep]."),
    ] = None,
    example: Annotated[bool, "Take the built-in phase diagram of tanh, 527 points, as the file."] = False,
    list_all: Annotated[
        bool, typer.Option("--list", help="List what can be swept; with a name, all its parameters.")
    ] = False,
    dry_run: Annotated[bool, "Only say how many points are left and what they will cost."] = False,
    retry_failed: Annotated[bool, "Compute failed points again."] = False,
    extend: Annotated[bool, "Go on with a store although axes have grown or your code has changed."] = False,
    engine: Engine = None,
    workers: Workers = None,
    quantity: Annotated[str | None, "What to draw and print [default: all numbers]."] = None,
) -> Answer:
    """Compute an observable, an experiment or a function of your own at every point of a grid of parameters.

    Points are kept as they finish: the same command goes on after any interruption, a kill included. A point's
    numbers, random ones too, depend on its parameters alone. Failed points are noted with their error (exit code 1).
    """
    if list_all and not example:
        return _everything() if spec is None else _described(str(spec))
    if (spec is not None) == example or list_all:
        raise InputError("give one of these: the file of a sweep, --example, or --list.")
    from foretrain.experiments.sweep import EXAMPLE, price
    from foretrain.experiments.sweep import sweep as run

    if spec is None:
        spec, store = EXAMPLE, store or Path(EXAMPLE.stem).with_suffix(".sweep")
    options: dict[str, Any] = {"engine": engine, "workers": workers, "retry_failed": retry_failed}
    if dry_run:
        return price(spec, store, **options).answer()
    return run(spec, store, extend=extend, **options).answer(quantity)


def _everything() -> Answer:
    """Observables with their parameters, and the names of experiments."""
    from foretrain.experiments import registry
    from foretrain.experiments.sweep import observables

    entries = [observables.get(name) for name in observables.names()]
    text: list[str | Table] = []
    for entry in entries:
        text += [f'observable = "{entry.name}": {entry.title}', _table(entry.parameters)]
    text += [
        _OWN,
        "experiment = one of these; 'foretrain sweep NAME --list' shows its parameters: "
        + ", ".join(registry.names()),
    ]
    document = [_document(entry.name, entry.title, entry.parameters) for entry in entries]
    return Answer("", text, record={"observables": document, "experiments": list(registry.names())})


def _described(name: str) -> Answer:
    """One of them with its parameters."""
    from foretrain.experiments import registry
    from foretrain.experiments.sweep import observables, targets
    from foretrain.support.errors import unknown_name

    if name in observables.names():
        found = observables.get(name)
        kind, title, parameters = "observable", found.title, found.parameters
    elif name in registry.names():
        kind, title = "experiment", registry.get(name).title
        parameters = targets.of_experiment(name).parameters
    else:
        raise unknown_name("observable or experiment", name, [*observables.names(), *registry.names()])
    return Answer(
        "", [f'{kind} = "{name}": {title}', _table(parameters)], record=_document(name, title, parameters)
    )


def _table(parameters: tuple[Parameter, ...]) -> Table:
    rows = [(item.name, item.type_words, item.default_words, item.help) for item in parameters]
    return Table(("parameter", "type", "default", "help"), rows)


def _document(name: str, title: str, parameters: tuple[Parameter, ...]) -> dict[str, Any]:
    rows = [{"name": row.pop("parameter"), **row} for row in _table(parameters).records()]
    return {"name": name, "title": title, "parameters": rows}


COMMAND = Command(
    sweep,
    examples=(
        "foretrain sweep --list",
        "foretrain sweep saddle-modes --list",
        "foretrain sweep --example --dry-run",
        "foretrain sweep mine.toml -o mine.sweep --engine dask://192.168.0.7:8786 --plot mine.png",
    ),
)
