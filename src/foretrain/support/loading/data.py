"""Training data in npz files, ``x``, ``y`` and optionally ``x_test``, ``y_test``; and handwritten digits."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import FileError, ForetrainError, InputError, NotSupportedError
from foretrain.support.memory import require_memory

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_NAMES = ("x", "y", "x_test", "y_test")


@dataclass(frozen=True, repr=False)
class Samples:
    """Inputs, samples first, and what else a file holds: for what needs no targets but can use them."""

    x: Array
    y: Array | None = None
    x_test: Array | None = None
    y_test: Array | None = None

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
    return Data(arrays["x"], arrays["y"], arrays.get("x_test"), arrays.get("y_test"))


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
    _check_pairs(source, arrays)
    return arrays


def _read(source: Path) -> dict[str, Array]:
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
                if name not in _NAMES:
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


def _check_pairs(source: Path, arrays: Mapping[str, Array]) -> None:
    for inputs, targets in (("x", "y"), ("x_test", "y_test")):
        if inputs in arrays and targets in arrays and len(arrays[inputs]) != len(arrays[targets]):
            raise InputError(
                f"{source} has {len(arrays[inputs])} samples in {inputs} but {len(arrays[targets])} in "
                f"{targets}: give one target per input."
            )
    for training, test in (("x", "x_test"), ("y", "y_test")):
        if test in arrays and training in arrays and arrays[test].shape[1:] != arrays[training].shape[1:]:
            raise InputError(
                f"in {source} a sample of {test} has shape {arrays[test].shape[1:]} but one of {training} "
                f"{arrays[training].shape[1:]}: give both the same shape."
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
