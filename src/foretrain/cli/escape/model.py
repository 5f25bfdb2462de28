"""``foretrain escape --model``: the plateau of a real network on its own data."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain.cli.frame import command_answer
from foretrain.cli.model_inputs import as_inputs, check_takes, model_from
from foretrain.support.answers import Answer, Table
from foretrain.support.errors import InputError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from foretrain.compare.plateau import Plateau, PlateauVerification
    from foretrain.compare.plateau.verification import TrainedRuns


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
    return _answer(found, trained, lr, seed)


def _answer(found: Plateau, trained: PlateauVerification | None, lr: float, seed: int) -> Answer:
    from foretrain.compare.plateau.presentation import advice_text, caution_text, law_text

    text: list[str | Table] = [found.verdict, _layers(found)]
    text += [law_text(found.law)] if found.law is not None else []
    text += [part for part in (advice_text(found), caution_text(found)) if part]
    text.append(_steps(found, trained))
    if trained is not None:
        text += [f"{name}: {one}." for name, one in trained.networks.items()]
    data, runs = found.to_dataset(), None if trained is None else trained.to_dataset()
    names = {"loss": "descent_loss", "escape": "descent_escape", "predicted": "descent_predicted"}
    joined = data if runs is None else data.merge(runs.rename(names), combine_attrs="override")
    return command_answer(
        _document(found, trained, lr, seed), text, data=joined, figure=lambda: _draw(data, runs)
    )


def _layers(found: Plateau) -> Table:
    small = {layer.name for layer in found.bottleneck.layers}
    rows = [
        (
            layer.name,
            layer.norm,
            layer.natural,
            layer.relative,
            layer.name in small,
            found.factors.get(layer.name),
        )
        for layer in found.layers
    ]
    columns = ("weight matrix", "norm", "natural norm", "share", "at the bottleneck", "multiply by")
    return Table(columns, rows)


def _steps(found: Plateau, trained: PlateauVerification | None) -> Table:
    flows = {"given": found.forecast, "rescaled": found.rescaled_forecast}
    rows: list[tuple[str | float | None, ...]] = []
    for name, flow in flows.items():
        if flow is None:
            continue
        one = None if trained is None else trained.networks[name]
        measured = None if one is None else round(one.measured, 1)
        error = None if one is None or math.isnan(one.standard_error) else round(one.standard_error, 2)
        rows.append((name, round(flow.length, 1), round(flow.escape, 1), measured, error))
    below = f"loss < {found.forecast.threshold:.4g}"
    columns = ("network", "steps on the plateau", f"predicted step of {below}", "real descent", "± over runs")
    return Table(columns, rows)


def _document(found: Plateau, trained: PlateauVerification | None, lr: float, seed: int) -> dict[str, Any]:
    flows = {"given": found.forecast, "rescaled": found.rescaled_forecast}
    law = found.law
    return {
        "verdict": found.verdict,
        "plateau": found.forecast.has_plateau,
        "learning_rate": lr,
        "batch_size": found.batch_size,
        "seed": seed,
        "loss": found.task.loss_name,
        "level": found.forecast.level,
        "threshold": found.forecast.threshold,
        "small_layers": found.bottleneck.count,
        "epsilon": found.bottleneck.epsilon if found.bottleneck.count else None,
        "layers": [
            {"name": layer.name, "norm": layer.norm, "natural": layer.natural, "relative": layer.relative}
            for layer in found.layers
        ],
        "law": None
        if law is None
        else {
            "exponent": law.exponent,
            "exponent_here": law.exponent_here,
            "halving": law.halving,
            "halving_here": law.halving_here,
            "applies": law.applies,
        },
        "factors": found.factors,
        "code": found.code,
        "predicted": {
            name: {
                "plateau": flow.length,
                "escape": flow.escape,
                "status": flow.status,
                "rate_times_curvature": flow.stability,
            }
            for name, flow in flows.items()
            if flow is not None
        },
        "measured": None if trained is None else {n: _measured(one) for n, one in trained.networks.items()},
    }


def _measured(one: TrainedRuns) -> dict[str, Any]:
    return {
        "escape": one.measured,
        "standard_error": one.standard_error,
        "error": one.error,
        "steps": float(one.steps[-1]),
        "diverged": one.diverged,
    }


def _draw(data: Any, runs: Any) -> Figure:
    from foretrain.report.plateau import plateau_figure

    return plateau_figure(data, runs)
