"""One step of gradient descent of real networks: what it does to outputs, kernel and hidden layers (chapters 7, 10).

``gradient_step``: one network makes steps of many sizes. Its own kernel predicts changes of outputs and loss to first
order in eta (7.14), (7.20), with errors of order eta^2; differentials of the kernel push them to eta^3, eta^4. Over
ensembles of three widths, the slope of the outputs at eta = 0 is extrapolated to infinite width, where its mean and
covariance follow from Theta and K.

``hidden_updates``: the first order in the learning rate of the change of every neuron of layer L - 1 is measured
exactly on real networks of three widths. n times its mean and its covariance over neurons and networks, extrapolated
to infinite width, are put beside (10.11) and (10.12). The latter as printed lacks the variance of the tangent kernel,
a term of the same order where there are two hidden layers.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

import numpy as np
import xarray

from foretrain.activations import Activation, activation
from foretrain.compare.judging.agreement import judge
from foretrain.experiments.effective_theory.width_limits import WidthPlan, limits_of_batches
from foretrain.experiments.judgements import computed_row, judgement_rows, limit_row, rows_of
from foretrain.experiments.pictures import coloured, draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import FAINT, INK, PALETTE, RED, Axis, Figure, labelled, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.gradient_step import ensemble_step
from foretrain.theory.prediction.infinite_width import hidden_update

_X = np.array([[1.0, 0.2, -0.5], [-0.4, 1.1, 0.3], [0.1, -0.6, 1.2], [0.8, 0.7, 0.1], [-0.9, 0.3, 0.8]])
_Y = np.array([[1.0], [-0.7], [0.4]])  # of the first three inputs; the others are only watched
_TRAINED = len(_Y)
_SIZES = 2.0 ** np.arange(-9.0, 4.0)  # of steps, in units of 2 over the largest eigenvalue of the kernel
_SMALL = 1e-4  # a step whose square does not matter, where differences are centred
_BATCHES = 40
_FIRST = 3  # the first of two sizes between which powers of eta are read


PLANS: dict[str, Any] = {
    "gradient_step": plans(
        quick=WidthPlan({16: 8_000, 32: 8_000, 64: 6_000}),
        paper=WidthPlan({32: 40_000, 64: 30_000, 128: 20_000}),
    )
}


def network(width: int) -> MLP:
    """The critical tanh network of all widths."""
    return MLP.critical("tanh", depth=3, width=width, n_in=3).replace(lambda_b=0.3, lambda_W=0.7)


def gradient_step(plan: WidthPlan, seed: int) -> Result:
    """Orders in eta of one network's step, and the mean first-order step of ensembles."""
    own, others = spawn(seed, 2)

    # Of dz/dη at η = 0 of real networks the moments at every width and their limit stand beside infinite width.
    def moments_by_batch(width: int, count: int, own: Seed) -> FloatArray:
        slopes = np.stack(np.split(_slopes(network(width), count, own), _BATCHES))
        return np.concatenate([slopes.mean(axis=1), slopes.var(axis=1, ddof=1)], axis=1)

    labels, theory = _theory()
    ensembles = limits_of_batches(plan.draws, others, moments_by_batch, theory, "moment", labels)
    data = xarray.merge([_one_network(own), ensembles])
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


_INPUTS = 1.3 * _X[:4]
_UPDATE_BATCHES = 50
_MARKED = [f"covariance of inputs {a} and {b}" for a, b in ((0, 0), (0, 1), (3, 3))]  # rows and curves
_BOOK_BOUND = 3.0
_PAIRS = np.triu_indices(len(_INPUTS))


PLANS["hidden_updates"] = plans(
    quick=WidthPlan({32: 16_000, 64: 12_000, 128: 8_000}),
    paper=WidthPlan({64: 40_000, 128: 30_000, 256: 20_000}),
)


@cache
def _cases() -> dict[str, tuple[Activation, int]]:
    """Activations and depths; the odd one has no mean, and one hidden layer no variance of the tangent kernel."""
    bent = activation(lambda z: np.tanh(z) + np.tanh(z) ** 2 / 2, name="tanh + tanh²/2")
    return {
        "relu, L = 3": (activation("relu"), 3),
        "tanh + tanh²/2, L = 3": (bent, 3),
        "tanh, L = 2": (activation("tanh"), 2),
    }


def _network(case: str, width: int) -> MLP:
    act, depth = _cases()[case]
    C_W = {"relu": 2.0}.get(act.name, 1.0)
    return MLP(act, depth, width, n_in=3, C_b=0.1, C_W=C_W, lambda_b=0.3, lambda_W=0.7)


