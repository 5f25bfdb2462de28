"""Networks of the planted faults for single checks, and what a real training makes of a setup."""

from __future__ import annotations

from planted_networks import chain, default_mlp, digits, mlp, regression

from foretrain.doctor.setup import Setup

__all__ = ["chain", "default_mlp", "digits", "mlp", "regression", "trained_loss"]


def trained_loss(setup: Setup, steps: int = 100) -> float:
    """After so many steps on all data."""
    model, task = setup.with_weights(lambda _: None).model, setup.task
    optimizer = setup.recipe.build(model)
    for _ in range(steps):
        optimizer.zero_grad()
        task.loss(model(task.x), task.y).backward()
        optimizer.step()
    return task.value(model)
