"""The points of a sweep, each with a key and a seed that depend on its parameters alone, and the store they go to."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foretrain.experiments.sweep.answers import REPEAT
from foretrain.experiments.sweep.parameters import SEED
from foretrain.experiments.sweep.spec import Spec, read_spec

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep.journal import Contents


@dataclass(frozen=True)
class Point:
    """One of them: where it stands on the axes, and what its function is called with."""

    place: tuple[int, ...]
    coordinates: dict[str, Any]
    arguments: dict[str, Any]
    key: str


def axes_of(spec: Spec) -> dict[str, tuple[Any, ...]]:
    """The axes of the store: those of the file, and the repeats."""
    return spec.axes | ({} if spec.repeats is None else {REPEAT: tuple(range(spec.repeats))})


def points(spec: Spec) -> Iterator[Point]:
    """All points, the last axis running fastest."""
    axes = axes_of(spec)
    for place in itertools.product(*(range(len(values)) for values in axes.values())):
        coordinates = {name: axes[name][i] for name, i in zip(axes, place)}
        own = {name: value for name, value in coordinates.items() if name != REPEAT}
        arguments = spec.fixed | own
        # Whether a value was on an axis or fixed makes no difference: axes can be added to a store.
        identity = _canonical({"parameters": arguments, "repeat": coordinates.get(REPEAT, 0)})
        text = json.dumps(identity, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
        if spec.target.is_random and SEED not in arguments:
            words = np.frombuffer(digest, dtype="<u4").tolist()
            seed = np.random.SeedSequence([spec.seed, *words]).generate_state(1)[0]
            arguments = arguments | {SEED: int(seed)}  # below 2**32, which all libraries take
        yield Point(place, coordinates, arguments, digest.hex())


def _canonical(value: Any) -> Any:
    """Where a function does not say its type, 1 becomes 1.0 if an axis gets 1.5 as well; it stays the same point."""
    if isinstance(value, Mapping):
        return {key: _canonical(item) for key, item in value.items()}
    return int(value) if isinstance(value, float) and value.is_integer() else value


@dataclass(frozen=True)
class Plan:
    """What a file asks for, and the folder that it goes to."""

    spec: Spec
    store: Path

    @staticmethod
    def of(spec: str | Path, store: str | Path | None) -> Plan:
        """The store is beside the file, unless it is named."""
        found = read_spec(spec)
        chosen = Path(spec).with_suffix(".sweep") if store is None else Path(store)
        return Plan(found, chosen.expanduser().absolute())

    @cached_property
    def points(self) -> dict[str, Point]:
        """All of them by their keys."""
        return {point.key: point for point in points(self.spec)}

    def wanted(self, contents: Contents, *, retry_failed: bool) -> list[Point]:
        """Points that are still to be computed."""
        over = contents.done.keys() | (set() if retry_failed else contents.failed.keys())
        return [point for key, point in self.points.items() if key not in over]

    def dataset(self, contents: Contents) -> xarray.Dataset:
        """What is finished, labelled."""
        from foretrain.experiments.sweep.answers import as_dataset

        return as_dataset(contents, axes_of(self.spec), self.points.values(), self.spec)
