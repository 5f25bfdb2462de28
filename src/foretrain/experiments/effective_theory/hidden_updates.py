"""How much one step of gradient descent moves the last hidden layer: of order 1/n, and how large (section 10.1.2).

The first order in the learning rate of the change of every neuron of layer L - 1 is measured exactly on real networks
of three widths. n times its mean and its covariance over neurons and networks, extrapolated to infinite width, are
put beside (10.11) and (10.12). The latter as printed lacks the variance of the tangent kernel, a term of the same
order where there are two hidden layers.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import xarray as xr

from foretrain.activations import Activation, activation
from foretrain.compare.judging.agreement import judge
from foretrain.experiments.effective_theory.width_limits import Plan, limits_of_batches
from foretrain.experiments.judgements import judgement_rows, limit_row, rows_of
from foretrain.experiments.pictures import draw_limit
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import FAINT, PALETTE, RED, Figure
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.prediction.infinite_width import hidden_update

_X = 1.3 * np.array([[1, 0.2, -0.5], [-0.4, 1.1, 0.3], [0.1, -0.6, 1.2], [0.8, 0.7, 0.1]])
_Y = np.array([[1.0], [-0.7], [0.4]])  # of the first three inputs; the last is only watched
_TRAINED = len(_Y)
_BATCHES = 50
_MARKED = [f"covariance of inputs {a} and {b}" for a, b in ((0, 0), (0, 1), (3, 3))]  # rows and curves
_BOOK_BOUND = 3.0
_PAIRS = np.triu_indices(len(_X))


PLANS = plans(
    quick=Plan({32: 16_000, 64: 12_000, 128: 8_000}), paper=Plan({64: 40_000, 128: 30_000, 256: 20_000})
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


def hidden_updates(plan: Plan, seed: int) -> Result:
    """n times mean and covariance of the change of hidden neurons in one step, measured and from theory."""
    names = list(_cases())
    parts = [_limits(case, plan.draws, own) for case, own in track(with_seeds(names, seed), "activations")]
    data = xr.concat(parts, xr.Variable("case", names), join="outer")
    rows = tuple(row for case in names for row in _rows(data.sel(case=case), case))
    good = all(row.agrees is not False for row in rows if not row.disputed)
    far = max(abs(row.z or 0.0) for row in rows if row.disputed)
    verdict = (
        f"n times mean and covariance of the hidden updates {'agree' if good else 'do NOT agree'} with the theory; "
        f"(10.12) as printed is up to {far:.0f} standard errors off where there are two hidden layers."
    )
    return Result(verdict, rows, data, _figure)


def updates(mlp: MLP, numbers: range, seed: np.random.SeedSequence) -> FloatArray:
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


def _limits(case: str, draws: dict[int, int], seed: Seed) -> xr.Dataset:
    """n times mean (inputs) and covariance (pairs of inputs) at every width, their limit, and the theory."""

    def moments_by_batch(width: int, count: int, own: np.random.SeedSequence) -> FloatArray:
        """Moments over networks and neurons; different neurons are uncorrelated at this order."""
        mlp, size, found = _network(case, width), count // _BATCHES, []
        for place in range(_BATCHES):
            flat = updates(mlp, range(place * size, (place + 1) * size), own).reshape(-1, len(_X))
            square = flat.T @ flat / len(flat)
            found.append(np.concatenate([flat.mean(axis=0), square[_PAIRS]]))
        return width * np.stack(found)

    # Times n is what width 1 gives, complete and as printed.
    theory = hidden_update(_network(case, 1), _X[:_TRAINED], _Y, _X[_TRAINED:])
    complete, printed = (
        np.concatenate([theory.mean, covariance[_PAIRS]])
        for covariance in (theory.covariance, theory.covariance_without_ntk_variance)
    )
    labels = [f"covariance of inputs {a} and {b}" for a, b in zip(*_PAIRS, strict=True)]
    labels = [*(f"mean of input {a}" for a in range(len(_X))), *labels]
    found = limits_of_batches(draws, seed, moments_by_batch, complete, "moment", labels)
    return found.assign(printed=("moment", printed))


def _rows(data: xr.Dataset, case: str) -> list[Row]:
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


def _figure(data: xr.Dataset) -> Figure:
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
