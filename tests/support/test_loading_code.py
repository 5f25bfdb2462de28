from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from foretrain.support.engines import run
from foretrain.support.errors import FileError, ForetrainError, InputError
from foretrain.support.loading import load_callable, load_model


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


MODEL = """\
from __future__ import annotations
from dataclasses import dataclass
import torch

WIDTH = 3

@dataclass
class Shape:
    width: int = WIDTH

def make():
    return torch.nn.Linear(Shape().width, 1)

def sized(width, *, bias):
    return torch.nn.Linear(width, 1, bias=bias)

def optional(width=2, *args, **kwargs):
    return torch.nn.Linear(width, 1)

def broken():
    x = 1
    return x / 0

def number():
    return 3

ready = torch.nn.Linear(1, 1)
"""


def test_a_model_is_made(tmp_path: Path) -> None:
    file = write(tmp_path / "model.py", MODEL)
    model = load_model(f"{file}:make")
    assert [tuple(p.shape) for p in model.parameters()] == [(1, 3), (1,)]
    assert sum(p.numel() for p in load_model(f"{file}:optional").parameters()) == 3


def test_a_class_without_arguments_makes_a_model(tmp_path: Path) -> None:
    file = write(tmp_path / "net.py", "import torch\nclass Net(torch.nn.Module):\n    pass\n")
    assert type(load_model(f"{file}:Net")).__name__ == "Net"


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("mkae", r"'mkae'.*'make'"),
        ("zzz", "it defines: .*make"),
        ("WIDTH", "is a int"),
        ("sized", "width, bias"),
        ("number", r"int.*torch\.nn\.Module"),
        ("ready", "a model already"),
        ("broken", r"model\.py, line 22, .*ZeroDivisionError \(division by zero\)"),
    ],
)
def test_what_is_not_a_model_is_refused_in_one_sentence(tmp_path: Path, name: str, reason: str) -> None:
    file = write(tmp_path / "model.py", MODEL)
    with pytest.raises(ForetrainError, match=reason):
        load_model(f"{file}:{name}")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x = 1\ny = (\n", "line 2, raised SyntaxError"),
        ("\n\nimport not_a_module_at_all\n", "line 3, raised ModuleNotFoundError"),
        ("import sys\nsys.exit('usage: ...')\n", r"line 2, raised SystemExit \(usage: \.\.\.\)"),
        ("def f():\n    raise KeyError('k')\nf()\n", "line 2, raised KeyError"),
    ],
)
def test_a_file_that_fails_is_blamed_with_its_line(tmp_path: Path, text: str, reason: str) -> None:
    file = write(tmp_path / "model.py", text)
    with pytest.raises(FileError, match=reason) as caught:
        load_callable(f"{file}:make")
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("address", ["model.py", "model.py:", ":make", ""])
def test_an_address_needs_a_file_and_a_name(address: str) -> None:
    with pytest.raises(InputError, match=r"file\.py:name"):
        load_callable(address)


def test_a_missing_file_and_another_kind_of_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="is not a file"):
        load_callable(f"{tmp_path}/absent.py:f")
    with pytest.raises(FileError, match=r"end in \.py"):
        load_callable(f"{write(tmp_path / 'f.txt', '')}:f")


def test_neighbours_are_imported_from_the_files_own_folder(tmp_path: Path) -> None:
    for number in (1, 2):
        write(tmp_path / str(number) / "helper.py", f"VALUE = {number}\n")
        write(tmp_path / str(number) / "package" / "part.py", f"VALUE = {10 * number}\n")
        write(
            tmp_path / str(number) / "act.py",
            "import helper\nfrom package.part import VALUE\ndef f():\n    return helper.VALUE + VALUE\n",
        )
    before, path = set(sys.modules), list(sys.path)
    assert load_callable(f"{tmp_path}/1/act.py:f")() == 11
    assert load_callable(f"{tmp_path}/2/act.py:f")() == 22
    assert set(sys.modules) == before
    assert sys.path == path


def test_make_may_import_a_neighbour_when_it_is_called(tmp_path: Path) -> None:
    write(tmp_path / "parts.py", "import torch\nclass Part(torch.nn.Module):\n    pass\n")
    text = "import parts\ndef make():\n    import parts as p\n    assert p is parts\n    return p.Part()\n"
    assert type(load_model(f"{write(tmp_path / 'model.py', text)}:make")).__name__ == "Part"


def test_a_file_does_not_hide_a_library_of_its_name(tmp_path: Path) -> None:
    file = write(tmp_path / "random.py", "def f():\n    return 4\n")
    assert load_callable(f"{file}:f")() == 4
    import random

    assert hasattr(random, "random")


def test_libraries_imported_by_a_file_stay_even_if_they_lie_below_its_folder(tmp_path: Path) -> None:
    library = write(tmp_path / "env" / "site-packages" / "lib_below.py", "x = 1\n").parent
    file = write(tmp_path / "act.py", "import lib_below\ndef f():\n    return lib_below.x\n")
    code = (
        f"import sys; sys.path.append({str(library)!r})\n"
        "from foretrain.support.loading import load_callable\n"
        f"load_callable({str(file) + ':f'!r})\n"
        "assert 'lib_below' in sys.modules and 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_loaded_functions_travel_to_worker_processes(tmp_path: Path) -> None:
    write(tmp_path / "helper.py", "def double(x):\n    return 2 * x\n")
    file = write(tmp_path / "act.py", "import helper\ndef f(x):\n    return helper.double(x) + 1\n")
    function = load_callable(f"{file}:f")
    assert list(run(function, [1, 2, 3], workers=2)) == [3, 5, 7]
