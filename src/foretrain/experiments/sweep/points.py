"""Points of a sweep: every combination of the axes, with a key and a seed that depend on its parameters alone."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from foretrain.experiments.sweep.answers import REPEAT
from foretrain.experiments.sweep.parameters import SEED
from foretrain.experiments.sweep.spec import Spec
from foretrain.support.seeds import integer


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
    sizes = [range(len(values)) for values in axes.values()]
    for place in itertools.product(*sizes):
        coordinates = {name: axes[name][i] for name, i in zip(axes, place)}
        yield _point(spec, place, coordinates)


def _point(spec: Spec, place: tuple[int, ...], coordinates: dict[str, Any]) -> Point:
    repeat = coordinates.get(REPEAT, 0)
    own = {name: value for name, value in coordinates.items() if name != REPEAT}
    arguments = spec.fixed | own
    digest = _digest({"parameters": arguments, "repeat": repeat})
    if spec.target.is_random and SEED not in arguments:
        arguments = arguments | {SEED: _seed(spec, digest)}
    return Point(place, coordinates, arguments, digest.hex())


def _digest(identity: Mapping[str, Any]) -> bytes:
    """Whether a value was on an axis or fixed makes no difference: axes can be added to a store."""
    text = json.dumps(identity, sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).digest()


def _seed(spec: Spec, digest: bytes) -> int:
    words = np.frombuffer(digest, dtype="<u4").tolist()
    return integer(np.random.SeedSequence([spec.seed, *words]))
