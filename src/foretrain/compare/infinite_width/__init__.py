"""Infinite width of real architectures: a torch module in, its NNGP and NTK out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import xarray as xr
from torch import Tensor, nn

from foretrain.compare.infinite_width import operations  # noqa: F401  (registers the rules)
from foretrain.compare.infinite_width.graph import capture
from foretrain.compare.infinite_width.laws import Hyperparameters, Row
from foretrain.compare.infinite_width.reader import Reader, WideAxes
from foretrain.support.answers import Answer, Column, Result, Table
from foretrain.support.errors import InputError
from foretrain.theory.layers.tiles import kernel_of


@dataclass(frozen=True, eq=False, repr=False)
class InfiniteWidth(Result):
    """NNGP and NTK of a network of infinite width, per output channel, and what was read to get them."""

    nngp: xr.DataArray
    ntk: xr.DataArray
    rows: tuple[Row, ...]
    notes: tuple[str, ...] = ()

    @property
    def reading(self) -> Table:
        """What each module was taken for."""
        columns = (
            Column("module"),
            Column("taken for"),
            Column("fan-in"),
            Column("C_W"),
            Column("C_b"),
            Column("lambda_W"),
            Column("lambda_b"),
            Column("known from"),
        )
        return Table(
            columns,
            [
                (r.module, r.taken_for, r.fan_in, r.C_W, r.C_b, r.lambda_W, r.lambda_b, r.known)
                for r in self.rows
            ],
        )

    def answer(self) -> Answer:
        """The sizes of the kernels, and the reading."""
        count, other = self.nngp.sizes["input_1"], self.nngp.sizes["input_2"]
        sentence = (
            f"Infinite width: NNGP and NTK of {count} and {other} inputs, {len(self.rows)} layers read."
        )
        return Answer(sentence, [self.reading], data=lambda: xr.Dataset({"nngp": self.nngp, "ntk": self.ntk}))


def infinite_width(
    model: nn.Module | Callable[[int], nn.Module],
    x: Any,
    x2: Any = None,
    *,
    init: Any = "module",
    rates: Any = "ntk",
    widths: tuple[int, int] = (16, 32),
) -> InfiniteWidth:
    """NNGP and NTK of a torch module whose hidden channels become infinitely many."""
    wide = WideAxes()
    if not isinstance(model, nn.Module):
        if not callable(model):
            raise InputError("`model` must be a torch module or a function make(width) that builds one.")
        small, large = (model(width) for width in widths)
        shapes = {name: tuple(p.shape) for name, p in small.named_parameters()}
        grows = {
            name: tuple(a != b for a, b in zip(shapes[name], p.shape, strict=True))
            for name, p in large.named_parameters()
        }
        model, wide = large, WideAxes(grows)
    first, second = (None if one is None else _tensor(one) for one in (x, x2))
    assert first is not None
    together = first if second is None else torch.cat([first, second])
    hyperparameters = Hyperparameters(init, rates)
    reader = Reader(capture(model, (together,)), [together], hyperparameters, wide)
    value = reader.read()
    field = value.signal.field
    count = len(first)
    rows = {one: values[:count] for one, values in reader.data.items()}
    columns = None if second is None else {one: values[count:] for one, values in reader.data.items()}
    kernel = kernel_of(field, rows, columns)
    return InfiniteWidth(
        _labelled(kernel.S, field.positions),
        _labelled(kernel.Theta, field.positions),
        tuple(hyperparameters.rows),
    )


def _tensor(x: Any) -> Tensor:
    return x if isinstance(x, Tensor) else torch.as_tensor(np.asarray(x))


def _labelled(values: np.ndarray[Any, Any], positions: tuple[int, ...]) -> xr.DataArray:
    """(N, N2), or (N, positions..., N2, positions...) where the output keeps them."""
    axes = len(positions)
    shaped = values.reshape(*(n for size in positions for n in (size, size)), *values.shape[-2:])
    order = [2 * axes, *range(0, 2 * axes, 2), 2 * axes + 1, *range(1, 2 * axes, 2)]
    names = [
        "input_1",
        *(f"position_{k}_1" for k in range(1, axes + 1)),
        "input_2",
        *(f"position_{k}_2" for k in range(1, axes + 1)),
    ]
    return xr.DataArray(shaped.transpose(order), dims=names)
