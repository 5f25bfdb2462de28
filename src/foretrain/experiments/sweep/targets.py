"""What is computed at every point: an observable, an experiment, or a function in a user's file."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from foretrain.experiments.experiment import Scale
from foretrain.experiments.sweep.answers import RESERVED
from foretrain.experiments.sweep.parameters import SEED, Parameter, Scalar, declared
from foretrain.experiments.sweep.settings import Settings
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from foretrain.experiments.experiment import Experiment, Result

_TAKEN = (*RESERVED, "scale", SEED)


@dataclass(frozen=True)
class Target:
    """A function of parameters by name, and how it is told apart from others.

    It takes the seed among them if ``is_random``. ``code`` is the digest of a user's file, empty for what belongs to
    the library.
    """

    name: str
    parameters: tuple[Parameter, ...]
    function: Callable[..., Any]
    code: str = ""

    @property
    def is_random(self) -> bool:
        """Whether it takes a seed."""
        return any(parameter.name == SEED for parameter in self.parameters)


def of_observable(name: str, folder: Path) -> Target:
    """One of the registry, or ``file.py:function`` as seen from a folder."""
    from foretrain.experiments.sweep import observables

    if ".py:" in name:
        return _of_file(name, folder)
    if ":" in name or name.endswith(".py"):
        raise InputError(f"{name!r} names no function of a file: write it like 'mine.py:function'.")
    found = observables.get(name)
    return Target(f"observable {name}", found.parameters, found.function)


def of_experiment(name: str) -> Target:
    """One of those that ``foretrain reproduce`` lists: its parameters are the scale, the seed and its settings."""
    from foretrain.experiments.registry import get

    experiment = get(name)
    own = declared(_experiment_parameters)
    settings = [item for item in Settings(experiment.plans).parameters() if item.name not in _TAKEN]
    return Target(f"experiment {name}", (*own, *settings), _Run(experiment))


@dataclass(frozen=True)
class _Run:
    """Runs an experiment; the numbers of its table are the answer."""

    experiment: Experiment

    def __call__(self, *, scale: str, seed: int, **settings: Scalar | None) -> dict[str, Any]:
        changes = {name: value for name, value in settings.items() if value is not None}
        if not changes or scale not in tuple(Scale):  # which is refused there
            return _numbers(self.experiment.run(scale, seed))
        plan = Settings(self.experiment.plans).plan(scale, changes)
        return _numbers(self.experiment.run(scale, seed, plan=plan))


def _experiment_parameters(
    *,
    scale: Annotated[str, "quick, or paper for the size of the source"] = "quick",
    seed: Annotated[int, "the same seed gives the same numbers"] = 0,
) -> None:
    """What every experiment takes."""


def _numbers(result: Result) -> dict[str, Any]:
    """The rows of the table, labelled by their quantities."""
    import numpy as np
    import xarray

    labels = _distinct([row.quantity for row in result.table])

    def column(values: list[Any]) -> xarray.DataArray:
        numbers = [np.nan if value is None or isinstance(value, str) else float(value) for value in values]
        return xarray.DataArray(numbers, {"quantity": labels}, ["quantity"])

    return {
        "agrees": float(result.agrees),
        "here": column([row.here for row in result.table]),
        "expected": column([row.expected for row in result.table]),
        "standard_error": column([row.standard_error for row in result.table]),
        "row_agrees": column([row.agrees for row in result.table]),
    }


def _distinct(labels: list[str]) -> list[str]:
    seen: dict[str, int] = {}
    found = []
    for label in labels:
        seen[label] = seen.get(label, 0) + 1
        found.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return found


def _of_file(address: str, folder: Path) -> Target:
    from foretrain.support.loading.code import load_callable

    file, _, name = address.rpartition(":")
    path = folder / Path(file).expanduser()
    function = load_callable(f"{path}:{name}")
    digest = hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    return Target(f"observable {address}", declared(function), function, digest)
