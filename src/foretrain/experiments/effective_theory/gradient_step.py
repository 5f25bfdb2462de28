"""One step of gradient descent of real networks against the tangent kernel's prediction (chapter 7).

One network makes steps of many sizes. Its own kernel predicts changes of outputs and loss to first order in eta
(7.14), (7.20), with errors of order eta^2; differentials of the kernel push them to eta^3 and eta^4. Over ensembles
of three widths, the slope of the outputs at eta = 0 is extrapolated to infinite width, where its mean and covariance
follow from Theta and K.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import xarray

from foretrain.compare.judging.agreement import judge
from foretrain.experiments.effective_theory.width_limits import Plan, limits_of_batches
from foretrain.experiments.judgements import computed_row, judgement_rows, limit_row
from foretrain.experiments.pictures import coloured, draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import INK, PALETTE, Axis, Figure, labelled, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.gradient_step import ensemble_step

_X = np.array([[1.0, 0.2, -0.5], [-0.4, 1.1, 0.3], [0.1, -0.6, 1.2], [0.8, 0.7, 0.1], [-0.9, 0.3, 0.8]])
_Y = np.array([[1.0], [-0.7], [0.4]])  # of the first three inputs; the others are only watched
_TRAINED = len(_Y)
_SIZES = 2.0 ** np.arange(-9.0, 4.0)  # of steps, in units of 2 over the largest eigenvalue of the kernel
_SMALL = 1e-4  # a step whose square does not matter, where differences are centred
_BATCHES = 40
_FIRST = 3  # the first of two sizes between which powers of eta are read


PLANS = plans(
    quick=Plan({16: 8_000, 32: 8_000, 64: 6_000}), paper=Plan({32: 40_000, 64: 30_000, 128: 20_000})
)


def network(width: int) -> MLP:
    """The critical tanh network of all widths."""
    return MLP.critical("tanh", depth=3, width=width, n_in=3).replace(lambda_b=0.3, lambda_W=0.7)


def gradient_step(plan: Plan, seed: int) -> Result:
    """Orders in eta of one network's step, and the mean first-order step of ensembles."""
    own, others = spawn(seed, 2)
    data = xarray.merge([_one_network(own), _ensembles(plan.draws, others)])
    judgement = judge([(data.z.values, data.independent.values)])
    rows = (
        *_order_rows(data),
        *judgement_rows(judgement, "moments of dz/dη"),
        *(limit_row(str(name), data.sel(moment=name), judgement.bound) for name in data.moment.values),
    )
    word = "agree" if all(row.agrees is not False for row in rows) else "do NOT all agree"
    largest = data.sel(step_size=1.0)  # of the stable steps
    wrong = float(largest.output_error.sel(order=1) / largest.change)
    verdict = (
        f"Steps of real networks {word} with the tangent kernel to first order in η and with its differentials "
        f"beyond it; at η = 2/λ_max first order is wrong by {wrong:.0%} of the change of the outputs."
    )
    return Result(verdict, rows, data, _figure)


def _one_network(seed: Seed) -> xarray.Dataset:
    """Largest errors of outputs, kernel and loss by the order of the prediction, for steps of many sizes."""
    import torch

    from foretrain.compare.build import build, parameter_groups
    from foretrain.empirical.differentials import step_prediction

    mlp = network(16)
    model = build(mlp, seed=seed)
    x, rates = torch.tensor(_X), parameter_groups(model, mlp, eta=1.0)
    error = model(x).detach()
    error[:_TRAINED] -= torch.tensor(_Y)
    error[_TRAINED:] = 0
    predict = partial(step_prediction, model, x, cotangents=error, order=3, rates=rates)
    kernel = predict(lr=0.0).ntk_before[:_TRAINED, :_TRAINED, 0, 0]
    unit = 2 / float(torch.linalg.eigvalsh(kernel)[-1])
    steps = [predict(lr=float(size * unit)) for size in track(_SIZES, "step sizes")]
    outputs, kernels = (
        np.array([list(getattr(step, name).values()) for step in steps])
        for name in ("output_errors", "ntk_errors")
    )
    before, losses, changes = float((error**2).sum() / 2), [], []
    for step in steps:
        # Half the sum of squares after the step: real, to first order (7.14), and to second.
        real = step.outputs_after - step.outputs_before
        first, second = (step.predicted_outputs[order] - step.outputs_before for order in (1, 2))
        linear = before + float((error * first).sum())
        bent = float((error * (second - first)).sum() + (first[:_TRAINED] ** 2).sum() / 2)
        losses.append([float(((error + real)[:_TRAINED] ** 2).sum() / 2), linear, linear + bent])
        changes.append(float(real.abs().max()))
    return labelled(
        {
            "output_error": ("step_size order", outputs),
            "kernel_error": ("step_size kernel_order", kernels),
            "loss": ("step_size curve", np.array(losses) / before),
            "change": ("step_size", changes),
        },
        {"unit_of_eta": unit},
        step_size=_SIZES,
        order=[1, 2, 3],
        kernel_order=[1, 2],
        curve=["real", "first order", "second order"],
    )


