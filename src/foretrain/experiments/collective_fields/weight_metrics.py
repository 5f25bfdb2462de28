"""Weight-induced metrics: the kernel of general networks layer by layer, inputs that are not trained on, and spectra.

The split of the tangent kernel into overlaps times correlators (172) is tested beyond the note's setting: unequal
widths, smooth activations, biases, several outputs. The change of inputs that only watch (62)-(64) is put beside real
steps. Identities between co-activation projectors, pullback metrics and transport operators (165)-(188) follow. Last,
while a ReLU network learns: which layer drives the residual, how the metric aligns with the gradient, and whether
trained weights get heavy tails, as section 10.3 conjectures: an experiment, not a theorem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray

from foretrain.experiments.judgements import claim_row, computed_row
from foretrain.experiments.networks import he_normal
from foretrain.experiments.pictures import coloured
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, INK, Axis, Figure, log
from foretrain.support.seeds import Seed, integer, spawn, torch_generator

if TYPE_CHECKING:
    import torch

    from foretrain.empirical.fields import Fields


_BIASES = 0.3  # their deviation
_NETWORKS = {  # activation, widths, biases
    "relu, unequal widths": ("ReLU", (4, 9, 6, 5, 1), None),
    "relu, biases, three outputs": ("ReLU", (4, 7, 8, 3), _BIASES),
    "tanh, biases": ("Tanh", (4, 10, 7, 1), _BIASES),
    "gelu, three outputs": ("GELU", (4, 8, 8, 8, 3), None),
}
_EXACT = 1e-11
_STEPS = 2.0 ** -np.arange(8.0, 15.0)


@dataclass(frozen=True)
class Plan:
    """The network that learns, and how often it is looked at."""

    inputs: int
    width: int
    hidden: int
    steps: int
    every: int


PLANS = plans(quick=Plan(40, 64, 3, 400, 20), paper=Plan(200, 300, 4, 4_000, 100))


def weight_metrics(plan: Plan, seed: int) -> Result:
    """Splits of kernels, watching inputs, identities of the metrics, and spectra of a network that learns."""
    general, watching, learning = spawn(seed, 3)
    structure = {name: _structure(name, own) for name, own in zip(_NETWORKS, spawn(general, 4), strict=True)}
    data = xarray.merge([_watching(watching), _learning(plan, learning)])
    rows, identities = (
        [],
        {
            "split": "Σ Q S (172) against automatic gradients, relative",
            "pullback": "P[I] − G (188)",
            "transport": "transport operator written out against its recursion (187)",
        },
    )
    for name, found in structure.items():
        rows += [computed_row(f"{name}: {told}", 0.0, found[key], _EXACT) for key, told in identities.items()]
        lowest = found["lowest"]
        title = f"{name}: lowest eigenvalue of the metric G_0 of an input with itself, over the largest"
        rows.append(claim_row(title, "not negative", lowest, lowest > -_EXACT))
    rows += [*_watching_rows(data), *_learning_rows(data)]
    good = all(row.agrees is not False for row in rows)
    last = data.drive.isel(step=-1) / data.drive.isel(step=-1).sum()
    first = int(np.argmax(last.values)) + 1
    verdict = (
        f"Kernels of general networks {'split' if good else 'do NOT all split'} into layers to rounding, and inputs "
        f"that only watch follow the trained ones to first order; after training layer {first} of "
        f"{data.sizes['layer']} drives {float(last.max()):.0%} of the residual."
    )
    return Result(verdict, tuple(rows), data, _draw)


def _inputs(count: int, width: int, seed: Seed) -> torch.Tensor:
    import torch

    return torch.randn(count, width, dtype=torch.float64, generator=torch_generator(seed))


def _structure(name: str, seed: Seed) -> dict[str, float]:
    """Relative errors of the split and of identities between the metrics."""
    import torch

    from foretrain.empirical.fields import fields

    first, second = spawn(seed, 2)
    kind, widths, biases = _NETWORKS[name]
    model = he_normal(kind, widths, torch_generator(first), biases=biases)
    x = _inputs(6, widths[0], second)
    # The tangent kernel by automatic gradients: (inputs, inputs, outputs, outputs).
    rows = [
        torch.cat(
            [g.flatten() for g in torch.autograd.grad(value, list(model.parameters()), retain_graph=True)]
        )
        for value in model(x).flatten()
    ]
    J = torch.stack(rows).reshape(len(x), -1, len(rows[0]))
    found, automatic = fields(model, x), torch.einsum("acp,bdp->abcd", J, J)
    kernel = torch.from_numpy(found.kernel.values).reshape(automatic.shape)
    below = found.depth - 1
    metric, pulled = found.metric(below, 0, 1), found.pullback(below, torch.eye(widths[-1]), 0, 1)
    own = np.linalg.eigvalsh(found.metric(0, 0, 0).values)
    # M_0 written out, times a vector, against the recursion that does not write it out (187).
    vector = _inputs(1, widths[0], second)[0]
    applied = found.apply_transport(0, vector, 0, 1).values
    gap = np.abs(found.transport(0, 0, 1).values @ vector.numpy() - applied).max()
    return {
        "split": float((kernel - automatic).norm() / automatic.norm()),
        "pullback": float(np.abs(metric.values - pulled.values).max()),
        "lowest": float(own[0] / own[-1]),
        "transport": float(gap / max(1.0, float(np.abs(applied).max()))),
    }


def _watching(seed: Seed) -> xarray.Dataset:
    """Errors of the first-order change of outputs on inputs that are not trained on, over the change, by step."""
    import copy

    import torch

    from foretrain.empirical.fields import fields

    first, second, third = spawn(seed, 3)
    model = he_normal("Tanh", (4, 24, 24, 1), torch_generator(first), biases=_BIASES)
    x, watched = _inputs(8, 4, second), _inputs(5, 4, third)
    y = torch.sin(2 * x[:, :1])
    found, before = fields(model, x), model(watched).detach()
    errors = []
    for eta in _STEPS:
        told = found.first_order(float(eta), y, unseen=watched).residual().values[len(x) :]
        moved = copy.deepcopy(model)
        ((moved(x) - y) ** 2).mean().backward()
        with torch.no_grad():
            for value in moved.parameters():
                assert value.grad is not None
                value.sub_(value.grad, alpha=float(eta))
        change = (moved(watched).detach() - before).numpy()
        errors.append(np.abs(change - told.reshape(change.shape)).max() / np.abs(change).max())
    return xarray.Dataset({"watched_error": ("eta", errors)}, coords={"eta": _STEPS})


def _watching_rows(data: xarray.Dataset) -> list[Row]:
    power = 1 + float(np.log2(data.watched_error[-2] / data.watched_error[-1]))
    title = "tanh, inputs not trained on: power of η in the error of their change (62)-(64)"
    return [computed_row(title, 2.0, power, 0.05)]


def _learning(plan: Plan, seed: Seed) -> xarray.Dataset:
    """Drives, alignments, participation and tails while a ReLU network with mean readout learns."""
    import torch

    from foretrain.empirical.fields import fields, record_fields, tail_p_value

    first, second, third = spawn(seed, 3)
    widths = [plan.width] * (plan.hidden + 1)
    body = he_normal("ReLU", widths, torch_generator(first))
    model, x = torch.nn.Sequential(*body, torch.nn.ReLU()), _inputs(plan.inputs, plan.width, second)
    y = 0.5 + 0.4 * torch.sin(2 * x[:, :1])
    largest = float(fields(model, x, readout="mean").kernel_spectrum.sel(part="total").max())
    rate = 0.5 * plan.inputs / largest

    def watch(now: Fields) -> dict[str, xarray.DataArray]:
        return {"together": now.coactivation(plan.hidden)}

    record = record_fields(model, x, y, plan.steps, rate, every=plan.every, readout="mean", watch=watch)
    start = np.sort(fields(model, x, readout="mean").weight_spectrum(2).values)[::-1]
    together = record.together.isel(step=[0, -1]).rename(step="end")
    kept = {
        "drive": record.kernel_drive,
        "loss_of_learning": record.loss,
        "alignment": record.metric_alignment.mean("followed"),
        "participation": record.weight_participation,
        "exponent": record.tail_exponent,
        "exponent_error": record.tail_exponent_error,
        "coactivation": together.assign_coords(end=["start", "end"]),
    }
    p_value = tail_p_value(start, draws=100, seed=integer(third))
    return xarray.Dataset(kept).drop_attrs().assign(first_tail_p_value=p_value)


def _learning_rows(data: xarray.Dataset) -> list[Row]:
    """For orientation: the note conjectures, and gives no numbers."""
    rows, ends = [], (0, -1)
    note = "section 10.3 conjectures heavier tails, smaller exponents; every spectrum has a best one"
    for layer in data.layer.values.tolist():
        before, after = (float(data.exponent.sel(layer=layer).isel(step=place)) for place in ends)
        error = float(data.exponent_error.sel(layer=layer).isel(step=-1))
        title = f"relu, tail exponent of WᵀW in layer {layer}: after training, beside before"
        rows.append(Row(title, before, after, error, note=note))
    share = data.drive / data.drive.sum("layer")
    texts = [", ".join(f"{float(value):.2f}" for value in share.isel(step=place)) for place in ends]
    aligned = [float(data.alignment.isel(step=place).mean()) for place in ends]
    title = "relu, p-value of a power law for the random weights of layer 2"
    chance = float(data.first_tail_p_value)
    return [
        *rows,
        Row("relu, shares of the layers in rᵀKr, start → end", texts[0], texts[1]),
        Row("relu, alignment of G with the gradient, start → end", aligned[0], aligned[1]),
        Row(title, "not a power law", chance),
    ]


def _draw(data: xarray.Dataset) -> Figure:
    title = "Weight-induced metrics while a ReLU network learns"
    figure = Figure(title, columns=3, size=(14.5, 8))
    drive = figure.panel("which layer drives", "step", "share in rᵀKr", legend="")
    tails = figure.panel("tails of the weights", "step", "tail exponent of WᵀW")
    for layer in data.layer.values:
        own = data.sel(layer=layer)
        drive.curve(data.step, own.drive / data.drive.sum("layer"), "-", f"layer {layer}")
        tails.curve(data.step, own.exponent, "-", f"layer {layer}")
    inputs = Axis("input", reverse=True)
    together = figure.panel("co-activation of the last layer, start", "input", inputs, equal=True)
    together.heat_map(data.coactivation.sel(end="start"))
    panel = figure.panel("", "step", "alignment with the gradient")
    for layer, own, color in coloured(data, "metric_layer"):
        panel.curve(data.step, own.alignment, "-", f"$G_{layer}$", color)
    panel = figure.panel("inputs not trained on; dashed: first power", log("η"), log("error / change"))
    panel.curve(data.eta, data.watched_error, "o-", "", BLUE)
    panel.curve(data.eta, data.eta * float(data.watched_error[0] / data.eta[0]), "--", "", INK)
    together = figure.panel("co-activation of the last layer, end", "input", inputs, equal=True)
    together.heat_map(data.coactivation.sel(end="end"))
    return figure
