"""Loading what users bring: functions in Python files, data in npz files, weights in checkpoints.

A Python file is run, as its user asked for. Data and checkpoints are not: no pickle is ever executed.
"""

from __future__ import annotations

import importlib.util
import inspect
import pickle
import sys
import traceback
import uuid
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import FileError, ForetrainError, InputError, NotSupportedError
from foretrain.support.memory import require_memory

if TYPE_CHECKING:
    import torch

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_NAMES = ("x", "y", "x_test", "y_test", "mask")
# What training scripts call the weights inside a larger record.
_WRAPPERS = ("state_dict", "model_state_dict")
_LISTED = 3


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
        try:
            parameters = [*inspect.signature(make).parameters.values()]
        except ValueError:  # some built-in callables do not say what they take
            parameters = []
        optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        needed = [p.name for p in parameters if p.default is p.empty and p.kind not in optional]
        if needed:
            raise InputError(
                f"{address} needs {', '.join(needed)}, but it is called without arguments: "
                "wrap it in a function that needs none."
            )
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
        # Neighbours came from the folder itself, not from an environment that happens to lie inside it.
        for name, loaded in list(sys.modules.items()):
            top = name.partition(".")[0]
            if top in before:
                continue
            places = (
                [loaded.__file__] if getattr(loaded, "__file__", None) else getattr(loaded, "__path__", [])
            )
            own = folder / top, folder / f"{top}.py"
            if any(Path(str(place)).resolve().is_relative_to(part) for place in places for part in own):
                del sys.modules[name]


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


@dataclass(frozen=True, repr=False)
class Samples:
    """Inputs, samples first, and what else a file holds: for what needs no targets but can use them."""

    x: Array
    y: Array | None = None
    x_test: Array | None = None
    y_test: Array | None = None
    mask: Array | None = None  # of the targets: positive where they count, with their first axes

    def __repr__(self) -> str:
        arrays = ((name, array) for name, array in vars(self).items() if array is not None)
        return f"{type(self).__name__}({', '.join(f'{name} {array.shape}' for name, array in arrays)})"


@dataclass(frozen=True, repr=False)
class Data(Samples):
    """Inputs and targets, samples first; test inputs may come without targets (to be predicted)."""

    y: Array


def load_inputs(path: str | Path) -> Array:
    """The inputs (samples, components) of an npz file; targets may be there but need not."""
    source = Path(path).expanduser()
    arrays = _read(source)
    if "x" not in arrays:
        raise InputError(f"`data` {source} has no array 'x': write it with numpy.savez(path, `x=`...).")
    x = arrays["x"]
    _check_values(source, "x", x)
    if x.ndim == 1:
        raise InputError(
            f"x in {source} has shape {x.shape}: give (samples, components), for one input x[None]."
        )
    return np.asarray(x.reshape(len(x), -1), dtype=np.float64)


def load_data(path: str | Path) -> Data:
    """Read and check an npz file made with ``numpy.savez(path, x=…, y=…)``."""
    arrays = _checked(Path(path).expanduser(), ("x", "y"))
    return Data(**arrays)


def load_model_data(path: str | Path) -> tuple[Array | dict[str, Array], Array]:
    """Inputs and targets; without ``x`` the other arrays but x_test and y_test are arguments of a model by name."""
    source = Path(path).expanduser()
    arrays = _read(source, any_name=True)
    named = {name: array for name, array in arrays.items() if name not in _NAMES or name == "mask"}
    if "x" in arrays or "y" not in arrays or not named:
        data = load_data(source)
        return data.x, data.y
    for name, array in {**named, "y": arrays["y"]}.items():
        _check_values(source, name, array)
    return named, arrays["y"]


def load_mask(path: str | Path) -> Array | None:
    """The mask of the targets, where a file of x and y has one; without x it is an argument of the model."""
    arrays = _read(Path(path).expanduser(), any_name=True)
    return arrays.get("mask") if "x" in arrays else None


def load_samples(path: str | Path) -> Samples:
    """The same for a file that must hold ``x`` only."""
    return Samples(**_checked(Path(path).expanduser(), ("x",)))


def _checked(source: Path, needed: tuple[str, ...]) -> dict[str, Array]:
    arrays = _read(source)
    for name in needed:
        if name not in arrays:
            written = ", ".join(f"{known}=..." for known in needed)
            raise InputError(
                f"`data` {source} has no array {name!r}: write it with numpy.savez(path, {written})."
            )
    if "y_test" in arrays and "x_test" not in arrays:
        raise InputError(f"{source} has y_test without x_test: add the test inputs or leave both out.")
    for name, array in arrays.items():
        _check_values(source, name, array)
    for inputs, targets in (("x", "y"), ("x_test", "y_test")):
        if inputs in arrays and targets in arrays and len(arrays[inputs]) != len(arrays[targets]):
            raise InputError(
                f"{source} has {len(arrays[inputs])} samples in {inputs} but {len(arrays[targets])} in "
                f"{targets}: give one target per input."
            )
    if "mask" in arrays:
        mask, y = arrays["mask"], arrays.get("y", np.zeros(0))
        if mask.ndim > y.ndim or any(a not in (1, b) for a, b in zip(mask.shape, y.shape)):
            raise InputError(
                f"mask in {source} has shape {mask.shape}, but y {y.shape}: give the mask the first axes of y, such "
                "as (samples, steps)."
            )
    for training, test in (("x", "x_test"), ("y", "y_test")):
        if test in arrays and training in arrays and arrays[test].shape[1:] != arrays[training].shape[1:]:
            raise InputError(
                f"in {source} a sample of {test} has shape {arrays[test].shape[1:]} but one of {training} "
                f"{arrays[training].shape[1:]}: give both the same shape."
            )
    return arrays


