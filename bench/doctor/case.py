"""What a case is: a setup as a practitioner would write it, what is wrong with it, and how one would recognise it.

A function that takes `broken` is a pair of cases, the fault and its repaired twin; one without arguments is healthy.
Both are drawn under a seed, so that a case is the same whenever it is made.
"""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

Patient = tuple[nn.Module, Tensor, Tensor, dict[str, Any]]
Score = Callable[[nn.Module, Tensor, Tensor], float]
TUNING, UNSEEN = "tuning", "unseen"
TUNING_SHARE = 0.4
CASES: list[Case] = []


@dataclass(frozen=True)
class Case:
    """One setup. `fault` is None where it is healthy; `twin` names the repaired case where there is one."""

    name: str
    family: str
    architecture: str
    build: Callable[[], Patient]
    fault: str | None = None
    cause: tuple[str, ...] = ()  # expressions of which any one names the cause
    twin: Case | None = None
    score: Score | None = None  # of held-out data, instead of accuracy or explained variance
    by_loss: bool = False  # whether the fault shows in the user's own loss and not in the score
    least: float = 0.5  # score of a healthy setup after 300 steps, of 1 for perfect and 0 for a constant
    split: str = ""
    source: str = ""

    def make(self, seed: int = 0) -> Patient:
        """Model, inputs, targets and the keyword arguments of `ft.doctor`."""
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return self.build()

    def repaired(self, seed: int = 0) -> Patient | None:
        """The same without the fault, where there is a natural way."""
        return None if self.twin is None else self.twin.make(seed)

    def names_cause(self, text: str) -> bool:
        """Whether a practitioner would take this text for naming what is wrong."""
        text = re.sub(r"(?<=\d)\.(?=\d)", ",", text)  # so that a full stop ends a sentence and no number
        return any(re.search(expression, text, re.IGNORECASE) for expression in self.cause)


def pair(
    family: str, architecture: str, fault: str, *cause: str, **more: Any
) -> Callable[[Callable[[bool], Patient]], Callable[[bool], Patient]]:
    """Register a fault and its repaired twin, both made by a function of `broken`."""

    def register(build: Callable[[bool], Patient]) -> Callable[[bool], Patient]:
        name, source = build.__name__, inspect.getsource(build)
        twin = Case(f"{name}_repaired", family, architecture, lambda: build(False), source=source, **more)
        CASES.append(
            Case(name, family, architecture, lambda: build(True), fault, cause, twin, source=source, **more)
        )
        CASES.append(twin)
        return build

    return register


def healthy(
    family: str, architecture: str, **more: Any
) -> Callable[[Callable[[], Patient]], Callable[[], Patient]]:
    """Register a healthy setup that has no faulty twin."""

    def register(build: Callable[[], Patient]) -> Callable[[], Patient]:
        source = inspect.getsource(build)
        CASES.append(Case(build.__name__, family, architecture, build, source=source, **more))
        return build

    return register


def divide(cases: Iterable[Case]) -> list[Case]:
    """Mark every case as tuning or unseen: by a hash of its name, but so that every family has its share of both.

    Twins stay together. A case that is added at the end of its family leaves the earlier ones where they are.
    """
    seen, tuning, splits, divided = dict[str, int](), dict[str, int](), dict[str, str](), list[Case]()
    for case in cases:
        name = case.name.removesuffix("_repaired")
        if name not in splits:
            seen[case.family] = seen.get(case.family, 0) + 1
            missing = TUNING_SHARE * seen[case.family] - tuning.get(case.family, 0)
            number = int(hashlib.sha256(name.encode()).hexdigest()[:8], 16) / 16**8
            chosen = missing >= 0.8 or (missing > -0.2 and number < TUNING_SHARE)
            tuning[case.family] = tuning.get(case.family, 0) + chosen
            splits[name] = TUNING if chosen else UNSEEN
        divided.append(replace(case, split=splits[name]))
    return divided
