"""Imports point only along the arrows of the design, and theory never sees torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "src" / "foretrain"
MODULES = sorted(PACKAGE.rglob("*.py"))

BELOW = {
    "support": (),
    "activations": ("support",),
    "gaussian": ("activations",),
    "theory": ("gaussian",),
    "saddle": ("gaussian",),
    "operators": ("support",),
    "empirical": ("operators",),
    "training": ("empirical",),
    "compare": ("theory", "saddle", "empirical", "training"),
    "experiments": ("compare",),
    "doctor": ("compare",),
    "report": ("experiments", "doctor"),
    "cli": ("report",),
}
WITHOUT_TORCH = ("gaussian", "theory", "saddle")  # not even inside a function
WITHOUT_TORCH_AT_IMPORT = ("", "support", "activations", "experiments", "cli")
TORCH_ADAPTERS = ("activations/_torch.py",)


@dataclass(frozen=True)
class Import:
    """One imported module, and whether importing the importer already imports it."""

    module: str
    line: int
    immediate: bool


def allowed(room: str) -> set[str]:
    """All rooms that a room may import: itself and everything below."""
    return {room}.union(*(allowed(below) for below in BELOW[room]))


def imports(tree: ast.AST, package: str, immediate: bool = True) -> Iterator[Import]:
    """All imports of a file, also those inside functions and those for type checkers only."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            yield from (Import(alias.name, node.lineno, immediate) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parts = package.split(".")[: 1 - node.level or None] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from (Import(f"{base}.{alias.name}", node.lineno, immediate) for alias in node.names)
        elif not isinstance(node, ast.expr):  # which cannot hold any, and are most of a file
            later = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            typing = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            yield from imports(node, package, immediate and not later and not typing)


def room_of(path: Path) -> str:
    """The room of a file; empty for the files of the package itself."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0] if len(parts) > 1 or parts[0] in BELOW else ""


def violations(path: Path, source: str) -> list[str]:
    package = ".".join(("foretrain", *path.relative_to(PACKAGE).parent.parts))
    room = room_of(path)
    found = []
    for item in imports(ast.parse(source), package):
        top, _, rest = item.module.partition(".")
        target = rest.partition(".")[0]
        if top == "foretrain" and room and target not in (*allowed(room), "_version"):
            found.append(f"line {item.line}: {room} must not import {target or 'the whole package'}")
        adapter = path.relative_to(PACKAGE).as_posix() in TORCH_ADAPTERS
        never = room in WITHOUT_TORCH
        not_at_import = room in WITHOUT_TORCH_AT_IMPORT and item.immediate and not adapter
        if top == "torch" and (never or not_at_import):
            found.append(f"line {item.line}: {room or 'the package'} must not import torch here")
    return found


def test_imports_follow_the_design() -> None:
    offences = [
        f"{path.relative_to(PACKAGE)}, {offence}"
        for path in MODULES
        for offence in violations(path, path.read_text(encoding="utf-8"))
    ]
    assert offences == []


def test_every_room_is_in_the_design() -> None:
    rooms = {room_of(path) for path in MODULES} - {""}
    assert rooms <= set(BELOW)
    assert {"support", "activations", "gaussian", "theory", "experiments", "cli"} <= rooms


def test_the_graph_says_what_the_design_says() -> None:
    assert allowed("support") == {"support"}
    assert allowed("theory") == {"support", "activations", "gaussian", "theory"}
    assert allowed("training") == {"support", "operators", "empirical", "training"}
    assert "doctor" not in allowed("experiments")
    assert allowed("cli") == set(BELOW)


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("support/x.py", "from foretrain.activations import activation"),
        ("support/x.py", "def f():\n    import foretrain.theory.flow"),
        ("theory/x.py", "from foretrain import empirical"),
        ("theory/x.py", "from ..saddle import classes"),
        ("theory/deep/x.py", "from ...empirical import ntk"),
        ("theory/x.py", "def f():\n    import torch"),
        ("gaussian/x.py", "from torch import nn"),
        ("support/x.py", "import torch.nn"),
        ("support/x.py", "try:\n    import torch\nexcept ImportError:\n    pass"),
        ("activations/_catalogue.py", "class A:\n    import torch"),
        ("__init__.py", "import torch"),
        ("experiments/x.py", "import foretrain as ft"),
        ("experiments/x.py", "from foretrain import activation"),
        ("experiments/x.py", "from foretrain.report import html"),
    ],
)
def test_the_check_finds_what_it_looks_for(file: str, source: str) -> None:
    assert len(violations(PACKAGE / file, source)) >= 1


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("support/x.py", "def f():\n    import torch"),
        ("support/x.py", "if TYPE_CHECKING:\n    import torch"),
        ("support/store.py", "from foretrain._version import __version__"),
        ("support/loading/x.py", "from ..errors import InputError"),
        ("theory/x.py", "from foretrain import gaussian"),
        ("activations/_torch.py", "import torch"),
        ("empirical/x.py", "import torch\nfrom foretrain.operators import lanczos"),
        ("cli/x.py", "from foretrain.doctor import findings"),
    ],
)
def test_the_check_lets_pass_what_is_allowed(file: str, source: str) -> None:
    assert violations(PACKAGE / file, source) == []


def test_importing_the_theory_does_not_load_torch() -> None:
    rooms = ("support", "activations", "gaussian", "theory", "saddle")
    names = [
        ".".join(("foretrain", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
        for path in MODULES
        if room_of(path) in rooms and path.relative_to(PACKAGE).as_posix() not in TORCH_ADAPTERS
    ]
    code = (
        "import importlib, sys\n"
        f"for name in {names!r}: importlib.import_module(name)\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
