"""An independent judge: plain training of 300 steps on four fifths of the data, judged on the last fifth."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bench.doctor.case import Case, Patient, Score

STEPS = 300
HELD_OUT = 0.2
WORSE, APART = (
    1.5,
    0.1,
)  # a fault makes the error so many times larger, and by at least so much of a constant's


@dataclass(frozen=True)
class Outcome:
    """Score and user's loss on held-out data."""

    score: float
    loss: float


def train(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    loss: Callable[[Tensor, Tensor], Tensor],
    optimizer: torch.optim.Optimizer,
    batch_size: int | None,
    seed: int,
    score: Score | None = None,
    steps: int = STEPS,
) -> Outcome:
    """Train a model in place, with shuffled batches of four fifths of the samples."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        order = torch.randperm(len(x))
        held_out, kept = order.split([round(HELD_OUT * len(x)), len(x) - round(HELD_OUT * len(x))])
        size = min(batch_size or len(kept), len(kept))
        model.train()
        batches = list[Tensor]()
        for _ in range(steps):
            if not batches:
                batches = [part for part in kept[torch.randperm(len(kept))].split(size) if len(part) == size]
            batch = batches.pop()
            optimizer.zero_grad()
            value = loss(model(x[batch]), y[batch])
            if not torch.isfinite(value):
                break
            value.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            reached = float(loss(model(x[held_out]), y[held_out]))
            judged = (score or skill)(model, x[held_out], y[held_out])
    return Outcome(max(-1.0, judged) if math.isfinite(judged) else -1.0, reached)


def skill(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """1 for perfect and 0 for a constant: explained variance of numbers, accuracy beyond the commonest class."""
    outputs = model(x)
    if y.is_floating_point():
        if not bool(((y == 0) | (y == 1)).all()):
            errors = (outputs.reshape(y.shape) - y).square().mean(0).mean()
            return 1 - float(errors / (y - y.mean(0)).square().mean(0).mean())
        chosen, y = (outputs.reshape(y.shape) > 0).long(), y.long()
    elif outputs.numel() == y.numel():  # one number that should be the label
        chosen = outputs.reshape(y.shape).round().long()
    else:
        axis = 1 if outputs.shape[2:] == y.shape[1:] else -1
        chosen = outputs.argmax(axis)
    commonest = float(torch.bincount(y.flatten()).max()) / y.numel()
    return (float((chosen == y).float().mean()) - commonest) / (1 - commonest)


def outcome_of(patient: Patient, case: Case, seed: int) -> Outcome:
    """What a setup reaches."""
    model, x, y, options = patient
    arguments: dict[str, Any] = {"batch_size": None} | options
    return train(
        model, x, y, arguments["loss"], arguments["optimizer"], arguments["batch_size"], seed, case.score
    )


@dataclass(frozen=True)
class Proof:
    """A case beside its repaired twin (or alone): whether it is as ill or as healthy as it claims."""

    case: Case
    own: Outcome
    twin: Outcome | None

    @property
    def holds(self) -> bool:
        if self.case.fault is None:
            return self.own.score >= self.case.least
        if self.twin is None:
            return self.own.score < self.case.least
        if self.case.by_loss:
            return not self.own.loss < WORSE * self.twin.loss
        error, best = 1 - self.own.score, 1 - self.twin.score
        return error >= max(WORSE * best, best + APART)


def prove(case: Case, seed: int) -> Proof:
    """Train a case and its repaired twin alike."""
    twin = case.repaired(seed)
    return Proof(
        case, outcome_of(case.make(seed), case, seed), None if twin is None else outcome_of(twin, case, seed)
    )
