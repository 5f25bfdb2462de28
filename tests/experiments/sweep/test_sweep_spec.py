"""Files of sweeps: what they mean, and what is said of mistakes, with the line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from swept import write_spec

from foretrain.experiments.sweep import EXAMPLE
from foretrain.experiments.sweep.spec import Plan, line_of, read_spec
from foretrain.support.errors import FileError, InputError

LONG = "{ from = 1, to = 2, points = 2000 }"
START = 'observable = "escape_time"\n[fixed]\nactivation = "tanh"\n[axes]\n'


def test_axes_and_defaults(tmp_path: Path) -> None:
    spec = read_spec(
        write_spec(tmp_path, START + "epsilon = [0.1, 1]\ndepth = { from = 3, to = 9, step = 2 }")
    )
    assert spec.axes == {"epsilon": (0.1, 1.0), "depth": (3, 5, 7, 9)}
    assert all(type(value) is float for value in spec.axes["epsilon"])
    assert all(type(value) is int for value in spec.axes["depth"])
    assert spec.count == 8
    assert spec.fixed["width"] == 64
    assert spec.fixed["method"] == "reduced"
    assert not spec.fixed.keys() & spec.axes.keys()


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{ from = 0.1, to = 0.5, points = 5 }", (0.1, 0.2, 0.3, 0.4, 0.5)),
        ("{ from = 0.1, to = 0.5, step = 0.1 }", (0.1, 0.2, 0.3, 0.4, 0.5)),
        ("{ from = 0.1, to = 0.55, step = 0.1 }", (0.1, 0.2, 0.3, 0.4, 0.5)),
        ('{ from = 1e-3, to = 0.1, points = 3, spacing = "log" }', (0.001, 0.01, 0.1)),
    ],
)
def test_ranges(text: str, values: tuple[float, ...], tmp_path: Path) -> None:
    assert read_spec(write_spec(tmp_path, f"{START}epsilon = {text}")).axes["epsilon"] == values


def test_the_example_can_be_run() -> None:
    assert read_spec(EXAMPLE).count == 17 * 31


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('observable = "escape_time\n', 1, "this is not TOML"),
        ("title = 'x'\n\n[axes]\na = [1]\n[axes]", 5, "this is not TOML"),
        ("title = 'x'\n[axes]\na = [1]", 1, "observable or an experiment"),
        (f"{START}epsilon = [0.1]\n[other]\n", 6, "other is"),
        (f"repeat = 3\n{START}epsilon = [0.1]", 1, "repeat .*repeats"),
        (f"seed = true\n{START}epsilon = [0.1]", 1, "seed: .*integer"),
        (f"repeats = '3'\n{START}epsilon = [0.1]", 1, "repeats: .*integer"),
        ("axes = [1]\nobservable = 'phase'", 1, r"axes .*\[axes\]"),
        ("observable = 'phase'\n[[axes]]\nC_W = [1]", 2, "axes"),
        (f"{START}epsilon = [" + "1" * 5000 + "]", 5, "this is not TOML"),
        (f"seed = -1\n{START}epsilon = [0.1]", 1, "seed: .*0"),
        (f"{START}epsilom = [0.1]", 5, "'epsilom'.*'epsilon'"),
        (f"{START}epsilon = [nan]", 5, "epsilon .*nan"),
        (f"{START}epsilon = [0.1]\nbeta = [1, 1.0]", 6, "beta has 1.0 twice"),
        (f"{START}epsilon = [0.1]\ndepth = [100000000000000000000]", 6, "give a number below 2\\*\\*63"),
        (f"{START}epsilon = [2020-01-01]", 5, "epsilon .*datetime"),
        (START.replace('"tanh"', "nan") + "epsilon = [0.1]", 3, "activation .*nan"),
        (START + "epsilon = [0.1]\n[fixed.beta]\nx = 1", 6, "beta takes a number"),
        (f"{START}epsilon = []", 5, "axes.epsilon"),
        (f"{START}epsilon = 0.1", 5, "axes.epsilon"),
        (f"{START}epsilon = [[0.1]]", 5, "every value"),
        (f"{START}epsilon = ['small']", 5, "epsilon .*'small'"),
        (f"{START}epsilon = [0.1]\ndepth = [3.5]", 6, "depth .*3.5"),
        (f"{START}epsilon = [0.1]\ndepth = [true]", 6, "depth .*True"),
        (f"{START}epsilon = [0.1, 0.2, 0.1]", 5, "epsilon has 0.1 twice"),
        (f"{START}epsilon = {{ from = 1, to = 0, points = 3 }}", 5, "from .*below"),
        (f"{START}epsilon = {{ from = 0, to = 1, points = 10000000000 }}", 5, "give at most 1,000,000"),
        (f"{START}epsilon = {{ from = 0, to = 1 }}", 5, "points or step"),
        (f"{START}epsilon = {{ from = 0, to = 1, points = 3, spacing = 'log' }}", 5, "from .*above 0"),
        (f"{START}epsilon = {{ from = 0, to = 1, point = 3 }}", 5, "from, to"),
        (f"{START}epsilon = [0.1]\nactivation = ['relu']", 3, "activation .*axis"),
        (f"{START}depth = [3]", 1, "escape_time needs epsilon"),
        ('observable = "escape_time"\n[fixed]\nactivation = "tanh"\nepsilon = 0.1', 1, "nothing to sweep over"),
        (f"{START}epsilon = {LONG}\nbeta = {LONG}", 4, "4,000,000 points"),
        (f"repeats = 3\n{START}epsilon = [0.1]", 1, "no seed.*repeats"),
        ('repeats = 3\nobservable = "compare"\n[axes]\nactivation = ["relu"]\nseed = [1]', 1, "seed is given"),
        ("title = 'x'\nobservable = 'fow'\n[axes]\na = [1]", 2, "did you mean 'flow'"),
        ("title = 'x'\nexperiment = 'saddle'\n[axes]\nseed = [1]", 2, "unknown experiment 'saddle'"),
        ("observable = 'none.py:f'\n[axes]\na = [1]", 1, "none.py"),
        ("experiment = 'activation-curves'\n[axes]\ngain = [1]", 3, "unknown parameter 'gain'"),
    ],
)  # fmt: skip
def test_mistakes_are_told_with_their_line(text: str, line: int, words: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=words) as caught:
        read_spec(write_spec(tmp_path, text))
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'mine.toml'}, line {line}: ")
    assert message.count("\n") == 0


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"No such file.*TOML"):
        read_spec(tmp_path / "none.toml")


TEXT = """\
a = 1
b.c = 2
[first]  # one
x = [
  1,
]
"y z" = 3
[first.inner]
w = { from = 1 }
"""


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("a",), 1),
        (("b", "c"), 2),
        (("b",), 2),
        (("first",), 3),
        (("first", "x", 0), 4),
        (("first", "y z"), 7),
        (("first", "inner"), 8),
        (("first", "inner", "w", "from"), 9),
        (("first", "absent"), 3),
        (("absent",), 1),
        ((), 1),
    ],
)
def test_lines_of_entries(path: tuple[str | int, ...], line: int) -> None:
    assert line_of(TEXT, path) == line


@pytest.mark.parametrize("change", [lambda t: t.replace("\n", "\r\n"), lambda t: "\ufeff" + t, str])
def test_files_of_other_editors(change: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_bytes(change(f'title = "ε\u2028größer"\n{START}epsilom = [0.1]\n').encode())
    with pytest.raises(InputError, match=r"line 6: .*'epsilom'"):
        read_spec(path)


@pytest.mark.parametrize("path", [".", "/", ""])
def test_a_folder_is_no_file(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(FileError, match="cannot be read"):
        Plan.of(path, None)


@pytest.mark.slow
def test_long_axes_are_checked_fast(tmp_path: Path) -> None:
    """With all pairs of values compared this would take an hour."""
    spec = read_spec(write_spec(tmp_path, f"{START}epsilon = {{ from = 0.1, to = 1, points = 500000 }}"))
    assert spec.count == 500_000
