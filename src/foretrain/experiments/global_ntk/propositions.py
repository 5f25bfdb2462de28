"""The statements of the theory of the global-state NTK on small networks, written out as matrices (Hazelden et al.).

Proposition 1 against real steps of descent; theorem 1 in its exact form, a direct sum over weight matrices, beside
two readings that are not exact: one propagator for both products of a GRU, and a propagator without the slope of the
activation; corollary 2 against the slope of the loss; the bounds on ranks of proposition 2; frozen weights; and the
partial trace (15) beside the average over all pairs of units. All in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray

from foretrain.experiments.judgements import claim_row, computed_row
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import FAINT, GREEN, RED, Figure, log, names_axis
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, torch_generator

if TYPE_CHECKING:
    import torch

    from foretrain.empirical.global_ntk import GlobalNTK


_CELLS = ("RNN", "GRU", "LSTM")
_STEPS = 2.0 ** -np.arange(4.0, 12.0)  # of descent, in units of 1 / largest eigenvalue
_EXACT = 1e-10
_READINGS = {
    "GRU, hidden propagator for both": "W_h h and W_i x enter differently: a gate multiplies the former",
    "GRU, input propagator for both": "the same, the other way round",
    "RNN, propagator without φ'": "a change of W acts before the activation: P_core = P diag φ'",
}


@dataclass(frozen=True)
class Plan:
    """Sizes of the recurrent networks, and how many are drawn."""

    batch: int
    time: int
    units: int
    inputs: int
    draws: int


PLANS = plans(quick=Plan(3, 5, 4, 2, 4), paper=Plan(5, 10, 12, 3, 20))


def global_ntk_propositions(plan: Plan, seed: int) -> Result:
    """Errors of every statement on small recurrent networks, and by how much other readings miss."""
    found = [
        xarray.concat([_measured(plan, cell, own) for cell in _CELLS], xarray.Variable("cell", list(_CELLS)))
        for own in track(spawn(seed, plan.draws), "networks")
    ]
    readings = [_readings(plan, own) for own in spawn(seed, plan.draws)]
    data = xarray.merge([xarray.concat(found, "draw"), xarray.concat(readings, "draw")])
    rows = _cell_rows(data)
    for reading, why in _READINGS.items():
        values = data.reading_error.sel(reading=reading)
        least, note = values.min(), f"up to {float(values.max()):.2g}; {why}"
        title = f"{reading}: relative distance from NTK_S, at least"
        rows.append(claim_row(title, 0.0, least, least < _EXACT, note, disputed=True))
    title = "average over all pairs of units against the partial trace (15), relative"
    note = "the proof of proposition 2 needs the partial trace"
    for mean in data.trace_apart.mean("draw"):
        rows.append(claim_row(f"{mean.cell.item()}: {title}", "a different matrix", mean, None, note))
    good = all(row.agrees is not False for row in rows if not row.disputed)
    verdict = (
        f"Propositions 1 and 2, theorem 1 as a direct sum and corollary 2 {'hold' if good else 'do NOT all hold'} to "
        f"rounding on {', '.join(_CELLS)}; one propagator for both products of a GRU misses its NTK by "
        f"{float(data.reading_error.isel(reading=0).mean()):.0%}."
    )
    return Result(verdict, tuple(rows), data, _draw)


def _network(plan: Plan, cell: str, seed: Seed) -> tuple[torch.nn.RNNBase, torch.Tensor, torch.Tensor]:
    """A recurrent module with normal weights, inputs, and targets for its states."""
    import torch

    source = torch_generator(seed)
    model = getattr(torch.nn, cell)(plan.inputs, plan.units, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        for value in model.parameters():
            value.normal_(0.0, 1.2 / plan.units**0.5, generator=source)
    shape = (plan.batch, plan.time)
    x = torch.randn(*shape, plan.inputs, dtype=torch.float64, generator=source)
    y = torch.randn(*shape, plan.units, dtype=torch.float64, generator=source)
    return model, x, y


def _measured(plan: Plan, cell: str, seed: Seed) -> xarray.Dataset:
    """Errors of all statements for one network."""
    import torch

    from foretrain.empirical.global_ntk import global_ntk

    model, x, y = _network(plan, cell, seed)
    kernel = global_ntk(model, x)
    dense = kernel.dense()
    states = model(x)[0].detach()
    err = states - y
    largest = float(torch.linalg.eigvalsh(dense)[-1])
    linear, gaps = (dense @ err.flatten()).view_as(err), []
    for eta in _STEPS / largest:
        change = _step(model, x, err, eta) - states
        gaps.append(float((change + eta * linear).norm() / (eta * linear.norm())))
    decrease = kernel.loss_decrease(err)
    traced = kernel.partial_trace(over="unit", normalize=True, method="exact").dense()
    slope = float(err.flatten() @ dense @ err.flatten())
    # dL/dη of half the squared distance at η = 0, by centred differences of real steps.
    ends = [_step(model, x, err, sign * 1e-5) for sign in (1, -1)]
    up, down = (0.5 * float((end - y).square().sum()) for end in ends)
    real = (up - down) / (2 * 1e-5)
    groups = ("weight_ih*", "weight_hh*", "bias*")
    alone = [global_ntk(model, x, parameters=group).dense() for group in groups]
    few = global_ntk(model, x[..., :1] * torch.ones_like(x), parameters="weight_ih*")
    return xarray.Dataset(
        {
            "step_error": ("step", gaps),
            "core_error": _apart(kernel.core.dense(), dense),
            "frozen_error": _apart(torch.stack(alone).sum(dim=0), dense),
            "decrease_error": abs(decrease.total / slope - 1),
            "slope_error": abs(real / -slope - 1),
            "beyond": max(_beyond(few, err, axis) for axis in (0, 1)),
            "trace_apart": _apart(kernel.pair_sum(over="unit").dense() / plan.units, traced),
        },
        coords={"step": _STEPS},
    )


def _apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Relative distance in the Frobenius norm."""
    return float((found - expected).norm() / expected.norm())


