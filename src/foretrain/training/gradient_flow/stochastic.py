"""Plain stochastic gradient descent on fresh Gaussian batches: the check of the flow, at its full price."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn, torch_generator
from foretrain.training.gradient_flow.integration import Integration, prepared_sample
from foretrain.training.gradient_flow.methods import State, picked
from foretrain.training.gradient_flow.networks import (
    Networks,
    bytes_per_network,
    loss_and_gradients,
    mean_losses,
)
from foretrain.training.gradient_flow.problem import Metric, Problem
from foretrain.training.gradient_flow.samples import Sample

if TYPE_CHECKING:
    import xarray as xr


def stochastic_escape(
    problem: Problem,
    networks: Networks,
    *,
    lr: float = 0.01,
    batch_size: int = 512,
    steps: int = 100_000,
    thresholds: Sequence[float] = (0.02,),
    metric: Metric = "uniform",
    sample: Sample | None = None,
    every: int = 10,
    dtype: torch.dtype = torch.float64,
    seed: Seed = 0,
) -> xr.Dataset:
    """First times (lr × steps) at which the loss over ``sample`` is below each threshold.

    Every network learns from batches of its own. The loss is looked at every ``every`` steps and is taken as linear
    in between; ``time`` is nan where the steps did not suffice. Times compare with those of :func:`escape`, up to
    terms of first order in the learning rate and the noise of the batches.
    """
    import xarray as xr

    if not lr > 0 or min(batch_size, steps, every) < 1:
        raise InputError("lr, batch_size, steps and every must be positive.")
    points = prepared_sample(problem, sample, Integration(dtype=dtype))
    require_memory(
        len(networks) * bytes_per_network(problem, max(batch_size, points.size), dtype),
        f"descent of {len(networks)} networks on batches of {batch_size}",
        "take fewer networks at a time, smaller batches or float32",
    )

    def losses(weights: State) -> NDArray[np.float64]:
        return np.asarray(mean_losses(problem, weights, points).double().numpy())

    levels = np.atleast_1d(np.asarray(thresholds, dtype=np.float64))
    rates = [lr * rate for rate in problem.rates(metric)]
    sources = [torch_generator(own) for own in spawn(seed, len(networks))]
    weights: State = tuple(values.to(dtype) for values in networks.weights)
    shape, share = (problem.inputs, batch_size), torch.full((batch_size,), 1 / batch_size, dtype=dtype)
    place = np.arange(len(networks))
    time = np.full((len(networks), len(levels)), np.nan)
    before = losses(weights)
    time[before[:, None] <= levels] = 0.0
    for step in track(range(1, steps + 1), "steps of descent"):
        # One step of every network on its own fresh batch.
        drawn = [torch.randn(shape, generator=sources[index], dtype=dtype) for index in place]
        batch = torch.stack(drawn)
        learned = Sample(batch, share, problem.teacher(batch), "batch")
        _, gradients = loss_and_gradients(problem, weights, learned)
        weights = tuple(values - rate * slope for values, rate, slope in zip(weights, rates, gradients))
        if step % every:
            continue
        after = losses(weights)
        for number, level in enumerate(levels):
            new = (after <= level) & np.isnan(time[place, number])
            fraction = (before[new] - level) / (before[new] - after[new])
            time[place[new], number] = (step - every) * lr + every * lr * np.clip(fraction, 0, 1)
        live = np.isnan(time[place]).any(axis=1)
        weights, before, place = picked(weights, np.flatnonzero(live)), after[live], place[live]
        if not len(place):
            break
    labels = {name: ("network", values) for name, values in networks.labels.items()}
    return xr.Dataset(
        {"time": (("network", "threshold"), time)},
        coords={"network": np.arange(len(networks)), "threshold": levels, **labels},
        attrs={"problem": repr(problem), "lr": lr, "batch_size": batch_size, "rates": rates},
    )
