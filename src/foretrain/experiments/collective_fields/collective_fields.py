"""Collective fields of networks: predicted and real updates, whole trainings, and weight-induced metrics."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from foretrain.experiments.judgements import claim_row, computed_row, sampled
from foretrain.experiments.networks import he_normal
from foretrain.experiments.pictures import coloured
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import BLUE, INK, PALETTE, Axis, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, integer, spawn, torch_generator
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch

    from foretrain.empirical.fields import Fields

PLANS: dict[str, Any] = {}

DEPTHS = (1, 2, 3, 4)
_SIZES = 2.0 ** np.arange(-16.0, 1.0)  # of steps, in units of the largest stable one
_SMALL = 6  # places of the sizes between which powers of eta are read: the first seven
_FIELDS_EXACT = 1e-9  # relative to the change: what rounding leaves of a field after a small step


@dataclass(frozen=True)
class FieldsPlan:
    """The networks of each depth, how long they train, and how often they are looked at."""

    networks: int
    inputs: int
    width: int
    steps: int
    every: int


PLANS["collective_fields"] = plans(
    quick=FieldsPlan(6, 16, 48, 300, 6), paper=FieldsPlan(40, 64, 256, 2_000, 20)
)


def collective_fields(plan: FieldsPlan, seed: int) -> Result:
    """Collective fields of ReLU networks with one to four hidden layers: predicted and real updates, and whole
    trainings.

    The note prints no figures, so these are tests of its statements. One step of descent changes residuals,
    activations and conjugate fields by (171), (152) and (185) up to order eta^2 while no mask flips, and exactly so
    with one hidden layer; flips are counted and their part is separated. One hidden layer is trained without weights
    (47), and while deeper networks learn, the split of the kernel into layers (172) is followed.
    """
    from foretrain.empirical.fields import record_fields

    seeds = spawn(seed, len(DEPTHS))
    cases, depths = list(zip(DEPTHS, seeds, strict=True)), xr.Variable("depth", list(DEPTHS))
    steps = xr.concat([_steps(plan, *case) for case in track(cases, "depths")], depths)
    courses = []
    for depth, own in cases:
        # Loss and share of every layer in the trace of the kernel while a network learns.
        model, x, y = _network(plan, depth, spawn(own, 1)[0])
        rate = 0.1 * _largest_rate(model, x)
        record = record_fields(model, x, y, plan.steps, rate, every=plan.every, readout="mean")
        trace = record.kernel_trace.sum("layer")
        values = {"share": record.kernel_trace / trace, "loss": record.loss, "trace": trace}
        courses.append(xr.Dataset(values).drop_attrs())
    learning = xr.concat(courses, depths, join="outer")
    # One hidden layer is trained with weights, and without them by its preactivations and by its activations.
    from foretrain.empirical.fields import simulate, weight_training

    model, x, y = _network(plan, 1, spawn(seeds[0], 1)[0])
    arguments: tuple[Any, ...] = (model, x, y, plan.steps, 0.5 * _largest_rate(model, x))
    real = weight_training(*arguments, readout="mean")
    parts = {way: simulate(*arguments, readout="mean", evolve=way) for way in ("preactivation", "activation")}
    gaps = [np.abs(each.outputs - real.outputs).max(("input", "output")).values for each in parts.values()]
    without_weights = xr.Dataset(
        {"gap": (("way", "time"), np.stack(gaps)), "real_loss": ("time", real.loss.values)},
        coords={"way": list(parts), "time": real.step.values},
    )
    data = xr.merge([steps, learning, without_weights])
    told, gaps = "Σ Q S (172) against automatic gradients, relative", data.kernel_gap.max("network")
    rows = [claim_row(f"L = {int(gap.depth)}: {told}", 0.0, gap, gap < _FIELDS_EXACT) for gap in gaps]
    rows += _order_rows(data)
    for depth, size in product(DEPTHS, (2.0**-6, 1.0)):  # what flips add: the note gives no number for it
        one = data.sel(depth=depth, kind="residual", step_size=size)
        flips, wrong, kept = (one[name].mean("network") for name in ("flips", "error", "frozen_error"))
        title = f"L = {depth}, η = {size:.3g} of the largest stable: error of Δr / Δr, masks free"
        note = f"{float(flips):.2%} of the masks flip; with masks kept {float(kept):.2g}"
        rows.append(Row(title, "none published", float(wrong), note=note))
    rows += _other_rows(data)
    word = "hold" if all(row.agrees is not False for row in rows) else "do NOT all hold"
    verdict = (
        f"The first-order equations of the fields {word} up to η² for one to four hidden layers while masks stay; "
        "with one hidden layer they are exact, and training without weights gives the outputs of training with them."
    )
    return Result(verdict, tuple(rows), data, _fields_draw)


def _network(
    plan: FieldsPlan, depth: int, seed: Seed
) -> tuple[torch.nn.Sequential, torch.Tensor, torch.Tensor]:
    """A ReLU network without biases, read by its mean (9), inputs, and targets that are positive like outputs."""
    import torch

    source = torch_generator(seed)
    body = he_normal("ReLU", [plan.width] * (depth + 1), source)
    x = torch.randn(plan.inputs, plan.width, dtype=torch.float64, generator=source)
    y = 0.5 + 0.4 * torch.sin(2 * x[:, :1])
    return torch.nn.Sequential(*body, torch.nn.ReLU()), x, y


def _largest_rate(model: torch.nn.Sequential, x: torch.Tensor) -> float:
    """2 over the largest eigenvalue of (2 / M) K: where descent of the residuals (171) ceases to be stable."""
    from foretrain.empirical.fields import fields

    return float(len(x) / fields(model, x, readout="mean").kernel_spectrum.sel(part="total").max())


def _steps(plan: FieldsPlan, depth: int, seed: Seed) -> xr.Dataset:
    """Errors of one-step predictions over the changes, of residuals, and of the worst u and b, for many networks."""
    from foretrain.empirical.fields import fields

    parts = []
    for own in spawn(seed, plan.networks):
        model, x, y = _network(plan, depth, own)
        rates = _SIZES * _largest_rate(model, x)
        found = fields(model, x, readout="mean")
        report = found.step_report(list(rates), y).data.sel(norm="rms")
        # The largest error over the layers of one kind of field, relative to the linear change, which is that of the
        # smallest step, scaled up: larger real changes contain flips.
        linear = report["change"].isel(lr=0) * report.lr / report.lr[0]
        kinds = [[n for n in map(str, report.field.values) if n.startswith(letter)] for letter in "rub"]
        errors = {
            name: np.stack([(report[name] / linear).sel(field=kind).max("field").values for kind in kinds])
            for name in ("error", "frozen_error")
        }
        parts.append(
            xr.Dataset(
                {
                    **{name: (("kind", "step_size"), values) for name, values in errors.items()},
                    "flips": ("step_size", report.flips.sum("layer").values / (depth * x.numel())),
                    "kernel_gap": ((), _kernel_gap(model, x, found.kernel.values)),
                },
                coords={"kind": ["residual", "activation", "conjugate"], "step_size": _SIZES},
            )
        )
    return xr.concat(parts, "network")


def _kernel_gap(model: torch.nn.Sequential, x: torch.Tensor, kernel: FloatArray) -> float:
    """Relative distance of sum Q S (172) from the kernel of automatic gradients."""
    import torch

    weights = list(model.parameters())
    outputs = model(x).mean(dim=1)
    rows = [
        torch.cat([g.flatten() for g in torch.autograd.grad(one, weights, retain_graph=True)])
        for one in outputs
    ]
    automatic = (torch.stack(rows) @ torch.stack(rows).T).numpy()
    return float(np.abs(kernel.reshape(automatic.shape) - automatic).max() / np.abs(automatic).max())


def _order_rows(data: xr.Dataset) -> list[Row]:
    """With masks kept, the error over the change is of order eta, and nothing with one hidden layer."""
    rows = []
    for depth in data.depth.values:
        for kind in data.kind.values:
            share = data.frozen_error.sel(depth=depth, kind=kind).isel(step_size=slice(0, _SMALL + 1))
            title = f"L = {depth}: {kind}, masks kept"
            if depth == 1:
                largest = data.frozen_error.sel(depth=depth, kind=kind).max()
                rows.append(claim_row(f"{title}, error / change", 0.0, largest, largest < _FIELDS_EXACT))
                continue
            ends = np.log2(share.isel(step_size=[0, -1]).values)
            power, error = sampled(1 + (ends[:, 1] - ends[:, 0]) / _SMALL)
            agrees = abs(power - 2) <= max(0.02, 3 * error)
            rows.append(Row(f"{title}, power of η in the error", 2.0, power, error, agrees))
    return rows


def _other_rows(data: xr.Dataset) -> list[Row]:
    """Training without weights, and shares of the layers in the kernel before and after, for orientation."""
    # By preactivations the twin is exact for all time; by activations until a dead unit should revive.
    exact, revived = (float(data.gap.sel(way=way).max()) for way in ("preactivation", "activation"))
    title = f"outputs without weights against weights, {int(data.time[-1])} steps"
    note = "Dead units cannot revive when activations alone are evolved: exact only until one should."
    rows = [
        claim_row(f"{title}: by preactivations (47)", 0.0, exact, exact < _FIELDS_EXACT),
        Row(f"{title}: by activations (50)", "exact until a unit revives", revived, note=note),
    ]
    for depth in DEPTHS[1:]:
        share, loss = data.share.sel(depth=depth).dropna("layer", how="all"), data.loss.sel(depth=depth)
        start, end = (", ".join(f"{float(value):.2f}" for value in share.isel(step=at)) for at in (0, -1))
        note = f"The loss falls to {float(loss[-1] / loss[0]):.2g} of its first value."
        rows.append(Row(f"L = {depth}: shares of layers 1..{depth} in K, start → end", start, end, note=note))
    return rows


def _fields_draw(data: xr.Dataset) -> Figure:
    """One-step errors, flips, training without weights, and layers of the kernel."""
    figure = Figure("Collective fields of ReLU networks with L hidden layers", columns=3, size=(16, 9))
    eta, sizes = log("η / largest stable"), data.step_size
    title = "masks kept: residuals (solid), conjugate fields (dotted)"
    y = log("error / linear change", 1e-15, 10)
    kept = figure.panel(title, eta, y)
    free = figure.panel("masks free (dotted: kept)", eta, log("error of Δr / Δr", 1e-8, 10))
    flips = figure.panel("mask flips in one step", eta, log("share of masks that flip"))
    title, y = "one hidden layer, trained without weights", log("loss; difference of outputs")
    simulation = figure.panel(title, "step", y)
    title = "layers of the kernel: L = 4 (solid), 3 (dashed), 2 (dotted)"
    shares = figure.panel(title, "step", Axis("share of tr K", low=0))
    title, y = "loss, and trace of K (dashed), while they learn", log("over its first value", 1e-10, 10)
    losses = figure.panel(title, "step", y)
    for depth, own, color in coloured(data, "depth"):
        label = f"L = {depth}"
        error, frozen, flipped = (own[name].mean("network") for name in ("error", "frozen_error", "flips"))
        residual, conjugate = (np.maximum(frozen.sel(kind=k), 1e-15) for k in ("residual", "conjugate"))
        kept.curve(sizes, residual, "o-", label, color, size=3)
        kept.curve(sizes, conjugate, "s:", "", color, size=3)
        free.curve(sizes, np.maximum(error.sel(kind="residual"), 1e-15), "o-", label, color, size=3)
        free.curve(sizes, residual, ":", "", color, width=1)
        flips.curve(sizes, flipped.where(flipped > 0), "o-", label, color, size=3)
        losses.curve(own.step, own.loss / own.loss[0], "-", f"{label}: loss", color)
        losses.curve(own.step, own.trace / own.trace[0], "--", "", color, width=1)
    kept.curve(sizes, 0.3 * sizes, "--", "∝ η", INK, width=1)
    flips.curve(sizes, 0.05 * sizes, "--", "∝ η", INK, width=1)
    losses.level(y=1)
    simulation.curve(data.time, data.real_loss, "-", "loss, with weights", INK)
    for way, own, color in coloured(data, "way"):
        gap = np.maximum(own.gap, 1e-17)
        simulation.curve(data.time, gap, "-", f"largest difference, by {way}s", color)
    for depth, style in ((2, ":"), (3, "--"), (4, "-")):
        for color, layer in zip(PALETTE, data.layer.values[:depth], strict=False):
            share, label = data.share.sel(depth=depth, layer=layer), f"layer {layer}" if depth == 4 else ""
            shares.curve(data.step, share, style, label, color)
    return figure


_BIASES = 0.3  # their deviation
_NETWORKS = {  # activation, widths, biases
    "relu, unequal widths": ("ReLU", (4, 9, 6, 5, 1), None),
    "relu, biases, three outputs": ("ReLU", (4, 7, 8, 3), _BIASES),
    "tanh, biases": ("Tanh", (4, 10, 7, 1), _BIASES),
    "gelu, three outputs": ("GELU", (4, 8, 8, 8, 3), None),
}
_METRICS_EXACT = 1e-11
_STEPS = 2.0 ** -np.arange(8.0, 15.0)


@dataclass(frozen=True)
class MetricsPlan:
    """The network that learns, and how often it is looked at."""

    inputs: int
    width: int
    hidden: int
    steps: int
    every: int


PLANS["weight_metrics"] = plans(
    quick=MetricsPlan(40, 64, 3, 400, 20), paper=MetricsPlan(200, 300, 4, 4_000, 100)
)


def weight_metrics(plan: MetricsPlan, seed: int) -> Result:
    """Weight-induced metrics: the kernel of general networks layer by layer, inputs that are not trained on, and
    spectra.

    The split of the tangent kernel into overlaps times correlators (172) is tested beyond the note's setting:
    unequal widths, smooth activations, biases, several outputs. The change of inputs that only watch (62)-(64) is
    put beside real steps. Identities between co-activation projectors, pullback metrics and transport operators
    (165)-(188) follow. Last, while a ReLU network learns: which layer drives the residual, how the metric aligns
    with the gradient, and whether trained weights get heavy tails, as section 10.3 conjectures: an experiment, not a
    theorem.
    """
    general, watching, learning = spawn(seed, 3)
    structure = {name: _structure(name, own) for name, own in zip(_NETWORKS, spawn(general, 4), strict=True)}
    data = xr.merge([_watching(watching), _learning(plan, learning)])
    rows, identities = (
        [],
        {
            "split": "Σ Q S (172) against automatic gradients, relative",
            "pullback": "P[I] − G (188)",
            "transport": "transport operator written out against its recursion (187)",
        },
    )
    for name, found in structure.items():
        rows += [
            computed_row(f"{name}: {told}", 0.0, found[key], _METRICS_EXACT)
            for key, told in identities.items()
        ]
        lowest = found["lowest"]
        title = f"{name}: lowest eigenvalue of the metric G_0 of an input with itself, over the largest"
        rows.append(claim_row(title, "not negative", lowest, lowest > -_METRICS_EXACT))
    rows += [*_watching_rows(data), *_learning_rows(data)]
    good = all(row.agrees is not False for row in rows)
    last = data.drive.isel(step=-1) / data.drive.isel(step=-1).sum()
    first = int(np.argmax(last.values)) + 1
    verdict = (
        f"Kernels of general networks {'split' if good else 'do NOT all split'} into layers to rounding, and inputs "
        f"that only watch follow the trained ones to first order; after training layer {first} of "
        f"{data.sizes['layer']} drives {float(last.max()):.0%} of the residual."
    )
    return Result(verdict, tuple(rows), data, _metrics_draw)


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


def _watching(seed: Seed) -> xr.Dataset:
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
    return xr.Dataset({"watched_error": ("eta", errors)}, coords={"eta": _STEPS})


def _watching_rows(data: xr.Dataset) -> list[Row]:
    power = 1 + float(np.log2(data.watched_error[-2] / data.watched_error[-1]))
    title = "tanh, inputs not trained on: power of η in the error of their change (62)-(64)"
    return [computed_row(title, 2.0, power, 0.05)]


def _learning(plan: MetricsPlan, seed: Seed) -> xr.Dataset:
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

    def watch(now: Fields) -> dict[str, xr.DataArray]:
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
    return xr.Dataset(kept).drop_attrs().assign(first_tail_p_value=p_value)


def _learning_rows(data: xr.Dataset) -> list[Row]:
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


def _metrics_draw(data: xr.Dataset) -> Figure:
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