def _step(model: torch.nn.RNNBase, x: torch.Tensor, err: torch.Tensor, eta: float) -> torch.Tensor:
    """The states after one step of descent on <err, h>, whose gradient at the states is err."""
    import copy

    import torch

    moved = copy.deepcopy(model)
    (moved(x)[0] * err).sum().backward()
    with torch.no_grad():
        for value in moved.parameters():
            assert value.grad is not None
            value.sub_(value.grad, alpha=eta)
        found: torch.Tensor = moved(x)[0]
    return found


def _beyond(kernel: GlobalNTK, err: torch.Tensor, axis: int) -> float:
    """How far the change of the states leaves the range of NTK_temp (axis 0) or NTK_space (axis 1), at most 1.

    Of proposition 2 what rounding does not blur: for every eigenvector u of a reduced kernel, with eigenvalue λ of
    the plain trace, |u* δh|² <= λ <NTK_S err, err>; directions with λ = 0 are out of reach, which bounds ranks.
    """
    import torch

    places, units = err.shape[0] * err.shape[1], err.shape[2]
    over = ("batch", "time") if axis else ("unit",)
    reduced = kernel.partial_trace(over=over, method="exact").dense()
    change = kernel.apply(err.flatten()[None]).view(places, units)
    values, vectors = torch.linalg.eigh(reduced)
    reached = (vectors.T @ (change if axis == 0 else change.T)).square().sum(dim=1)
    allowed = values * float(err.flatten() @ change.flatten())
    floor = 1e-14 * float(allowed.max())  # rounding of eigenvalues
    return float(((reached - floor) / (allowed + floor)).max())


def _readings(plan: Plan, seed: Seed) -> xarray.Dataset:
    """How far readings of theorem 1 with one propagator are from NTK_S of the weights."""
    import torch

    from foretrain.empirical.global_ntk import global_ntk

    errors = []
    for cell, gates in (("GRU", 3), ("RNN", 1)):
        model, x, _ = _network(plan, cell, seed)
        kernel = global_ntk(model, x, parameters="weight*")
        exact, states = kernel.dense(), model(x)[0].detach()
        # V V* of the states before each step and the inputs, over (batch, time).
        before = torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)
        rows = torch.cat([before, x], 2).flatten(0, 1)
        core = torch.kron(rows @ rows.T, torch.eye(gates * plan.units))
        propagators = _gru_propagators(model, x) if cell == "GRU" else (kernel.P.dense(),)
        errors += [_apart(P @ core @ P.T, exact) for P in propagators]
    return xarray.Dataset({"reading_error": ("reading", errors)}, coords={"reading": list(_READINGS)})


