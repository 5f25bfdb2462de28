"""The imbalance identity on real networks, and how slowly small networks lose their balance (section 2, A.2, (28)).

‖W_{l+1}‖² - ‖W_l‖² drifts by the expectation (2), for any activation, loss and data: drifts of random networks are
compared with it to rounding, with equal and with unequal rates, and along whole descents. Classes differ in the size
of the drift: nothing for linear and ReLU networks, and ε^(L + (q-1) l) for layers of size ε (28). The matrix form of
corollary 12 as printed holds on its diagonal alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray

from foretrain.experiments.judgements import claim_row, computed_row, sampled
from foretrain.experiments.networks import he_normal
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import PALETTE, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, torch_generator

if TYPE_CHECKING:
    import torch


_LAYERS = (5, 12, 12, 12, 1)
_DEPTH = len(_LAYERS) - 1
_CLASSES = {
    "identity": "A",
    "relu": "A, almost everywhere",
    "tanh": "B, q = 3",
    "gelu": "C, q = 2",
    "softplus": "D",
}
_MODULES = dict(zip(_CLASSES, ("Identity", "ReLU", "Tanh", "GELU", "Softplus"), strict=True))
_ORDERS = {"tanh": 3, "gelu": 2}
_SIZES = (0.02, 0.01)  # of all layers, between which powers are read
_POWER_ERROR = 0.05
_EXACT = 1e-11


@dataclass(frozen=True)
class Plan:
    """How many networks, samples of their data, and steps of descent."""

    networks: int
    samples: int
    steps: int


PLANS = plans(quick=Plan(4, 400, 300), paper=Plan(40, 4_000, 3_000))


def imbalance_identity(plan: Plan, seed: int) -> Result:
    """Drifts of the imbalance against the identity, along descents, by class, and for small layers."""
    moments, powers, descents = spawn(seed, 3)
    # Along descents the imbalance of the layers changes; what the identity leaves of that is kept.
    from foretrain.empirical.imbalance import record_imbalance

    first, second = spawn(descents, 2)
    batches, records = [_samples(plan.samples, second)] * plan.steps, []

    def half_mean_square(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 0.5 * ((outputs - y) ** 2).mean()

    for name in track(_CLASSES, "descents"):
        records.append(record_imbalance(_network(name, 0.7, first), batches, half_mean_square, lr=0.02))
    dims, values = ("activation", "step", "pair"), ("change", "second_order")
    courses = {name: (dims, np.stack([record[name].values for record in records])) for name in values}
    left = [np.abs(record["difference"].values).max() for record in records]
    descents_found = xarray.Dataset({**courses, "left": ("activation", left)}, {"activation": list(_CLASSES)})
    data = xarray.merge([_identities(plan, moments), _powers(plan, powers), descents_found])
    rows = []
    for name, letter in _CLASSES.items():
        own, title = data.sel(activation=name), f"{name} (class {letter})"
        rows += [
            computed_row(f"{title}: drift less identity (2), relative", 0.0, own.difference, _EXACT),
            computed_row(f"{title}: the same with unequal rates (A.2)", 0.0, own.with_rates, _EXACT),
        ]
    tanh = data.sel(activation="tanh")
    rows.append(computed_row("tanh: drift of the matrix less its identity", 0.0, tanh.matrix, 1e-9))
    title = "tanh: drift of the matrix less that of corollary 12 as printed, relative"
    note = "off the diagonal σ'(z_i) z_j is not φ: the identity has E[(σ'p)zᵀ + z(σ'p)ᵀ − pσᵀ − σpᵀ]"
    printed = tanh.printed_matrix
    rows += [claim_row(title, 0.0, printed, printed < 1e-9, note, disputed=True), *_power_rows(data)]
    for name, letter in _CLASSES.items():
        own = data.sel(activation=name)
        title = f"{name}: change of the imbalance in {plan.steps} steps less identity and second order"
        rows.append(computed_row(title, 0.0, own.left, 1e-10))
        if letter.startswith("A"):
            drift, added = (np.abs(each).max() for each in (own.change - own.second_order, own.second_order))
            note = f"what steps of finite size add, of second order, is {float(added):.2g}"
            title = f"{name}: drift of gradient flow itself, conserved"
            rows.append(computed_row(title, 0.0, float(drift), 1e-10, note))
    good = all(row.agrees is not False for row in rows if not row.disputed)
    verdict = (
        f"The imbalance identity {'holds' if good else 'does NOT hold'} to rounding for {len(_CLASSES)} activations; "
        "small layers lose their balance by the powers of (28), the slower the further from the input, and linear "
        "and ReLU networks not at all."
    )
    return Result(verdict, tuple(rows), data, _draw)


def _network(name: str, size: float, seed: Seed) -> torch.nn.Sequential:
    """Layers without biases, times a factor."""
    return he_normal(_MODULES[name], _LAYERS, torch_generator(seed), size)


def _samples(count: int, seed: Seed) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    x = torch.randn(count, _LAYERS[0], dtype=torch.float64, generator=torch_generator(seed))
    return x, torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:2] + 0.5 * x[:, 2:3] ** 2  # neither odd nor even


def _quartic(outputs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss that is not a sum of squares: the identity holds for any."""
    return ((outputs - y) ** 4).mean()


