"""`python -m bench.doctor`: how often the doctor is right about setups of which the truth is known.

By default the cases for tuning, one by one; `--unseen` gives the numbers of the others and nothing about any single
one, so that the doctor's rules can be tested on what their author has not seen.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

import torch

from bench.doctor.case import TUNING, UNSEEN, Case
from bench.doctor.cases import all_cases
from bench.doctor.examination import Result, examine, hidden
from bench.doctor.table import confusion, line_of, proof_line
from bench.doctor.training import prove
from foretrain.support.errors import ForetrainError, unknown_name

FOLDER = Path(".bench/doctor")


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0, or 2 for bad input; with --prove 1 if a case is not what it claims to be."""
    options = _parser().parse_args(arguments)
    torch.set_num_threads(1)
    try:
        cases = chosen_cases(options)
    except ForetrainError as error:
        print(error, file=sys.stderr)
        return 2
    if options.source:
        shown = [case for case in cases if options.reveal or case.split == TUNING]
        print("\n\n".join(dict.fromkeys(case.source for case in shown)))
        return 0
    if options.prove:
        return _prove(cases, options)
    path = options.record or FOLDER / f"{time.strftime('%Y-%m-%d-%H%M%S')}.jsonl"
    results = list(_results(cases, options, path))
    print(f"\n{confusion(results)}\nkept in {path}")
    return 0


def chosen_cases(options: argparse.Namespace) -> list[Case]:
    """Of the split that was asked for, those named; an unseen case is named only where it may be revealed."""
    split = UNSEEN if options.unseen else TUNING
    cases = [case for case in all_cases() if options.all or case.split == split]
    for name in options.only:
        if not any(name in (case.name, case.family) for case in cases):
            known = [case.name for case in cases if options.reveal or case.split == TUNING]
            raise unknown_name("case", name, known)
    return [case for case in cases if not options.only or {case.name, case.family} & set(options.only)]


def _results(cases: Sequence[Case], options: argparse.Namespace, path: Path) -> Iterator[Result]:
    """Of every case, those that the record holds already from there; the others are added to it one by one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = dict[str, Result]()
    for line in path.read_text().splitlines() if path.exists() else []:
        result = Result(**json.loads(line))
        if result.seed == options.seed and bool(options.cures) <= bool(
            result.cure or result.outcome == "refused"
        ):
            kept[result.name] = result
    missing = list[Case]()
    for case in cases:
        known = kept.get(case.name) or kept.get(hidden(case.name))
        if known is None:
            missing.append(case)
        else:
            yield known
    with path.open("a") as record:
        for case, result in _examined(missing, options):
            shown = options.reveal or case.split == TUNING
            record.write(json.dumps(result.record(shown)) + "\n")
            record.flush()
            if shown:
                print(line_of(result, case.fault), flush=True)
            yield result


def _examined(cases: Sequence[Case], options: argparse.Namespace) -> Iterator[tuple[Case, Result]]:
    if options.jobs <= 1:
        for case in cases:
            yield case, examine(case, options.seed, cures=options.cures, limit=options.limit)
        return
    with ProcessPoolExecutor(options.jobs, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
        asked = {
            pool.submit(_examine_named, case.name, options.seed, options.cures, options.limit): case
            for case in cases
        }
        for future in as_completed(asked):
            yield asked[future], future.result()


def _examine_named(name: str, seed: int, cures: bool, limit: float) -> Result:
    """In another process, to which functions inside of functions cannot be sent."""
    case = next(case for case in all_cases() if case.name == name)
    return examine(case, seed, cures=cures, limit=limit)


def _prove(cases: Sequence[Case], options: argparse.Namespace) -> int:
    """Train every case and its repaired twin: a table of those that may be shown, and how many hold."""
    print(f"{'score and loss on held-out data, after 300 steps':59} {'score':>6} {'loss':>10}")
    holding = 0
    for case in cases:
        proof = prove(case, options.seed)
        holding += proof.holds
        if options.reveal or case.split == TUNING:
            print(proof_line(proof), flush=True)
    print(f"{holding} of {len(cases)} cases are what they claim to be (seed {options.seed})")
    return int(holding < len(cases))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.doctor", description=__doc__)
    add = parser.add_argument
    add("--unseen", action="store_true", help="the unseen cases instead, of which only numbers are shown")
    add("--all", action="store_true", help="both, each as it is shown alone")
    add("--reveal", action="store_true", help="show unseen cases one by one: they are then no longer unseen")
    add("--only", action="append", default=[], metavar="NAME", help="a case or a family; repeatable")
    add("--cures", action="store_true", help="carry out the plan and train with and without it")
    add(
        "--prove", action="store_true", help="train every case and its repaired twin; the doctor is not asked"
    )
    add("--source", action="store_true", help="print how the cases are made, and stop")
    add("--jobs", type=int, default=1, metavar="N", help="processes")
    add("--seed", type=int, default=0, metavar="S", help="of data, weights and batches")
    add("--limit", type=float, default=300.0, metavar="SECONDS", help="for one case")
    add("--record", type=Path, metavar="FILE", help="JSON lines; cases that are in it are not examined again")
    return parser


if __name__ == "__main__":
    sys.exit(main())
