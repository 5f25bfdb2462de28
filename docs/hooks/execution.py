"""Runs the code of pages, each in a process of its own, and keeps the answers until code or library change."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from cells import Cell

ROOT = Path(__file__).resolve().parents[2]
CACHE = ROOT / ".cache" / "docs"
PROGRAM = Path(__file__).with_name("run_cells.py")
LONGEST = 600  # seconds for one page
AT_ONCE = 2


class PageError(Exception):
    """The code of a page failed; the message shows the cell and the traceback."""


@dataclass(frozen=True)
class Answer:
    """What a code cell printed, its result as a notebook shows it, and the pictures it drew, as SVG."""

    text: str
    html: str
    figures: tuple[str, ...]


def answers_of_pages(pages: dict[str, list[Cell]]) -> dict[str, list[Answer]]:
    """The answers of every code cell of every page, from the cache where they are still true.

    Prints a line for every page that is run: its name, its seconds and how many are left.
    """
    waiting = [page for page, cells in pages.items() if _codes(cells) and not place_of(cells).exists()]
    if waiting:
        print(f"running the code of {len(waiting)} of {len(pages)} pages, {AT_ONCE} at a time:", flush=True)

    def seconds_of(page: str) -> float:
        start = time.perf_counter()
        answers(page, pages[page])
        return time.perf_counter() - start

    with ThreadPoolExecutor(AT_ONCE) as pool:
        runs = {pool.submit(seconds_of, page): page for page in waiting}
        try:
            for number, ended in enumerate(as_completed(runs), start=1):
                print(f"  {number:2} of {len(runs)}: {runs[ended]}, {ended.result():.0f} s", flush=True)
        except PageError:
            pool.shutdown(cancel_futures=True)
            raise
    return {page: answers(page, cells) for page, cells in pages.items()}


def answers(page: str, cells: list[Cell]) -> list[Answer]:
    """The answers of the code cells of one page."""
    codes = _codes(cells)
    if not codes:
        return []
    kept = place_of(cells)
    if not kept.exists():
        text = run(page, codes)
        CACHE.mkdir(parents=True, exist_ok=True)
        unfinished = kept.with_suffix(f".{os.getpid()}")
        unfinished.write_text(text, encoding="utf-8")
        unfinished.replace(kept)
    return [
        Answer(answer["text"], answer["html"], tuple(answer["figures"]))
        for answer in json.loads(kept.read_text(encoding="utf-8"))
    ]


def place_of(cells: list[Cell]) -> Path:
    """Where the answers are kept once the cells have run with this library; another one has another place."""
    return CACHE / f"{_digest(_codes(cells))}.json"


def run(page: str, codes: list[str]) -> str:
    """Run the cells in a new process and an empty folder; its JSON answer, or PageError."""
    settings = {"MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "PYTHONHASHSEED": "0"}
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.run(
            [sys.executable, str(PROGRAM)],
            input=json.dumps({"page": page, "cells": codes}),
            capture_output=True,
            text=True,
            cwd=folder,
            env={**os.environ, **settings, "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"},
            timeout=LONGEST,
            check=False,
        )
    if process.returncode != 0:
        raise PageError(f"the code of {page} failed:\n{process.stderr}")
    return process.stdout


def _codes(cells: list[Cell]) -> list[str]:
    return [cell.text for cell in cells if cell.code]


def _digest(codes: list[str]) -> str:
    seen = hashlib.sha256(_library().encode())
    for code in codes:
        seen.update(code.encode() + b"\0")
    return seen.hexdigest()[:24]


@cache
def _library() -> str:
    """A digest of everything that the answers depend on besides the code of the page."""
    seen = hashlib.sha256(PROGRAM.read_bytes())
    for name in ("numpy", "scipy", "torch", "xarray", "matplotlib", "plotly"):
        seen.update(f"{name} {version(name)}, Python {platform.python_version()}".encode())
    for folder in ("src/foretrain", "bench"):
        for file in sorted((ROOT / folder).rglob("*")):
            if file.suffix in {".py", ".json", ".md", ".css", ".js"}:
                seen.update(str(file.relative_to(ROOT)).encode() + file.read_bytes())
    return seen.hexdigest()
