"""Collective fields of ReLU networks with one to four hidden layers: predicted and real updates, and whole trainings.

The note prints no figures, so these are tests of its statements. One step of descent changes residuals, activations
and conjugate fields by (171), (152) and (185) up to order eta^2 while no mask flips, and exactly so with one hidden
layer; flips are counted and their part is separated. One hidden layer is trained without weights (47), and while
deeper networks learn, the split of the kernel into layers (172) is followed.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray

from foretrain.experiments.judgements import claim_row, sampled
from foretrain.experiments.networks import he_normal
from foretrain.experiments.pictures import coloured
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import INK, PALETTE, Axis, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, torch_generator
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import torch

DEPTHS = (1, 2, 3, 4)
_SIZES = 2.0 ** np.arange(-16.0, 1.0)  # of steps, in units of the largest stable one
_SMALL = 6  # places of the sizes between which powers of eta are read: the first seven
_EXACT = 1e-9  # relative to the change: what rounding leaves of a field after a small step


@dataclass(frozen=True)
class Plan:
    """The networks of each depth, how long they train, and how often they are looked at."""

    networks: int
    inputs: int
    width: int
    steps: int
    every: int


PLANS = plans(quick=Plan(6, 16, 48, 300, 6), paper=Plan(40, 64, 256, 2_000, 20))


def collective_fields(plan: Plan, seed: int) -> Result:
    """Orders of one-step predictions, mask flips, training without weights, and layers of the kernel."""
    from foretrain.empirical.fields import record_fields

    seeds = spawn(seed, len(DEPTHS))
    cases, depths = list(zip(DEPTHS, seeds, strict=True)), xarray.Variable("depth", list(DEPTHS))
    steps = xarray.concat([_steps(plan, *case) for case in track(cases, "depths")], depths)
    courses = []
    for depth, own in cases:
        # Loss and share of every layer in the trace of the kernel while a network learns.
        model, x, y = _network(plan, depth, spawn(own, 1)[0])
        rate = 0.1 * _largest_rate(model, x)
        record = record_fields(model, x, y, plan.steps, rate, every=plan.every, readout="mean")
        trace = record.kernel_trace.sum("layer")
        values = {"share": record.kernel_trace / trace, "loss": record.loss, "trace": trace}
        courses.append(xarray.Dataset(values).drop_attrs())
    learning = xarray.concat(courses, depths, join="outer")
    data = xarray.merge([steps, learning, _without_weights(plan, seeds[0])])
    told, gaps = "Σ Q S (172) against automatic gradients, relative", data.kernel_gap.max("network")
    rows = [claim_row(f"L = {int(gap.depth)}: {told}", 0.0, gap, gap < _EXACT) for gap in gaps]
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
    return Result(verdict, tuple(rows), data, _draw)


def _network(plan: Plan, depth: int, seed: Seed) -> tuple[torch.nn.Sequential, torch.Tensor, torch.Tensor]:
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


def _steps(plan: Plan, depth: int, seed: Seed) -> xarray.Dataset:
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
            xarray.Dataset(
                {
                    **{name: (("kind", "step_size"), values) for name, values in errors.items()},
                    "flips": ("step_size", report.flips.sum("layer").values / (depth * x.numel())),
                    "kernel_gap": ((), _kernel_gap(model, x, found.kernel.values)),
                },
                coords={"kind": ["residual", "activation", "conjugate"], "step_size": _SIZES},
            )
        )
    return xarray.concat(parts, "network")


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


def _without_weights(plan: Plan, seed: Seed) -> xarray.Dataset:
    """One hidden layer trained with weights, and without by its preactivations and by its activations."""
    from foretrain.empirical.fields import simulate, weight_training

    model, x, y = _network(plan, 1, spawn(seed, 1)[0])
    arguments: tuple[Any, ...] = (model, x, y, plan.steps, 0.5 * _largest_rate(model, x))
    real = weight_training(*arguments, readout="mean")
    parts = {way: simulate(*arguments, readout="mean", evolve=way) for way in ("preactivation", "activation")}
    gaps = [np.abs(each.outputs - real.outputs).max(("input", "output")).values for each in parts.values()]
    return xarray.Dataset(
        {"gap": (("way", "time"), np.stack(gaps)), "real_loss": ("time", real.loss.values)},
        coords={"way": list(parts), "time": real.step.values},
    )


def _order_rows(data: xarray.Dataset) -> list[Row]:
    """With masks kept, the error over the change is of order eta, and nothing with one hidden layer."""
    rows = []
    for depth in data.depth.values:
        for kind in data.kind.values:
            share = data.frozen_error.sel(depth=depth, kind=kind).isel(step_size=slice(0, _SMALL + 1))
            title = f"L = {depth}: {kind}, masks kept"
            if depth == 1:
                largest = data.frozen_error.sel(depth=depth, kind=kind).max()
                rows.append(claim_row(f"{title}, error / change", 0.0, largest, largest < _EXACT))
                continue
            ends = np.log2(share.isel(step_size=[0, -1]).values)
            power, error = sampled(1 + (ends[:, 1] - ends[:, 0]) / _SMALL)
            agrees = abs(power - 2) <= max(0.02, 3 * error)
            rows.append(Row(f"{title}, power of η in the error", 2.0, power, error, agrees))
    return rows


def _other_rows(data: xarray.Dataset) -> list[Row]:
    """Training without weights, and shares of the layers in the kernel before and after, for orientation."""
    # By preactivations the twin is exact for all time; by activations until a dead unit should revive.
    exact, revived = (float(data.gap.sel(way=way).max()) for way in ("preactivation", "activation"))
    title = f"outputs without weights against weights, {int(data.time[-1])} steps"
    note = "Dead units cannot revive when activations alone are evolved: exact only until one should."
    rows = [
        claim_row(f"{title}: by preactivations (47)", 0.0, exact, exact < _EXACT),
        Row(f"{title}: by activations (50)", "exact until a unit revives", revived, note=note),
    ]
    for depth in DEPTHS[1:]:
        share, loss = data.share.sel(depth=depth).dropna("layer", how="all"), data.loss.sel(depth=depth)
        start, end = (", ".join(f"{float(value):.2f}" for value in share.isel(step=at)) for at in (0, -1))
        note = f"The loss falls to {float(loss[-1] / loss[0]):.2g} of its first value."
        rows.append(Row(f"L = {depth}: shares of layers 1..{depth} in K, start → end", start, end, note=note))
    return rows


def _draw(data: xarray.Dataset) -> Figure:
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
