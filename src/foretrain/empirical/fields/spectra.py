"""Eigenvalues of kernels, metrics and weights, how many count, the tail's exponent, and one look at all of it.

The exponent is found by maximum likelihood: Clauset, Shalizi & Newman, SIAM Review 51 (2009). It is an experiment,
not a theorem: section 10.3 of the note conjectures that repeated co-activation transport makes the heavy tails seen
in trained weights. An exponent always comes out; whether a power law describes the tail is what `tail_p_value` tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from foretrain.empirical.autograd_graph.chain import Chain
from foretrain.empirical.fields.state import FieldState
from foretrain.support.answers import Answer, Result, fields_answer
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.support.memory import require_memory
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, generator

if TYPE_CHECKING:
    import xarray as xr


Array = NDArray[np.float64]
Variables = dict[str, tuple[tuple[str, ...], Array]]
_SMALLEST_SPECTRUM = 20  # eigenvalues below which a tail exponent is not tried


def kernel_eigenvalues(kernel: Tensor) -> Tensor:
    """Eigenvalues of a kernel (M, M, C, C) as a matrix over inputs and outputs, from the largest down."""
    inputs, outputs = kernel.shape[0], kernel.shape[2]
    matrix = kernel.permute(0, 2, 1, 3).reshape(inputs * outputs, inputs * outputs)
    values: Tensor = torch.linalg.eigvalsh(_precise(matrix))
    return values.flip(0)


def metric_eigenvalues(chain: Chain, number: int, inputs: Tensor) -> Tensor:
    """Nonzero part of the spectrum of G_l of an input with itself, (inputs, min(n_l, n_{l+1})), l = 0..L-1.

    Squared singular values of diag(a_{l+1}) W_{l+1}; if n_l > n_{l+1} the other eigenvalues are exactly zero.
    """
    weight = chain.layer(number + 1).weight
    require_memory(
        2 * len(inputs) * weight.numel() * 8, f"metrics of {len(inputs)} inputs", "ask for fewer inputs"
    )
    return weight_eigenvalues(chain.a(number + 1)[inputs][:, :, None] * weight)


def metric_alignment(chain: Chain, number: int, inputs: Tensor, gradients: Tensor) -> Tensor:
    """g^T G g / (|g|^2 lambda_max(G)) of G_l of each input with itself, 0..1; nan where g or G is zero.

    ``gradients`` (inputs, n_l) are those of the loss by u_l: 1 means that they lie along the stiffest direction of G.
    """
    seen = chain.a(number + 1)[inputs] * (gradients @ chain.layer(number + 1).weight.T)
    quotient = (seen**2).sum(dim=1) / (gradients**2).sum(dim=1)
    return quotient / metric_eigenvalues(chain, number, inputs)[:, 0].to(quotient)


def weight_eigenvalues(weight: Tensor) -> Tensor:
    """Squared singular values of W, or of each of many: the eigenvalues of W^T W not zero by its shape alone."""
    values: Tensor = torch.linalg.svdvals(_precise(weight))
    return values**2


def effective_rank(eigenvalues: ArrayLike) -> float:
    """(sum of lambda)^2 / sum of lambda^2, the participation ratio: how many eigenvalues count; nan if all are zero.

    Examples
    --------
    >>> effective_rank([1.0, 1.0, 1.0, 0.0])
    3.0
    """
    values = _spectrum(eigenvalues)
    total = float(np.sum(values**2))
    return float(np.sum(values)) ** 2 / total if total > 0 else float("nan")


def entropy_rank(eigenvalues: ArrayLike) -> float:
    """Exponential of the entropy of lambda / sum of lambda, never below ``effective_rank``; nan if all are zero.

    Examples
    --------
    >>> round(entropy_rank([2.0, 2.0, 0.0]), 12)
    2.0
    """
    values = _spectrum(eigenvalues)
    if not values.any():
        return float("nan")
    shares = values[values > 0] / values.sum()
    return float(np.exp(-np.sum(shares * np.log(shares))))


def _spectrum(eigenvalues: ArrayLike) -> Array:
    """Eigenvalues of a positive matrix; round-off below zero is taken off."""
    values = np.asarray(eigenvalues, dtype=np.float64).ravel()
    if values.size == 0 or not np.isfinite(values).all():
        raise InputError("the spectrum is empty or not finite: give the eigenvalues of a positive matrix.")
    if values.min() < -1e-4 * max(values.max(), 0.0):
        raise InputError(
            f"the spectrum has the negative eigenvalue {values.min():.3g}: give a positive matrix."
        )
    return np.maximum(values, 0.0)


def _precise(matrix: Tensor) -> Tensor:
    # torch has no decompositions in half precision.
    return matrix.float() if matrix.dtype in (torch.float16, torch.bfloat16) else matrix


@dataclass(frozen=True, repr=False)
class HeavyTail(Result):
    """Density ~ value^(-exponent) from ``minimum`` on, found in the largest ``tail`` of ``count`` values."""

    exponent: float
    standard_error: float
    minimum: float
    tail: int
    count: int
    distance: float

    def answer(self) -> Answer:
        """The exponent, and what it rests on."""
        statement = (
            f"Density ~ value^-{self.exponent:.3f} from {self.minimum:.4g} on: an experiment, not a theorem."
        )
        meanings = {
            "tail": "values that were fitted, the largest",
            "distance": "Kolmogorov-Smirnov; any spectrum has a best exponent, tail_p_value says if it fits",
        }
        return fields_answer(self, statement, meanings)


def heavy_tail(values: ArrayLike, smallest_tail: int = 10) -> HeavyTail:
    """Fit a power law to the tail of positive values; zeros are left out.

    The start of the tail is the value with the smallest Kolmogorov-Smirnov distance between data and fit, among
    those that leave at least ``smallest_tail`` values. With k values in the tail the exponent is
    1 + k / sum ln(x / minimum), and its standard error (exponent - 1) / sqrt(k).
    """
    given = np.asarray(values, dtype=np.float64).ravel()
    if not np.isfinite(given).all() or (given.size and given.min() < 0):
        raise InputError("the values must be finite and not negative: give a spectrum or other sizes.")
    data = np.sort(given[given > 0])
    if smallest_tail < 2 or data.size < smallest_tail or data[0] == data[-1]:
        raise InputError(
            f"{data.size} positive values, not all equal, and tails of at least {smallest_tail} are asked for: give "
            "more values; two are the least."
        )
    return _fit(data, smallest_tail)


def tail_p_value(values: ArrayLike, draws: int = 200, smallest_tail: int = 10, seed: Seed = 0) -> float:
    """How often data that do follow the fitted law lie further from their own fit; below 0.1 speaks against it.

    Synthetic data are drawn from the fit above its minimum and from the data below, and fitted anew; the standard
    error is below 0.5 / sqrt(draws).
    """
    fit = heavy_tail(values, smallest_tail)
    data = np.asarray(values, dtype=np.float64).ravel()
    data = data[data > 0]
    below = data[data < fit.minimum]
    source = generator(seed)
    further = 0
    for _ in track(range(draws), "synthetic tails"):
        in_tail = int(source.binomial(data.size, fit.tail / data.size)) if below.size else data.size
        # Uniform numbers in (0, 1], so that no value is infinite.
        tail = fit.minimum * (1.0 - source.random(in_tail)) ** (-1.0 / (fit.exponent - 1.0))
        drawn = np.concatenate([source.choice(below, data.size - in_tail) if below.size else [], tail])
        further += _fit(np.sort(drawn), smallest_tail).distance >= fit.distance
    return further / draws


def _fit(data: Array, smallest_tail: int) -> HeavyTail:
    """The best tail of sorted positive data."""
    logs = np.log(data)
    starts = np.unique(data[: data.size - smallest_tail + 1], return_index=True)[1]
    best: HeavyTail | None = None
    for start in starts:
        tail = logs[start:] - logs[start]
        size = tail.size
        total = float(tail.sum())
        if total <= 0:
            continue
        slope = size / total
        model = -np.expm1(-slope * tail)
        steps = np.arange(size + 1) / size
        distance = float(max(np.max(steps[1:] - model), np.max(model - steps[:-1])))
        if best is None or distance < best.distance:
            best = HeavyTail(
                1.0 + slope, slope / np.sqrt(size), float(data[start]), size, data.size, distance
            )
    if best is None:
        raise InputError("the largest values are all equal, so there is no tail: give other values.")
    return best


def observe(
    state: FieldState, y: Tensor, loss_scale: float, *, modes: int = 8, inputs: Sequence[int] | None = None
) -> xr.Dataset:
    """One observation.

    ``kernel_trace`` tr K_l and ``kernel_drive`` r^T K_l r / r^T r by layer; ``kernel_eigenvalue`` of K and
    ``layer_eigenvalue`` of each K_l, with their participation ratios; ``weight_eigenvalue`` of W_l^T W_l and the
    ``tail_exponent`` with its error; of G_l of every followed input with itself, l = 0..L-1: ``metric_eigenvalue``
    and ``metric_alignment`` with the gradient of the loss by u_l. ``rank`` counts eigenvalues from the largest.
    """
    import xarray as xr

    modes = whole_number("modes", modes)
    residual = state.residual(y)
    numbers = [int(number) for number in (range(min(4, state.chain.inputs)) if inputs is None else inputs)]
    if not numbers or not all(0 <= number < state.chain.inputs for number in numbers):
        raise InputError(
            f"`inputs` is {inputs!r}: give numbers of inputs from 0 to {state.chain.inputs - 1}."
        )
    followed = torch.tensor(numbers, device=state.chain.x.device)
    variables = {
        "loss": ((), float(loss_scale * (residual**2).sum())),
        **_of_kernels(state, residual, modes),
        **_of_layers(state, residual, followed, modes),
    }
    depth = state.chain.depth
    return xr.Dataset(
        variables,
        coords={
            "layer": np.arange(1, depth + 1),
            "metric_layer": np.arange(depth),
            "rank": np.arange(1, modes + 1),
            "followed": followed.cpu().numpy(),
        },
        attrs={
            "loss_scale": loss_scale,
            "readout": state.readout.label,
            "widths": list(state.chain.widths),
            "tail_exponent": "an experiment, not a theorem: every spectrum has a best exponent",
        },
    )


def _of_kernels(state: FieldState, residual: Tensor, modes: int) -> Variables:
    total: Tensor | None = None
    spectra_of_layers, drives = [], []
    square = float((residual**2).sum())
    for number in range(1, state.chain.depth + 1):
        kernel = state.layer_kernel(number)
        total = kernel if total is None else total + kernel
        spectra_of_layers.append(_numpy(kernel_eigenvalues(kernel)))
        drive = float(torch.einsum("ac,abcd,bd->", residual, kernel, residual))
        drives.append(drive / square if square > 0 else float("nan"))
    assert total is not None
    whole = _numpy(kernel_eigenvalues(total))
    return {
        "kernel_trace": (("layer",), _numpy(state.kernel_traces())),
        "kernel_drive": (("layer",), np.array(drives)),
        "kernel_eigenvalue": (("rank",), _cut(whole, modes)),
        "kernel_participation": ((), np.array(effective_rank(whole))),
        "layer_eigenvalue": (("layer", "rank"), np.stack([_cut(one, modes) for one in spectra_of_layers])),
        "layer_participation": (
            ("layer",),
            np.array([effective_rank(one) for one in spectra_of_layers]),
        ),
    }


def _of_layers(state: FieldState, residual: Tensor, followed: Tensor, modes: int) -> Variables:
    """Of the weights, and of the metrics of followed inputs."""
    chain = state.chain
    found = [_numpy(weight_eigenvalues(layer.weight)) for layer in chain.layers]
    tails = []
    for values in found:
        fit = heavy_tail(values) if (values > 0).sum() >= _SMALLEST_SPECTRUM else None
        tails.append((np.nan, np.nan) if fit is None else (fit.exponent, fit.standard_error))
    metrics = np.full((chain.depth, len(followed), modes), np.nan)
    alignment = np.full((chain.depth, len(followed)), np.nan)
    for number in range(chain.depth):
        spectrum = _numpy(metric_eigenvalues(chain, number, followed))
        metrics[number] = np.stack([_cut(one, modes) for one in spectrum])
        gradients = torch.einsum("bcn,bc->bn", state.conjugates[number][followed], residual[followed])
        alignment[number] = _numpy(metric_alignment(chain, number, followed, gradients))
    return {
        "weight_eigenvalue": (("layer", "rank"), np.stack([_cut(one, modes) for one in found])),
        "weight_participation": (("layer",), np.array([effective_rank(one) for one in found])),
        "tail_exponent": (("layer",), np.array([tail[0] for tail in tails])),
        "tail_exponent_error": (("layer",), np.array([tail[1] for tail in tails])),
        "metric_eigenvalue": (("metric_layer", "followed", "rank"), metrics),
        "metric_alignment": (("metric_layer", "followed"), alignment),
    }


def _cut(values: Array, modes: int) -> Array:
    """The largest ``modes`` eigenvalues, filled with nan."""
    found = np.full(modes, np.nan)
    found[: min(modes, values.size)] = values[:modes]
    return found


def _numpy(values: Tensor) -> Array:
    return values.detach().cpu().double().numpy()
