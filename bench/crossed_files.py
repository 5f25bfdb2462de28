"""How many files of foretrain a call crosses: ``python -m bench.crossed_files`` prints them for four calls.

A reader who follows one answer from the call to its numbers opens these files. A file counts once a function of it
runs during the call; what runs only because a module is imported meanwhile does not count. Of the doctor's checks
it is the one that crosses most.
"""

import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType

import numpy as np
import torch

import foretrain as ft
from foretrain.doctor.checks import CHECKS
from foretrain.experiments.registry import get

PACKAGE = Path(ft.__file__).parent


def crossed_files(call: Callable[[], object]) -> list[str]:
    """Return the files of the package in which a function runs during ``call``, imports apart."""
    codes: set[CodeType] = set()
    imports = threading.local()

    def watch(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        depth = getattr(imports, "depth", 0)
        if code.co_name == "_find_and_load":  # importlib's own: everything within it is the work of an import
            imports.depth = depth + {"call": 1, "return": -1}.get(event, 0)
        elif event == "call" and not depth:
            codes.add(code)

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    paths = {Path(code.co_filename) for code in codes}
    return sorted(str(path.relative_to(PACKAGE)) for path in paths if path.is_relative_to(PACKAGE))


def crossings() -> Iterator[tuple[str, int, list[str]]]:
    """Yield the name of a call, the most files it may cross, and the files that it crosses."""
    torch.manual_seed(0)
    inputs = np.random.default_rng(0).standard_normal((3, 4))
    mlp = ft.MLP("tanh", depth=4, width=50, C_W=1.0, C_b=0.0)
    network = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
    x = torch.randn(40, 4)
    yield "ft.flow(mlp, X, ['V'])", 25, crossed_files(lambda: ft.flow(mlp, inputs, ["V"]))
    yield "ft.ntk(network, x)", 18, crossed_files(lambda: ft.ntk(network, x[:8]))
    yield "foretrain reproduce depth-laws", 30, crossed_files(lambda: get("depth-laws").run())
    name, files = worst_check(x)
    yield f"ft.doctor(network, x, y, optimizer=0.05, checks=[{name!r}])", 45, files


def worst_check(x: torch.Tensor) -> tuple[str, list[str]]:
    """Return the doctor's check that crosses most files on an MLP of three layers, and these files.

    The learning rate is given, as a user has one: to choose it is a measurement of its own.
    """
    layers = [torch.nn.Linear(4, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh()]
    network = torch.nn.Sequential(*layers, torch.nn.Linear(32, 1))
    found = list[tuple[str, list[str]]]()
    for check in CHECKS:
        examine = partial(ft.doctor, network, x, x[:, :1], optimizer=0.05, checks=[check.name])
        found.append((check.name, crossed_files(examine)))
    return max(found, key=lambda one: len(one[1]))


if __name__ == "__main__":
    for name, most, files in crossings():
        print(f"{name}: {len(files)} files (at most {most})")
        if "--files" in sys.argv:
            print(*(f"  {file}" for file in files), sep="\n")