def _identities(plan: Plan, seed: Seed) -> xarray.Dataset:
    """Largest relative differences of drift and identity, plain, with unequal rates, and of the two matrix forms."""
    from foretrain.empirical.imbalance import imbalance

    names, eps = ("difference", "with_rates", "matrix", "printed_matrix"), float(np.finfo(float).eps)
    found = np.zeros((len(_CLASSES), len(names)))
    for row, name in enumerate(track(_CLASSES, "activations")):
        for own in spawn(seed, plan.networks):
            first, second = spawn(own, 2)
            model, (x, y) = _network(name, 1.0, first), _samples(plan.samples, second)
            plain = imbalance(model, x, y, _quartic)
            rates = {key: 0.5 + 0.7 * place for place, (key, _) in enumerate(model.named_parameters())}
            drifts = [each.data for each in (plain, imbalance(model, x, y, _quartic, rates))]
            relative = [float(np.abs(each["difference"] / each["roundoff"]).max()) * eps for each in drifts]
            matrix = plain.matrix(0)
            unit = float(np.abs(matrix["identity"]).max()) or 1.0
            for key in ("identity", "printed"):
                relative.append(float(np.abs(matrix[key] - matrix["drift"]).max()) / unit)
            found[row] = np.maximum(found[row], relative)
    return xarray.Dataset(
        {name: ("activation", found[:, column]) for column, name in enumerate(names)},
        coords={"activation": list(_CLASSES)},
    )


def _powers(plan: Plan, seed: Seed) -> xarray.Dataset:
    """Drifts of the three pairs of layers for layers of two sizes: (activation, network, pair, size)."""
    from foretrain.empirical.imbalance import imbalance

    found = np.empty((len(_ORDERS), plan.networks, _DEPTH - 1, len(_SIZES)))
    for row, name in enumerate(_ORDERS):
        for place, own in enumerate(spawn(seed, plan.networks)):
            first, second = spawn(own, 2)
            x, y = _samples(plan.samples, second)
            for column, size in enumerate(_SIZES):
                drift = imbalance(_network(name, size, first), x, y, _quartic).data["identity"]
                found[row, place, :, column] = np.abs(drift.values)
    labels = {"bent": list(_ORDERS), "layer": np.arange(1, _DEPTH), "size": list(_SIZES)}
    return xarray.Dataset({"drift": (("bent", "network", "layer", "size"), found)}, labels)


def _power_rows(data: xarray.Dataset) -> list[Row]:
    rows = []
    ratio = np.log(data.drift.isel(size=0) / data.drift.isel(size=1)) / np.log(_SIZES[0] / _SIZES[1])
    for name, q in _ORDERS.items():
        for layer in data.layer.values.tolist():
            here, error = sampled(ratio.sel(bent=name, layer=layer).values)
            expected = float(_DEPTH + (q - 1) * layer)
            agrees = bool(abs(here - expected) <= _POWER_ERROR + 3 * error)
            title = f"{name}: power of ε in the drift of layers {layer} and {layer + 1} (28)"
            rows.append(Row(title, expected, here, error, agrees))
    return rows


def _draw(data: xarray.Dataset) -> Figure:
    figure = Figure("Balance of layers: what is conserved, what drifts", columns=2, size=(13, 5))
    change = "‖W₂‖² − ‖W₁‖², change by gradient flow"
    panel = figure.panel("linear and ReLU networks conserve it", "step of descent", change)
    for name, letter in _CLASSES.items():
        own = data.sel(activation=name).isel(pair=0)
        style = "--" if name == "relu" else "-"  # that of the identity lies below it
        panel.curve(data.step, own.change - own.second_order, style, f"{name} ({letter})")
    sizes = log("size ε of all layers", ticks=_SIZES)
    title, y = "small layers lose their balance late (28)", log("drift of the imbalance")
    panel = figure.panel(title, sizes, y, legend="right")
    typical = np.exp(np.log(data.drift).mean("network"))
    for style, name in (("o-", "tanh"), ("s--", "gelu")):
        for color, layer in zip(PALETTE, data.layer.values.tolist(), strict=False):
            label = f"{name}, layers {layer} and {layer + 1}: $ε^{{{_DEPTH + (_ORDERS[name] - 1) * layer}}}$"
            panel.curve(data["size"], typical.sel(bent=name, layer=layer), style, label, color)
    return figure