def _ensembles(draws: dict[int, int], seed: Seed) -> xarray.Dataset:
    """d z / d eta at eta = 0 of real networks: its moments at every width, their limit, and infinite width."""

    def moments_by_batch(width: int, count: int, own: Seed) -> FloatArray:
        slopes = np.stack(np.split(_slopes(network(width), count, own), _BATCHES))
        return np.concatenate([slopes.mean(axis=1), slopes.var(axis=1, ddof=1)], axis=1)

    labels, theory = _theory()
    return limits_of_batches(draws, seed, moments_by_batch, theory, "moment", labels)


def _slopes(mlp: MLP, draws: int, seed: Seed) -> FloatArray:
    """(z(eta) - z(-eta)) / 2 eta of so many networks after real steps forth and back: (draws, inputs)."""
    import torch

    from foretrain.compare.build import build, parameter_groups

    x, y = torch.tensor(_X), torch.tensor(_Y)
    slopes = np.empty((draws, len(_X)))
    for number, own in enumerate(track(spawn(seed, draws), f"networks of width {mlp.hidden_widths[0]}")):
        model = build(mlp, seed=own)
        (((model(x[:_TRAINED]) - y) ** 2).sum() / 2).backward()
        groups, ends = parameter_groups(model, mlp, eta=_SMALL), []
        with torch.no_grad():
            for steps in (1.0, -2.0):  # along the gradients that the parameters hold
                for group in groups:
                    for parameter in group["params"]:
                        parameter -= steps * group["lr"] * parameter.grad
                ends.append(model(x))
            slopes[number] = ((ends[0] - ends[1]) / (2 * _SMALL))[:, 0].numpy()
    return slopes


def _theory() -> tuple[list[str], FloatArray]:
    """The same at infinite width, for eta = 1 (7.20)."""
    step = ensemble_step(network(1), _X[:_TRAINED], _Y, 1.0, _X[_TRAINED:])
    names = [
        f"{moment} of dz/dη, input {number} ({'trained' if number < _TRAINED else 'watched'})"
        for moment in ("mean", "variance")
        for number in range(len(_X))
    ]
    return names, np.concatenate([step["mean"].values[:, 0], np.diagonal(step["change_covariance"].values)])


def _order_rows(data: xarray.Dataset) -> list[Row]:
    """Powers of eta in the errors, between two small steps; what they leave out is of the size of the step."""
    real = data.loss.sel(curve="real")
    wrong = {
        **{f"outputs, order {k}": (data.output_error.sel(order=k), k + 1) for k in (1, 2, 3)},
        **{f"kernel, order {k}": (data.kernel_error.sel(kernel_order=k), k + 1) for k in (1, 2)},
        "loss, order 1": (np.abs(real - data.loss.sel(curve="first order")), 2),
        "loss, order 2": (np.abs(real - data.loss.sel(curve="second order")), 3),
    }
    rows = []
    for name, (errors, power) in wrong.items():
        here = np.log2(errors.values[_FIRST + 1] / errors.values[_FIRST])
        rows.append(computed_row(f"power of η in the error of {name}", power, here, 0.1))
    return rows


def _figure(data: xarray.Dataset) -> Figure:
    figure = Figure("One step of gradient descent, predicted at initialisation", columns=3, size=(16, 5.2))
    size = log("η in units of 2 / λ_max")
    title = "outputs: error of each order (dotted: its power of η)"
    panel = figure.panel(title, size, log("largest over inputs", 1e-14, 1e4))
    panel.curve(_SIZES, data.change, "-", "change of the outputs", INK, width=1)
    for order, own, color in coloured(data, "order"):
        errors = own.output_error.values
        panel.curve(_SIZES, errors, "o-", f"error of order {order}", color, size=4)
        guide = errors[_FIRST] * (_SIZES / _SIZES[_FIRST]) ** (order + 1)
        panel.curve(_SIZES, guide, ":", "", color, width=1)
    panel = figure.panel(
        "loss after one step", size, Axis("loss after the step / before", low=-0.6, high=2.0)
    )
    styles = {"real": (INK, "o-"), "first order": (PALETTE[1], "--"), "second order": (PALETTE[2], "--")}
    for curve, (color, style) in styles.items():
        panel.curve(_SIZES, data.loss.sel(curve=curve), style, curve, color, size=4)
    panel.level(y=1, width=0.8)
    panel = figure.panel(
        "ensembles (diamonds: extrapolated)", "1 / width", "mean dz/dη of networks − infinite width"
    )
    for number, (moment, own, color) in enumerate(coloured(data.isel(moment=slice(len(_X))), "moment")):
        less = own.assign(measured=own.measured - own.theory, limit=own.limit - own.theory)
        draw_limit(panel, less, moment.split(", ")[1], color, shift=0.015 * (number - 2))
    panel.level(y=0, color=INK, dash="--")
    return figure
