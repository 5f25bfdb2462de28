"""``foretrain sweep``: any experiment or observable over any of its parameters."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foretrain.cli.frame import Command, command_answer
from foretrain.cli.options import Engine, Workers
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep import Price, Sweep

_MOST_ROWS = 24  # of points in the table; the store has all
_MOST_TOLD = 5  # errors and warnings


def sweep(
    spec: Annotated[
        Path | None,
        typer.Argument(help="TOML file that says what is swept over what; with --list, a name to be shown."),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="STORE", help="Folder of the points [default: SPEC.sweep]."),
    ] = None,
    example: Annotated[
        bool,
        typer.Option("--example", help="Take the built-in phase diagram of tanh, 527 points, as the file."),
    ] = False,
    list_all: Annotated[
        bool, typer.Option("--list", help="List what can be swept; with a name, all its parameters.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only say how many points are left and what they will cost.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Compute failed points again.")
    ] = False,
    extend: Annotated[
        bool,
        typer.Option(
            "--extend", help="Go on with a store although axes have grown or your code has changed."
        ),
    ] = False,
    engine: Engine = None,
    workers: Workers = None,
    quantity: Annotated[
        str | None, typer.Option("--quantity", help="What to draw and print [default: all numbers].")
    ] = None,
) -> Answer:
    """Compute an observable, an experiment or a function of your own at every point of a grid of parameters.

    Points are kept as they finish: the same command goes on after any interruption, a kill included. A point's
    numbers, random ones too, depend on its parameters alone. Failed points are noted with their error (exit code 1).
    """
    if list_all and not example:
        from foretrain.cli.sweep.listing import described, everything

        return everything() if spec is None else described(str(spec))
    if (spec is not None) == example or list_all:
        raise InputError("give one of these: the file of a sweep, --example, or --list.")
    from foretrain.experiments.sweep import EXAMPLE, price
    from foretrain.experiments.sweep import sweep as run

    if spec is None:
        spec, store = EXAMPLE, store or Path(EXAMPLE.stem).with_suffix(".sweep")
    options: dict[str, Any] = {"engine": engine, "workers": workers, "retry_failed": retry_failed}
    if dry_run:
        return _estimate(price(spec, store, **options))
    return _answer(run(spec, store, extend=extend, **options), quantity)


def _estimate(found: Price) -> Answer:
    from foretrain.support.memory import available_bytes, human_bytes

    seconds = found.seconds_per_point
    used = min(found.workers, max(found.left, 1))
    needed, room = found.bytes_per_worker * used, available_bytes()
    text = [f"{found.count} points: {found.done} done, {found.failed} failed, {found.left} to compute."]
    if found.left and found.at_least:
        text.append(
            f"Time: more than {_duration(found.seconds)} on {used} workers; the point that was tried was not "
            f"finished after {seconds[0]:.0f} s."
        )
    elif found.left and seconds:
        text.append(
            f"Time: about {_duration(found.seconds)} on {used} workers; {min(seconds):.3g} to {max(seconds):.3g} s "
            f"for a point, from {found.measured}."
        )
    if needed:
        text.append(
            f"Memory: about {human_bytes(found.bytes_per_worker)} for each of {used} workers, {human_bytes(needed)} "
            f"in all; {human_bytes(room)} are available{'' if needed <= room else ', so use fewer --workers'}."
        )
    text += [f"A point that was tried fails: {error}" for error in dict.fromkeys(found.errors)]
    document = {
        "points": found.count,
        "done": found.done,
        "failed": found.failed,
        "left": found.left,
        "workers": found.workers,
        "seconds": found.seconds,
        "at_least": found.at_least,
        "seconds_per_point": list(seconds[:_MOST_ROWS]),
        "bytes_per_worker": found.bytes_per_worker,
        "errors": list(found.errors),
    }
    return command_answer(document, text)


def _answer(found: Sweep, quantity: str | None) -> Answer:
    from foretrain.report.sweep import sweep_figure

    data, spec = found.data, found.spec
    text: list[str | Table] = [
        f"{spec.title or spec.target.name}: {found.done} of {spec.count} points done, {len(found.errors)} failed, "
        f"{found.computed} computed now.",
        *_table(data, quantity),
    ]
    errors = list(found.errors.items())
    text += [f"Failed at {where}: {error}" for where, error in errors[:_MOST_TOLD]]
    if errors:
        rest = len(errors) - _MOST_TOLD
        more = f"{rest} more have failed; the store names them all. " if rest > 0 else ""
        own = ", and --extend if your function changes" if spec.target.code else ""
        text.append(f"{more}Mend the cause and add --retry-failed{own}.")
    text += [f"Warning at {where}: {said}" for where, said in list(found.warnings.items())[:_MOST_TOLD]]
    if len(found.warnings) > _MOST_TOLD:
        text.append(f"{len(found.warnings) - _MOST_TOLD} more points have warnings.")
    text.append(f"Store: {found.store}, for foretrain.load")
    document = {
        "title": data.attrs["title"],
        "target": spec.target.name,
        "store": str(found.store),
        "points": spec.count,
        "done": found.done,
        "computed": found.computed,
        "axes": {name: list(values) for name, values in spec.axes.items()},
        "repeats": spec.repeats,
        "fixed": spec.fixed,
        "values": {name: data[name].values for name in _quantities(data, quantity)},
        "errors": dict(errors),
        "warnings": dict(found.warnings),
    }
    return command_answer(
        document, text, data=data, figure=partial(sweep_figure, data, quantity), holds=not errors
    )


def _quantities(data: xarray.Dataset, quantity: str | None) -> list[str]:
    from foretrain.experiments.sweep.answers import ERROR, STATUS
    from foretrain.support.errors import unknown_name

    known = [str(name) for name in data.data_vars if name not in (STATUS, ERROR)]
    if quantity is None:
        return known
    if quantity not in known:
        raise unknown_name("quantity", quantity, known)
    return [quantity]


def _table(data: xarray.Dataset, quantity: str | None) -> list[str | Table]:
    """Points in rows, as many as fit on a screen; what has axes of its own is left to the store."""
    from itertools import product

    from foretrain.experiments.sweep.answers import STATUS

    axes = [str(dim) for dim in data[STATUS].dims]
    shown = [name for name in _quantities(data, quantity) if data[name].dims == data[STATUS].dims]
    if not shown:
        found = ", ".join(_quantities(data, quantity))
        return [f"Found, with axes of its own, to be read from the store: {found}."] if found else []
    places = list(product(*(range(data.sizes[axis]) for axis in axes)))
    step = -(-len(places) // _MOST_ROWS)
    rows = [
        [
            *(data[axis].values[i].item() for axis, i in zip(axes, place)),
            *(data[name].values[place].item() for name in shown),
        ]
        for place in places[::step]
    ]
    table = Table((*axes, *shown), rows)
    return [table] if step == 1 else [table, f"These are {len(rows)} of the {len(places)} points."]


def _duration(seconds: float) -> str:
    for size, unit in ((86400, "days"), (3600, "hours"), (60, "minutes")):
        if seconds >= 1.5 * size:
            return f"{seconds / size:.2g} {unit}"
    return f"{seconds:.2g} seconds"


COMMAND = Command(
    sweep,
    examples=(
        "foretrain sweep --list",
        "foretrain sweep saddle-modes --list",
        "foretrain sweep --example --dry-run",
        "foretrain sweep mine.toml -o mine.sweep --engine dask://192.168.0.7:8786 --plot mine.png",
    ),
    saves=True,
    draws=True,
)
