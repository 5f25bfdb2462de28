"""How much one step of gradient descent moves the last hidden layer: of order 1/n, and how large (section 10.1.2).

The first order in the learning rate of the change of every neuron of layer L - 1 is measured exactly on real networks
of three widths. n times its mean and its covariance over neurons and networks, extrapolated to infinite width, are
put beside (10.11) and (10.12). The latter as printed lacks the variance of the tangent kernel, a term of the same
order where there are two hidden layers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from foretrain.activations import Activation, activation
from foretrain.compare.judging.agreement import judge
from foretrain.experiments.effective_theory.width_limits import limits_of_batches
from foretrain.experiments.judgements import judgement_rows, measured_row
from foretrain.experiments.registry import Result, Row, Scale
from foretrain.support.drawing import FAINT, INK, PALETTE, RED, new_figure
from foretrain.support.progress import track
from foretrain.support.seeds import spawn
from foretrain.theory.architecture import MLP
from foretrain.theory.prediction.infinite_width import hidden_update

if TYPE_CHECKING:
    import xarray
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = NDArray[np.float64]

_X = 1.3 * np.array([[1, 0.2, -0.5], [-0.4, 1.1, 0.3], [0.1, -0.6, 1.2], [0.8, 0.7, 0.1]])
_Y = np.array([[1.0], [-0.7], [0.4]])  # of the first three inputs; the last is only watched
_TRAINED = len(_Y)
_BATCHES = 50
_MARKED = ((0, 0), (0, 1), (3, 3))  # entries of the covariance that are told
_BOOK_BOUND = 3.0


@dataclass(frozen=True)
class Plan:
    """How many networks of which widths make a step."""

    draws: dict[int, int]  # networks by width


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan({32: 16_000, 64: 12_000, 128: 8_000}),
    Scale.PAPER: Plan({64: 40_000, 128: 30_000, 256: 20_000}),
}


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
    slope = {"relu": 2.0}.get(act.name, 1.0)
    return MLP(act, depth, width, n_in=3, C_b=0.1, C_W=slope, lambda_b=0.3, lambda_W=0.7)


def hidden_updates(plan: Plan, seed: int) -> Result:
    """n times mean and covariance of the change of hidden neurons in one step, measured and from theory."""
    import xarray

    names = list(_cases())
    found = [
        _measured(case, plan.draws, own)
        for case, own in track(list(zip(names, spawn(seed, len(names)), strict=True)), "activations")
    ]
    data = xarray.concat(found, xarray.Variable("case", names), join="outer")
    rows = tuple(row for case in names for row in _rows(data.sel(case=case), case))
    good = all(row.agrees is not False for row in rows if not row.disputed)
    far = max(abs(row.z or 0.0) for row in rows if row.disputed)
    verdict = (
        f"n times mean and covariance of the hidden updates {'agree' if good else 'do NOT agree'} with the theory; "
        f"(10.12) as printed is up to {far:.0f} standard errors off where there are two hidden layers."
    )
    return Result(verdict, rows, data, partial(_draw, data))


def updates(mlp: MLP, numbers: range, seed: np.random.SeedSequence) -> Array:
    """d z^(L-1) / d eta at eta = 0 of real networks: (networks, neurons, inputs)."""
    import torch

    from foretrain.compare.trained.networks import draw_networks

    networks = draw_networks(mlp, numbers, seed)
    trace = networks.forward(networks.entry(_X))
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


def _measured(case: str, draws: dict[int, int], seed: np.random.SeedSequence) -> xarray.Dataset:
    """n times mean (inputs) and covariance (pairs of inputs) at every width, their limit, and the theory."""
    widths, batches = list(draws), []
    for width, own in zip(widths, spawn(seed, len(widths)), strict=True):
        mlp, size = _network(case, width), draws[width] // _BATCHES
        parts = [range(place * size, (place + 1) * size) for place in range(_BATCHES)]
        batches.append(width * np.stack([_moments(updates(mlp, part, own)) for part in parts]))
    theory, printed = _theory(case)
    found = limits_of_batches(widths, batches, theory, "moment", _labels())
    return found.assign(printed=("moment", printed))


def _pairs() -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    return np.triu_indices(len(_X))


def _labels() -> list[str]:
    pairs = [f"covariance of inputs {a} and {b}" for a, b in zip(*_pairs(), strict=True)]
    return [*(f"mean of input {a}" for a in range(len(_X))), *pairs]


def _moments(changes: Array) -> Array:
    """Means and second moments over networks and neurons; different neurons are uncorrelated at this order."""
    flat = changes.reshape(-1, len(_X))
    square = flat.T @ flat / len(flat)
    return np.concatenate([flat.mean(axis=0), square[_pairs()]])


def _theory(case: str) -> tuple[Array, Array]:
    """n times mean and covariance, complete and as printed."""
    width = 1
    found = hidden_update(_network(case, width), _X[:_TRAINED], _Y, _X[_TRAINED:])
    both = [found.covariance, found.covariance_without_ntk_variance]
    complete, printed = (width * np.concatenate([found.mean, each[_pairs()]]) for each in both)
    return complete, printed


def _rows(data: xarray.Dataset, case: str) -> list[Row]:
    own = data.dropna("direction", subset=["independent"])
    judgement = judge([(own.z.values, own.independent.values)])
    rows = [
        Row(f"{case}: {row.quantity}", row.expected, row.here, agrees=row.agrees)
        for row in judgement_rows(judgement, "moments of n dz/dη")
    ]
    told = [f"mean of input {a}" for a in (0, 3)]
    told += [f"covariance of inputs {a} and {b}" for a, b in _MARKED]
    for label in told:
        at = own.sel(moment=label)
        theory, limit, error = (float(at[name]) for name in ("theory", "limit", "standard_error"))
        rows.append(measured_row(f"{case}: n times {label}", theory, limit, error, judgement.bound))
    if case.endswith("L = 3"):
        rows += [_printed_row(own, case, f"covariance of inputs {a} and {b}") for a, b in _MARKED[::2]]
    return rows


def _printed_row(own: xarray.Dataset, case: str, label: str) -> Row:
    at = own.sel(moment=label)
    printed, limit, error = (float(at[name]) for name in ("printed", "limit", "standard_error"))
    return Row(
        f"{case}: n times {label}, (10.12) as printed",
        printed,
        limit,
        error,
        agrees=bool(abs(limit - printed) <= _BOOK_BOUND * error),
        note="it leaves out the off-diagonal tangent kernel, n terms of size 1/n: the B term of (8.82)",
        disputed=True,
    )


def _draw(data: xarray.Dataset) -> Figure:
    title = "One step moves the last hidden layer by 1/n: covariance of a neuron's change, times n"
    figure, panels = new_figure(title, 1, data.sizes["case"], (15, 5.0))
    for panel, case in zip(panels, data["case"].values, strict=True):
        _draw_case(panel, data.sel(case=case), str(case))
    return figure


def _draw_case(panel: Axes, data: xarray.Dataset, case: str) -> None:
    inverse = 1 / data.width.values
    for colour, (a, b) in zip(PALETTE, _MARKED, strict=False):
        one = data.sel(moment=f"covariance of inputs {a} and {b}")
        panel.errorbar(
            inverse, one.measured, one.measured_error, fmt="o", color=colour, label=f"inputs {a} and {b}"
        )
        panel.errorbar(
            [0], [float(one.limit)], [float(one.standard_error)], fmt="D", color=colour, markersize=6
        )
        panel.axhline(float(one.theory), color=colour, linewidth=1.2)
        if abs(float(one.printed / one.theory) - 1) > 1e-9:
            panel.axhline(float(one.printed), color=colour, linewidth=1.2, linestyle=":")
    panel.plot([], [], "D", color=INK, label="extrapolated to n → ∞")
    panel.plot([], [], color=INK, label="theory")
    panel.plot([], [], ":", color=RED, label="(10.12) as printed")
    panel.axvline(0, color=FAINT, linewidth=0.8)
    panel.set(xlabel="1 / width", ylabel="n E[dz dz] / η²")
    panel.set_title(case, fontsize=11)
    panel.set_ylim(top=panel.get_ylim()[1] + 0.3 * (panel.get_ylim()[1] - panel.get_ylim()[0]))
    panel.legend(frameon=False, fontsize=8.5, ncols=2, loc="upper center")
