"""Functions in users' Python files, addressed as ``file.py:name``."""

from __future__ import annotations

import importlib.util
import inspect
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, cast

from foretrain.support.errors import FileError, InputError

if TYPE_CHECKING:
    import torch


def load_callable(address: str) -> Callable[..., Any]:
    """The function, class or other callable that ``file.py:name`` points to."""
    path, name = _split(address)
    with _running(path) as module:
        return _callable(module, path, name)


def load_model(address: str) -> torch.nn.Module:
    """The model that the function at ``model.py:make``, called without arguments, returns."""
    import torch

    path, name = _split(address)
    with _running(path) as module:
        make = _callable(module, path, name)
        if isinstance(make, torch.nn.Module):
            raise InputError(
                f"{address} is a model already: give a function without arguments that returns it."
            )
        _refuse_arguments(address, make)
        with _blaming(path):
            model = make()
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"{address} returns a {type(model).__name__}: let it return a torch.nn.Module.")
    return model


def _split(address: str) -> tuple[Path, str]:
    file, colon, name = address.rpartition(":")
    if not colon or not file or not name:
        raise InputError(
            f"{address!r} is not of the form file.py:name: say which function of the file to use."
        )
    return Path(file).expanduser(), name


def _callable(module: ModuleType, path: Path, name: str) -> Callable[..., Any]:
    if not hasattr(module, name):
        own = [key for key in vars(module) if not key.startswith("_")]
        near = get_close_matches(name, own, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]!r}?" if near else f"it defines: {', '.join(own) or 'nothing'}."
        raise InputError(f"{path} has no {name!r}: {hint}")
    value = getattr(module, name)
    if not callable(value):
        raise InputError(f"{path}:{name} is a {type(value).__name__}: give the name of a function.")
    return cast("Callable[..., Any]", value)


@contextmanager
def _running(path: Path) -> Iterator[ModuleType]:
    """The module made by running a file that, until the block ends, can import its neighbours.

    Afterwards the module and its neighbours are forgotten. So they cannot be confused with those of another
    user file, and their functions travel to worker processes by value, as nobody could import them there.
    """
    if not path.is_file():
        raise FileError(f"{path} is not a file: check the path of the Python file.")
    # A private name, so that a file called random.py does not hide the library of that name.
    specification = importlib.util.spec_from_file_location(f"_foretrain_user_{uuid.uuid4().hex[:8]}", path)
    if specification is None or specification.loader is None:
        raise FileError(f"{path} is not a Python file: its name must end in .py.")
    module = importlib.util.module_from_spec(specification)
    folder, before = path.resolve().parent, set(sys.modules)
    sys.path.insert(0, str(folder))
    sys.modules[module.__name__] = module  # dataclasses look their module up while the file runs
    try:
        with _blaming(path):
            specification.loader.exec_module(module)
        yield module
    finally:
        sys.path.remove(str(folder))
        del sys.modules[module.__name__]
        for name in [name for name in sys.modules if _is_neighbour(name, folder, before)]:
            del sys.modules[name]


def _is_neighbour(name: str, folder: Path, before: set[str]) -> bool:
    """Whether a module came from the folder itself, not from an environment that happens to lie inside it."""
    top = name.partition(".")[0]
    if top in before:
        return False
    module = sys.modules[name]
    places = [module.__file__] if getattr(module, "__file__", None) else getattr(module, "__path__", [])
    return any(
        Path(str(place)).resolve().is_relative_to(folder / part)
        for place in places
        for part in (top, f"{top}.py")
    )


@contextmanager
def _blaming(path: Path) -> Iterator[None]:
    """Report whatever a user's file raises in one sentence, with the line of the file."""
    try:
        yield
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        places: list[tuple[str | None, int | None]] = [(frame.filename, frame.lineno) for frame in frames]
        if isinstance(error, SyntaxError):
            places.append((error.filename, error.lineno))
        own = [number for file, number in places if file and Path(file).resolve() == path.resolve()]
        line = own[-1] if own else None
        where = f"{path}, line {line}," if line else f"{path}"
        raise FileError(f"{where} raised {type(error).__name__} ({error}): correct the file.") from error


def _refuse_arguments(address: str, make: Callable[..., Any]) -> None:
    try:
        parameters = inspect.signature(make).parameters.values()
    except ValueError:  # some built-in callables do not say what they take
        return
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
    if needed:
        raise InputError(
            f"{address} needs {', '.join(needed)}, but it is called without arguments: "
            "wrap it in a function that needs none."
        )
