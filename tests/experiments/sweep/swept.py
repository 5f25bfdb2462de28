"""Sweeps to test with: functions in files of a user's own, and what a store holds."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from foretrain.experiments.sweep.journal import LOG
from foretrain.support.durable import scan

DRAWN = '''
import os, time
import numpy as np
import xarray

def drawn(a: int, b: float = 1.0, pause: float = 0.0, seed: int = 0):
    """Numbers that depend on all parameters, arrays, and text."""
    time.sleep(float(os.environ.get("PAUSE", pause)))
    source = np.random.default_rng(seed)
    curve = xarray.DataArray(source.normal(size=a + 1), {"step": 2 * np.arange(a + 1)}, ["step"])
    return {"value": a * b + source.normal(), "curve": curve, "side": "left" if b < 0.5 else "right"}
'''
FRAGILE = """
import os

def fragile(a: int, b: int = 0):
    if a % 3 == 2 and not os.path.exists(FLAG):
        raise ValueError(f"{a} is too much")
    return a + 10.0 * b
"""


def write_drawn(folder: Path, count: int = 20, extra: str = "") -> Path:
    """A sweep of count x 10 random points."""
    (folder / "mine.py").write_text(DRAWN)
    return write_spec(
        folder,
        f"""
        observable = "mine.py:drawn"
        seed = 3
        {extra}

        [axes]
        a = {{ from = 0, to = {count - 1}, step = 1 }}
        b = {{ from = 0.1, to = 1.0, points = 10 }}
        """,
    )


def write_fragile(folder: Path, values: str = "[0, 1, 2, 3, 4, 5]", fixed: str = "") -> Path:
    """A sweep of which every third point fails until the file "mended" is there."""
    (folder / "mine.py").write_text(FRAGILE.replace("FLAG", repr(str(folder / "mended"))))
    return write_spec(folder, f'observable = "mine.py:fragile"\n[fixed]\n{fixed}\n[axes]\na = {values}\n')


def write_spec(folder: Path, text: str, name: str = "mine.toml") -> Path:
    path = folder / name
    path.write_text("\n".join(line.strip() for line in text.strip().splitlines()) + "\n")
    return path


def content(store: Path) -> dict[str, bytes]:
    """All files of the labelled data."""
    data = store / "data.zarr"
    return {
        path.relative_to(data).as_posix(): path.read_bytes()
        for path in sorted(data.rglob("*"))
        if path.is_file()
    }


def written(store: Path, kind: str = "point") -> Counter[str]:
    """How often the log has each point."""
    try:
        data = (store / LOG).read_bytes()
    except FileNotFoundError:
        return Counter()
    return Counter(frame.entry["key"] for frame in scan(data) if frame.entry["kind"] == kind)
