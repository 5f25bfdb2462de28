"""``foretrain escape --model``: the plateau of a real network on its own data."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from foretrain.cli.model_inputs import as_inputs, check_takes, model_from
from foretrain.support.answers import Answer
from foretrain.support.errors import InputError


def answer_for_model(
    model: str,
    data: Path | None,
    lr: float | None,
    *,
    batch: int | None = None,
    loss: str | None = None,
    threshold: float | None = None,
    share: float = 0.5,
    train_steps: int = 20_000,
    runs: int = 2,
    seed: int = 0,
) -> Answer:
    """Predict the plateau of ``model.py:make`` on a data file, advise, and train the given and the rescaled network.

    ``train_steps`` bounds real descent; 0: predict only.
    """
    from foretrain.compare.plateau import plateau
    from foretrain.support.loading import load_data

    if data is None:
        raise InputError(
            "--model needs --data FILE.npz with x and y: the plateau depends on what is learned."
        )
    if lr is None:
        raise InputError("--model needs --lr, the learning rate: the plateau is told in steps.")
    if train_steps < 0:
        raise InputError(f"--train-steps is {train_steps}: give 0 (do not train) or more.")
    if runs < 1:
        raise InputError(f"--runs is {runs}: give 1 or more.")
    if threshold is not None and not threshold > 0:
        raise InputError(f"--threshold is {threshold:g}: give a positive loss, which training can reach.")
    samples, network = load_data(data), model_from(model, seed)
    x = as_inputs(samples.x, network)
    check_takes(network, x[:2])
    found = plateau(
        network,
        x,
        samples.y,
        lr=lr,
        loss=loss,
        batch_size=batch,
        threshold=threshold,
        share=share,
    )
    trained = found.verify(runs=runs, max_steps=train_steps, seed=seed) if train_steps else None
    answer = (trained or found).answer()
    return replace(answer, record={**(answer.record or {}), "learning_rate": lr, "seed": seed})