def _read(source: Path, any_name: bool = False) -> dict[str, Array]:
    if not source.is_file():
        raise FileError(f"`data` {source} is not a file: check the path of the data.")
    if not zipfile.is_zipfile(source):
        raise FileError(
            f"`data` {source} is not an npz file: write it with numpy.savez(path, `x=`..., `y=`...)."
        )
    try:
        with zipfile.ZipFile(source) as archive:
            size = sum(member.file_size for member in archive.infolist())
        require_memory(size, str(source), "use fewer samples or a smaller type of number")
        with np.load(source, allow_pickle=False) as arrays:
            found: dict[str, Array] = {}
            for name in arrays.files:
                if name not in _NAMES and not any_name:
                    known = ", ".join(_NAMES)
                    raise InputError(
                        f"{source} holds {name!r}, but only {known} have a meaning: rename or remove it."
                    )
                found[name] = arrays[name]
                if not isinstance(found[name], np.ndarray):  # a member that is not an array comes as bytes
                    raise FileError(
                        f"{source} holds {name!r}, which is not an array: write it with numpy.savez."
                    )
            return found
    except ForetrainError:
        raise
    except (ValueError, zipfile.BadZipFile, zlib.error, EOFError, OSError) as error:
        if isinstance(error, ValueError) and "allow_pickle" in str(error):
            raise FileError(
                f"{source} holds pickled Python objects, which are never loaded since they could run code: "
                "save plain arrays of numbers."
            ) from error
        raise FileError(
            f"`data` {source} is damaged ({error}): write it again with numpy.savez(path, `x=`..., `y=`...)."
        ) from error


def _check_values(source: Path, name: str, array: Array) -> None:
    if array.dtype.kind not in "biuf":
        raise InputError(f"{name} in {source} has type {array.dtype}: save real numbers.")
    if array.ndim == 0 or array.size == 0:
        raise InputError(f"{name} in {source} has shape {array.shape}: it needs at least one sample.")
    bad = np.count_nonzero(~np.isfinite(array))
    if bad:
        raise InputError(
            f"{name} in {source} has {bad} values that are infinite or not a number: remove them."
        )


class Digits(NamedTuple):
    """1797 images of 8 x 8 pixels (image, pixel) with values from 0 to 16, and the digits they show."""

    images: NDArray[np.float64]
    labels: NDArray[np.int64]


def handwritten_digits() -> Digits:
    """The handwritten digits of scikit-learn, all of them; it is asked for only here."""
    try:
        source = import_module("sklearn.datasets")
    except ImportError as error:
        raise NotSupportedError(
            "this needs the handwritten digits of scikit-learn: install it with `pip install scikit-learn`."
        ) from error
    images, labels = source.load_digits(return_X_y=True)
    return Digits(np.asarray(images, dtype=np.float64), np.asarray(labels, dtype=np.int64))


def load_checkpoint(model: torch.nn.Module, path: str | Path) -> None:
    """Put the weights of a checkpoint into the model, all of them or none."""
    source = Path(path).expanduser()
    weights = _weights(source)
    _check_match(source, model.state_dict(), weights)
    model.load_state_dict(weights)


def _weights(source: Path) -> dict[str, torch.Tensor]:
    import torch

    if not source.is_file():
        raise FileError(f"`checkpoint` {source} is not a file: check its path.")
    require_memory(source.stat().st_size, str(source), "save the weights only, without the optimizer's state")
    try:
        content = torch.load(source, map_location="cpu", weights_only=True)
    # Torch raises many kinds of errors here, of which only the first line is meant for people.
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        raise FileError(
            f"`checkpoint` {source} is damaged or holds Python objects besides weights, whose loading could run "
            "code: write it with torch.save(model.state_dict(), path)."
        ) from error
    for wrapper in _WRAPPERS:
        if isinstance(content, Mapping) and isinstance(content.get(wrapper), Mapping):
            content = content[wrapper]
    if not isinstance(content, Mapping) or not all(
        isinstance(key, str) and isinstance(value, torch.Tensor) for key, value in content.items()
    ):
        raise FileError(
            f"`checkpoint` {source} does not hold a dictionary of tensors: "
            "write it with torch.save(model.state_dict(), path)."
        )
    return dict(content)


def _check_match(
    source: Path, expected: Mapping[str, torch.Tensor], found: Mapping[str, torch.Tensor]
) -> None:
    missing = sorted(expected.keys() - found.keys())
    unknown = sorted(found.keys() - expected.keys())
    shapes = [
        f"{name} ({tuple(found[name].shape)} instead of {tuple(expected[name].shape)})"
        for name in sorted(expected.keys() & found.keys())
        if found[name].shape != expected[name].shape
    ]
    kinds = (("lacks", missing), ("has unknown", unknown), ("has another shape for", shapes))
    problems = []
    for verb, names in kinds:
        if names:
            more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
            problems.append(f"{verb} {', '.join(names[:_LISTED])}{more}")
    if problems:
        raise InputError(
            f"`checkpoint` {source} does not fit the model, because it {' and '.join(problems)}: "
            "load it into the model it was saved from."
        )