def hidden_updates(plan: WidthPlan, seed: int) -> Result:
    """n times mean and covariance of the change of hidden neurons in one step, measured and from theory."""
    names = list(_cases())
    parts = [_limits(case, plan.draws, own) for case, own in track(with_seeds(names, seed), "activations")]
    data = xarray.concat(parts, xarray.Variable("case", names), join="outer")
    rows = tuple(row for case in names for row in _rows(data.sel(case=case), case))
    good = all(row.agrees is not False for row in rows if not row.disputed)
    far = max(abs(row.z or 0.0) for row in rows if row.disputed)
    verdict = (
        f"n times mean and covariance of the hidden updates {'agree' if good else 'do NOT agree'} with the theory; "
        f"(10.12) as printed is up to {far:.0f} standard errors off where there are two hidden layers."
    )
    return Result(verdict, rows, data, _update_figure)


def updates(mlp: MLP, numbers: range, seed: np.random.SeedSequence) -> FloatArray:
    """d z^(L-1) / d eta at eta = 0 of real networks: (networks, neurons, inputs)."""
    import torch

    from foretrain.compare.trained.networks import draw_networks

    networks = draw_networks(mlp, numbers, seed)
    trace = networks.forward(networks.entry(_INPUTS))
    error = trace.output.clone()
    error[:, 0, :_TRAINED] -= torch.from_numpy(_Y[:, 0])
    error[:, :, _TRAINED:] = 0
    fields = networks.sensitivities(trace, error)[::-1]  # of layers 1..L
    change: torch.Tensor | None = None
    for layer, weights, field in list(zip(mlp.layers, networks.weights, fields))[:-1]:
        signal = trace.signals[layer.number - 1]
        bias = -layer.lambda_b * field.sum(dim=2, keepdim=True)
        moved = -layer.lambda_W / signal.shape[1] * (field @ (signal.mT @ signal)) + bias
        if change is not None:
            moved = moved + weights @ (trace.slopes[layer.number - 2] * change)
        change = moved
    assert change is not None
    return np.asarray(change.numpy())


def _limits(case: str, draws: dict[int, int], seed: Seed) -> xarray.Dataset:
    """n times mean (inputs) and covariance (pairs of inputs) at every width, their limit, and the theory."""

    def moments_by_batch(width: int, count: int, own: np.random.SeedSequence) -> FloatArray:
        """Moments over networks and neurons; different neurons are uncorrelated at this order."""
        mlp, size, found = _network(case, width), count // _UPDATE_BATCHES, []
        for place in range(_UPDATE_BATCHES):
            flat = updates(mlp, range(place * size, (place + 1) * size), own).reshape(-1, len(_INPUTS))
            square = flat.T @ flat / len(flat)
            found.append(np.concatenate([flat.mean(axis=0), square[_PAIRS]]))
        return width * np.stack(found)

    # Times n is what width 1 gives, complete and as printed.
    theory = hidden_update(_network(case, 1), _INPUTS[:_TRAINED], _Y, _INPUTS[_TRAINED:])
    complete, printed = (
        np.concatenate([theory.mean, covariance[_PAIRS]])
        for covariance in (theory.covariance, theory.covariance_without_ntk_variance)
    )
    labels = [f"covariance of inputs {a} and {b}" for a, b in zip(*_PAIRS, strict=True)]
    labels = [*(f"mean of input {a}" for a in range(len(_INPUTS))), *labels]
    found = limits_of_batches(draws, seed, moments_by_batch, complete, "moment", labels)
    return found.assign(printed=("moment", printed))


def _rows(data: xarray.Dataset, case: str) -> list[Row]:
    own = data.dropna("direction", subset=["independent"])
    judgement = judge([(own.z.values, own.independent.values)])
    rows = rows_of(case, judgement_rows(judgement, "moments of n dz/dη"))
    for label in ("mean of input 0", "mean of input 3", *_MARKED):
        rows.append(limit_row(f"{case}: n times {label}", own.sel(moment=label), judgement.bound))
    if case.endswith("L = 3"):
        note = "it leaves out the off-diagonal tangent kernel, n terms of size 1/n: the B term of (8.82)"
        names = ("printed", "limit", "standard_error")
        for label in _MARKED[::2]:
            title = f"{case}: n times {label}, (10.12) as printed"
            rows.append(limit_row(title, own.sel(moment=label), _BOOK_BOUND, names, note, disputed=True))
    return rows


def _update_figure(data: xarray.Dataset) -> Figure:
    title = "One step moves the last hidden layer by 1/n: covariance of a neuron's change, times n"
    figure = Figure(title, size=(15, 5.0))
    for case in data["case"].values:
        panel = figure.panel(str(case), x="1 / width", y="$n\\,E[dz\\,dz] / \\eta^2$", legend_columns=2)
        for color, label in zip(PALETTE, _MARKED):
            one = data.sel(case=case, moment=label)
            draw_limit(panel, one, label.removeprefix("covariance of "), color)
            panel.level(y=one.theory, color=color, width=1.2)
            if abs(float(one.printed / one.theory) - 1) > 1e-9:
                panel.level(y=one.printed, color=color, dash=":", width=1.2)
        panel.legend_entry("D", "extrapolated to n → ∞")
        panel.legend_entry("-", "theory")
        panel.legend_entry(":", "(10.12) as printed", RED)
        panel.level(x=0, color=FAINT)
    return figure