def _gru_propagators(gru: torch.nn.RNNBase, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """dh/dq of changes added to W_h h, and to W_i x, of a GRU written out: (states, products)."""
    import torch

    batch, steps, _ = x.shape
    units = gru.hidden_size
    (W_i, W_h, b_i, b_h) = (value.detach() for value in gru.parameters())

    def run(q_h: torch.Tensor, q_i: torch.Tensor) -> torch.Tensor:
        h, found = torch.zeros(batch, units, dtype=x.dtype), []
        for step in range(steps):
            given = (x[:, step] @ W_i.T + b_i + q_i[:, step]).chunk(3, 1)
            own = (h @ W_h.T + b_h + q_h[:, step]).chunk(3, 1)
            reset, update = torch.sigmoid(given[0] + own[0]), torch.sigmoid(given[1] + own[1])
            candidate = torch.tanh(given[2] + reset * own[2])
            h = (1 - update) * candidate + update * h
            found.append(h)
        return torch.stack(found, 1)

    zero = torch.zeros(batch, steps, 3 * units, dtype=x.dtype)
    jacobians = torch.func.jacrev(run, argnums=(0, 1))(zero, zero)
    size = batch * steps
    hidden, given = (each.reshape(size * units, size * 3 * units) for each in jacobians)
    return hidden, given


def _cell_rows(data: xarray.Dataset) -> list[Row]:
    statements = {
        "core_error": "direct sum over weights less NTK_S, relative (Thm 1)",
        "frozen_error": "sum of NTK_S of each group of weights, the others frozen, less NTK_S, relative",
        "decrease_error": "parts of the loss decrease less <NTK_S err, err>, relative (Cor. 2)",
        "slope_error": "slope of the real loss less that, relative",
    }
    first = "power of η in the error of δh = −η NTK_S err (Prop. 1)"
    last = "one input's weights: change outside of NTK_temp and NTK_space over its bound (Prop. 2)"
    rows = []
    for cell in _CELLS:
        own = data.sel(cell=cell)
        power = 1 + float(np.log2(own.step_error.isel(step=-2) / own.step_error.isel(step=-1)).mean())
        rows.append(computed_row(f"{cell}: {first}", 2.0, power, 0.05))
        for name, words in statements.items():
            allowed = 1e-6 if name == "slope_error" else _EXACT
            rows.append(computed_row(f"{cell}: {words}", 0.0, float(own[name].max()), allowed))
        most = own.beyond.max()
        rows.append(claim_row(f"{cell}, {last}", "at most 1", most, most <= 1 + 1e-9))
    return rows


def _draw(data: xarray.Dataset) -> Figure:
    figure = Figure("The global-state NTK on small networks, written out", columns=2, size=(13, 5))
    x = log("step, in units of 1 / largest eigenvalue")
    y = log("error of −η NTK$_S$ err, relative to the change")
    panel = figure.panel("proposition 1: one real step of descent", x, y)
    for cell in _CELLS:
        own = data.step_error.sel(cell=cell).mean("draw")
        panel.curve(data.step, own, "o-", cell)
    panel.curve(data.step, data.step * float(own[0] / data.step[0]), "--", "first power", FAINT)
    # Theorem 1: exact forms are at rounding, other readings far above.
    errors = {f"{cell}, direct sum": (data.core_error.sel(cell=cell), GREEN) for cell in _CELLS}
    errors |= {str(name): (data.reading_error.sel(reading=name), RED) for name in data.reading.values}
    title = "theorem 1: the direct sum is exact, one propagator is not"
    x, y = log("relative distance from NTK$_S$"), names_axis(list(errors), reverse=True)
    panel = figure.panel(title, x, y)
    for place, (values, color) in enumerate(errors.values()):
        panel.curve(np.maximum(values, 1e-17), np.full(values.size, place), "o", "", color)
    return figure
