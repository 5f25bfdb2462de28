"""Seeds: one meaning of ``seed=`` everywhere, and streams that do not depend on the order of execution."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias, TypeVar

import numpy as np

from foretrain.support.errors import InputError

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
Seed: TypeAlias = int | np.integer | np.random.SeedSequence | np.random.Generator | None


def generator(seed: Seed) -> np.random.Generator:
    """A numpy generator; None gives fresh randomness, and a generator is handed back as it is."""
    if isinstance(seed, np.random.Generator):
        return seed
    return np.random.default_rng(_sequence(seed))


def spawn(seed: Seed, count: int) -> tuple[np.random.SeedSequence, ...]:
    """Independent seeds, one per task; the seed of task i depends only on ``seed`` and i.

    A generator is the exception: like ``Generator.spawn`` it gives new seeds at every call.
    """
    if count < 0:
        raise InputError(f"count is {count}, but the number of seeds to spawn cannot be negative.")
    if isinstance(seed, np.random.Generator):
        sequence = seed.bit_generator.seed_seq
        if not isinstance(sequence, np.random.SeedSequence):
            raise InputError(
                "seed is a Generator that cannot spawn: make it with numpy.random.default_rng(number)."
            )
        return tuple(sequence.spawn(count))
    return spawn_some(_sequence(seed), range(count))


def with_seeds(tasks: Iterable[T], seed: Seed) -> list[tuple[T, np.random.SeedSequence]]:
    """Every task with a seed of its own, as :func:`spawn` gives them."""
    tasks = list(tasks)
    return list(zip(tasks, spawn(seed, len(tasks)), strict=True))


def spawn_some(
    seed: int | np.integer | np.random.SeedSequence, tasks: Iterable[int]
) -> tuple[np.random.SeedSequence, ...]:
    """The seeds that :func:`spawn` gives to chosen tasks, without those of the others."""
    parent = _sequence(seed)
    # SeedSequence.spawn counts its children, so a second call on the same object would give other seeds.
    return tuple(
        np.random.SeedSequence(
            parent.entropy, spawn_key=(*parent.spawn_key, index), pool_size=parent.pool_size
        )
        for index in tasks
    )


def torch_generator(seed: Seed, device: str | torch.device = "cpu") -> torch.Generator:
    """A torch generator on a device, seeded through the same streams as numpy's."""
    import torch

    result = torch.Generator(device=device)
    result.manual_seed(integer(seed))
    return result


@contextmanager
def kept_random_states(seed: Seed = None) -> Iterator[None]:
    """Inside, code may draw from the global streams of torch, numpy and Python; all go on as before afterwards.

    With a ``seed`` the streams start from it, so that the same code draws the same numbers every time.
    """
    import torch

    of_python, of_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 - the user's
    try:
        devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        with torch.random.fork_rng(devices=range(devices)):
            if seed is not None:
                start = integer(seed)
                torch.manual_seed(start)
                random.seed(start)
                np.random.seed(start % 2**32)  # noqa: NPY002
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)  # noqa: NPY002


def integer(seed: Seed) -> int:
    """A number below 2**63 for libraries that take nothing else; it is not the seed, but is drawn from it."""
    if isinstance(seed, np.random.Generator):
        return int(seed.integers(2**63, dtype=np.uint64))
    return int(_sequence(seed).generate_state(1, np.uint64)[0] >> np.uint64(1))


def seed_text(seed: Seed) -> str:
    """A seed on one line, as results keep it."""
    return " ".join(repr(seed).split())


def _sequence(seed: int | np.integer | np.random.SeedSequence | None) -> np.random.SeedSequence:
    if isinstance(seed, np.random.SeedSequence):
        return seed
    if seed is None:
        return np.random.SeedSequence()
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or seed < 0:
        raise InputError(
            f"`seed` is {seed!r}, but it must be a whole number from 0 on, "
            "a numpy SeedSequence or Generator, or None."
        )
    return np.random.SeedSequence(int(seed))
