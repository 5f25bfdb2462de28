"""How much every parameter does: its part of the trace of NTK_S, and of how fast the loss falls (Cor. 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foretrain.operators.estimators.estimate import AFFORDABLE, Target
from foretrain.operators.vectors import basis_rows, random_signs
from foretrain.support.answers import Answer, Axis, Figure, Result, Table, dataset_table, labelled
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, spawn

if TYPE_CHECKING:
    from foretrain.empirical.global_ntk.kernel import GlobalNTK

Array = NDArray[np.float64]

_EXACT_SIZE = 256
_FIRST, _MOST = 16, 512
_BARS = 40  # parameters in a picture


@dataclass(frozen=True, repr=False, eq=False)
class Shares(Result):
    """Parts of a whole by name, with standard errors that are 0 where they are exact."""

    names: tuple[str, ...]
    values: Array
    standard_errors: Array

    def answer(self) -> Answer:
        """The shares by name."""
        variables = {"share": ("parameter", self.values), "share_error": ("parameter", self.standard_errors)}
        data = labelled(variables, parameter=list(self.names))
        picture = partial(_parts_figure, "share of the trace", self.names, self.values, self.standard_errors)
        return Answer("Shares of the trace.", [dataset_table(data, "parameter", ["share"]), picture], data)


def trace_shares(kernel: GlobalNTK, *, accuracy: float = 0.02, seed: Seed = 0) -> Shares:
    """Every parameter's share, to this absolute standard error.

    Exact where the kernel knows its trace by structure, and up to 256 states, by the basis. Otherwise E|J_p* z|^2 =
    tr(J_p J_p*) for random signs z at the states, and a sweep gives all parameters at once.
    """
    target = Target.of(accuracy, _MOST)
    if (known := kernel.parameter_traces(AFFORDABLE)) is not None:
        parts = np.array([known[0][name] for name in kernel.dynamics.parameters])
        return Shares(tuple(kernel.dynamics.parameters), parts / parts.sum(), np.zeros(len(parts)))
    if kernel.size <= _EXACT_SIZE:
        basis = basis_rows(0, kernel.size, kernel.size, dtype=kernel.dtype, device=kernel.device)
        total = _squares(kernel, basis).sum(0)
        return Shares(tuple(kernel.dynamics.parameters), total / total.sum(), np.zeros(len(total)))
    seen = np.zeros((0, len(kernel.dynamics.parameters)))
    with Progress("shares of the trace") as bar:
        for own in spawn(seed, _MOST // _FIRST):
            signs = random_signs(_FIRST, kernel.size, own, dtype=kernel.dtype, device=kernel.device)
            seen = np.concatenate([seen, _squares(kernel, signs)])
            bar.advance(_FIRST)
            total = seen.sum(0)
            left = total - seen  # without one probe, for jackknife errors
            shares = left / left.sum(1, keepdims=True)
            spread = np.square(shares - shares.mean(0)).sum(0)
            errors = np.sqrt((len(seen) - 1) / len(seen) * spread)
            if target.reached(1.0, float(errors.max())):
                break
    return Shares(tuple(kernel.dynamics.parameters), total / total.sum(), errors)


def _squares(kernel: GlobalNTK, vectors: Tensor) -> Array:
    """|J_p* v|^2, (vectors, parameters)."""
    rows = []
    for block in torch.split(vectors, kernel.best_block):
        found = kernel.dynamics.pull(kernel._embedded(block))
        parts = [found[name].flatten(1).double().square().sum(1) for name in kernel.dynamics.parameters]
        rows.append(torch.stack(parts, 1))
    return torch.cat(rows).cpu().numpy()


@dataclass(frozen=True, repr=False, eq=False)
class LossDecrease(Result):
    """-dL/dt of gradient flow at rate 1: <NTK_S err, err> = |J* err|^2, the sum of every parameter's part."""

    by_parameter: Mapping[str, float]

    @property
    def total(self) -> float:
        """<NTK_S err, err>."""
        return sum(self.by_parameter.values())

    @property
    def shares(self) -> Mapping[str, float]:
        """Parts of the total; zeros if nothing changes."""
        total = self.total
        return {name: part / total if total else 0.0 for name, part in self.by_parameter.items()}

    def answer(self) -> Answer:
        """The total, and every parameter's part."""
        names, parts = list(self.by_parameter), list(self.by_parameter.values())
        columns = {"parameter": names, "part": parts, "share": list(self.shares.values())}
        data = labelled({"loss_decrease": ("parameter", parts)}, parameter=names)
        statement = f"Gradient flow at rate 1 lowers the loss by {self.total:.4g} per unit of time."
        picture = partial(_parts_figure, "fall of the loss per unit of time", names, parts)
        return Answer(statement, [Table.of(columns), picture], data, self.by_parameter)


def _parts_figure(
    what: str, names: Sequence[str], parts: Sequence[float] | Array, errors: Array | None = None
) -> Figure:
    """A bar for each parameter by name, from the first down; of very many, the largest."""
    sizes = np.asarray(parts, dtype=float)
    shown = np.sort(np.argsort(-sizes, kind="stable")[:_BARS])
    title = f"The {_BARS} largest of {len(sizes)} parameters" if len(sizes) > _BARS else ""
    figure = Figure(title, size=(7.0, 1.3 + 0.32 * len(shown)))
    panel = figure.panel(x=what, y=Axis(reverse=True))
    error = None if errors is None or not errors.any() else errors[shown]
    panel.bars([names[place] for place in shown], sizes[shown], horizontal=True, error=error)
    return figure
