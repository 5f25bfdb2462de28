"""The Taylor series of a trained network around its initialisation, and what each order of it leaves (chapter 0).

Training moves the parameters by d; the trained function is z + dz[d] + d²z[d, d] / 2 + ... For wide networks the
series is short: with its first order alone, a linear model, the rest falls as 1/n; the second order does not change
that power, since the third is of the same size; with the third, the rest falls as 1/n². So the first order in 1/n
needs three derivatives and no more. Real networks of several widths are trained and their series summed exactly.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from foretrain.compare.judging.powers import slope_of
from foretrain.experiments.judgements import agreeing, power_row
from foretrain.experiments.pictures import draw_guide
from foretrain.experiments.registry import Result, Row, plans
from foretrain.support.answers import PALETTE, Axis, Figure, log
from foretrain.support.progress import track
from foretrain.support.seeds import with_seeds
from foretrain.theory.architecture import MLP, FloatArray
from foretrain.theory.prediction.infinite_width import output_kernels

if TYPE_CHECKING:
    import torch

    from foretrain.compare.trained.networks import Networks


_X = np.array([[1, 1, 1, 1], [1, -1, 0.6, -1], [1, 0.8, -1, -1], [-0.7, 1, 1, -1]])
_Y = 0.7 * np.array([[1.0], [-1.0], [0.5], [0.8]])
_TESTS = np.array([[0.5, 1, -0.4, 0.9], [-1, 0.3, 0.8, 0.7], [0.2, -0.9, 0.5, 1.1]])
_ORDERS = {  # what the orders 0, 1, 2, .. leave, the power of n in it, and a note
    "what training changes": (0.0, ""),
    "what first order leaves, a linear model": (-1.0, ""),
    "what second order leaves": (
        -1.0,
        "dNTK and ddNTK are both of order 1/n: the second order alone gains no power",
    ),
    "what third order leaves": (
        -2.0,
        "a few narrow networks carry most of what is left, so that the power is known roughly at the quick size",
    ),
    "what fourth order leaves": (-2.0, ""),
}
_RATE = 1.0  # learning rate times the largest eigenvalue of Theta
_DEPTH = 3


@dataclass(frozen=True)
class Plan:
    """Widths of the networks, how many are trained, and how long."""

    widths: tuple[int, ...]
    draws: int
    steps: int


PLANS = plans(quick=Plan((48, 96, 192, 384), 320, 120), paper=Plan((48, 96, 192, 384, 768), 800, 400))


def taylor_expansion(plan: Plan, seed: int) -> Result:
    """Powers of n in what is left by the Taylor series of trained networks, order by order."""
    found = [_left(width, plan, own) for width, own in track(with_seeds(plan.widths, seed), "widths")]
    data = xr.Dataset(
        {"left": (("width", "draw", "order"), np.stack(found))},
        coords={"width": list(plan.widths), "order": np.arange(len(_ORDERS))},
        attrs={"steps": plan.steps, "depth": _DEPTH},
    )
    rows: list[Row] = []
    for order, (rest, (power, note)) in enumerate(_ORDERS.items()):
        rows.append(power_row(f"{rest}: power of n", power, slope_of(data.left.sel(order=order)), note))
    shares = _shares(data)
    for place, order in ((0, 1), (0, 3), (-1, 1), (-1, 3)):
        title = f"{list(_ORDERS)[order]}, as a share of the change, at n = {plan.widths[place]}"
        rows.append(Row(title, "none published", float(shares[place, order])))
    verdict = (
        f"{agreeing(rows)} powers of n are as expected: a linear model misses 1/n of what trained networks have "
        f"learned, three orders of the Taylor series 1/n², {shares[-1, 3]:.1g} of it at width {plan.widths[-1]}."
    )
    return Result(verdict, tuple(rows), data, _figure)


def _left(width: int, plan: Plan, seed: np.random.SeedSequence) -> FloatArray:
    """Root mean squares over test inputs of what the orders 0, 1, .. leave: (networks, orders)."""
    from foretrain.compare.trained import Training
    from foretrain.compare.trained.networks import draw_networks, group_size, groups_of
    from foretrain.compare.trained.training import train

    mlp = MLP.critical("tanh", _DEPTH, width, n_in=_X.shape[1])
    eta = _RATE / float(np.linalg.eigvalsh(output_kernels(mlp, _X).Theta_train)[-1])
    training = Training(_Y, eta, time=plan.steps)
    found = []
    for numbers in groups_of(range(plan.draws), group_size(mlp)):
        start, end = (draw_networks(mlp, numbers, seed) for _ in range(2))
        train(end, _X, training)
        terms = taylor_terms(start, end, _TESTS, len(_ORDERS) - 1)
        whole = end.forward(end.entry(_TESTS)).output[:, 0]
        left = (whole - terms.cumsum(dim=0)).square().mean(dim=2).sqrt()
        found.append(left.T.numpy())
    return np.concatenate(found)


def taylor_terms(start: Networks, end: Networks, X: FloatArray, highest: int) -> torch.Tensor:
    """Coefficients of t^k in the outputs of networks at start + t (end - start): (orders, networks, samples).

    Series are carried through the layers: z_k = W s_k + dW s_(k-1), plus biases, and those of tanh by its own
    differential equation s' = (1 - s²) z'.
    """
    import torch

    x = torch.from_numpy(np.ascontiguousarray(X.T)).expand(len(start), -1, -1)
    signal = [x, *(torch.zeros_like(x) for _ in range(highest))]
    depth = len(start.weights)
    for place in range(depth):
        W, b = start.weights[place], start.biases[place]
        dW, db = end.weights[place] - W, end.biases[place] - b
        z = [W @ s for s in signal]
        for order in range(1, highest + 1):
            z[order] += dW @ signal[order - 1]
        z[0] += b
        z[1] += db
        signal = _tanh_series(z) if place < depth - 1 else z
    return torch.stack([each[:, 0] for each in signal])


def _tanh_series(z: list[torch.Tensor]) -> list[torch.Tensor]:
    s = [z[0].tanh()]
    u = [1 - s[0].square()]
    for order in range(1, len(z)):
        terms = [j * z[j] * u[order - j] for j in range(1, order + 1)]
        s.append(sum(terms[1:], terms[0]) / order)
        squares = [s[j] * s[order - j] for j in range(order + 1)]
        u.append(-sum(squares[1:], squares[0]))
    return s


def _shares(data: xr.Dataset) -> FloatArray:
    """Root mean squares over networks relative to what training changes: (widths, orders)."""
    size = np.sqrt((data.left**2).mean("draw")).transpose("width", "order").values
    return np.asarray(size / size[:, :1])


def _figure(data: xr.Dataset) -> Figure:
    title = f"Trained tanh networks of depth {_DEPTH} by their Taylor series around initialisation"
    figure, share = Figure(title, size=(13, 5.2)), log("left, as a share of the change")
    n, shares = data.width.values.astype(float), _shares(data)
    panel = figure.panel("rms over networks and test inputs", x=log("width n", ticks=n), y=share)
    for order, color in zip(data.order.values[1:], PALETTE):
        panel.curve(n, shares[:, order], "o-", f"after order {order}", color)
    for order, power, text in ((1, -1, "1/n"), (3, -2, "1/n²")):
        draw_guide(panel, n, 1.7 * shares[0, order], power, text, 1, above=True)
    title = "orders come in pairs: only odd ones gain a power of n"
    panel = figure.panel(title, x=Axis("last order of the series kept", whole=True), y=share)
    for color, width, values in zip(PALETTE, data.width.values, shares):
        panel.curve(data.order, values, "o-", f"n = {width}", color)
    return figure
