"""``foretrain reproduce``: the experiments of the registry, one by one, several or all."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from foretrain.cli.frame import Command, Seed
from foretrain.experiments import registry
from foretrain.experiments.registry import Scale
from foretrain.experiments.runs import WORKERS, answer_of, run_many
from foretrain.report.experiments_page import write_experiments_page
from foretrain.support.answers import Answer, Table
from foretrain.support.answers.folder import refuse_unwritable
from foretrain.support.errors import InputError


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="The experiments; without any, all are listed.")
    ] = None,
    run_all: Annotated[bool, typer.Option("--all", help="Run all experiments.")] = False,
    paper_scale: Annotated[bool, "The size that the source printed."] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            "--keep",
            metavar="FOLDER",
            help="Keep what is finished here and go on from it next time: parts of a long experiment; of several "
            "experiments also their data, tables, pictures and a page, index.html, that shows them.",
        ),
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option("--workers", min=1, help=f"How many experiments run at a time [default: {WORKERS}]."),
    ] = None,
    seed: Seed = 0,
) -> Answer:
    """Reproduce figures and tables of the sources, and say whether they agree.

    One experiment ends with exit code 1 if a row of its table disagrees. Several, or --all, go on after an
    experiment that fails or disagrees, and end with one table; their exit code is 0 if every tested row agrees or
    tests a claim that is known not to hold (its note says why), and 1 otherwise. --save and --plot are then
    about that table.
    """
    scale = Scale.PAPER if paper_scale else Scale.QUICK
    if run_all and names:
        raise InputError("--all runs every experiment: leave out the names, or --all.")
    chosen = registry.names() if run_all else tuple(dict.fromkeys(names or ()))
    experiments = [registry.get(name) for name in chosen]
    if not experiments:
        options = {"--paper-scale": paper_scale, "--keep": keep is not None, "--workers": workers is not None}
        useless = " and ".join(name for name, is_given in options.items() if is_given)
        if useless:
            raise InputError(f"there is nothing to run with {useless}: name experiments, or add --all.")
        entries = [registry.get(name) for name in registry.names()]
        facts = ("name", "title", "source", "seconds", "resumable")
        record = [{key: getattr(entry, key) for key in facts} for entry in entries]
        rows = []
        for entry in entries:
            about = f"{entry.seconds:.0f} s" if entry.seconds < 60 else f"{entry.seconds / 60:.0f} min"
            rows.append((entry.name, entry.title, entry.source, about))
        table = Table(("name", "what it shows", "source", "takes about"), rows)
        return Answer("", [table], record={"experiments": record})
    if keep is not None:
        refuse_unwritable(keep.expanduser())
    if len(experiments) > 1:
        try:
            run = run_many(chosen, scale, seed, keep=keep, workers=(workers or WORKERS), tell=_say)
        except KeyboardInterrupt:
            if keep is not None:
                _say(f"what is finished is kept in {keep}: the same command goes on from there.")
            raise
        answer = run.answer()
        if run.folder is None:
            return answer
        page = write_experiments_page(run)
        parts = [*answer.parts, f"Tables and pictures: {page}"]
        return replace(answer, parts=parts, record={**answer.document(), "page": str(page)})
    (experiment,) = experiments
    if workers is not None:
        raise InputError("--workers is for several experiments: name more, add --all, or leave it out.")
    if keep is not None and not experiment.resumable:
        raise InputError(
            f"{experiment.name} has no parts that could be kept: leave out --keep, or use --save."
        )
    return answer_of(experiment, scale, seed, experiment.run(scale, seed, keep=keep))


def _say(sentence: str) -> None:
    print(f"foretrain: {sentence}", file=sys.stderr, flush=True)


COMMAND = Command(
    reproduce,
    examples=(
        "foretrain reproduce",
        "foretrain reproduce log-variance --plot log-variance.png",
        "foretrain reproduce metric-fluctuations --paper-scale --save results",
        "foretrain reproduce --all --keep report",
    ),
)
