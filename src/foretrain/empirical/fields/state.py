"""Activations going forward and conjugate fields going back, and the kernel they make: plain tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.chain import Chain, find_chain
from foretrain.support.answers.tables import as_array
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.memory import require_memory

if TYPE_CHECKING:
    import xarray as xr

ReadoutLike: TypeAlias = str | Tensor | NDArray[np.floating] | None
PAIR = ("input_1", "input_2")
OUTPUTS = ("output_1", "output_2")


def find_state(model: nn.Module, x: Tensor, readout: ReadoutLike) -> FieldState:
    """The state of a model on inputs."""
    chain = find_chain(model, x)
    return FieldState(chain, make_readout(readout, chain.u(chain.depth)))


class FieldState:
    """A chain with its readout. Inner products are raw; the readout's factor is in ``readout.scale``."""

    def __init__(self, chain: Chain, readout: Readout) -> None:
        self.chain = chain
        self.readout = readout

    @property
    def outputs(self) -> Tensor:
        """Y (M, C) (9)."""
        return self.readout(self.chain.u(self.chain.depth))

    @property
    def has_plain_output(self) -> bool:
        """Whether the outputs are what the last linear layer gives, with nothing after it."""
        last = self.chain.depth
        return self.readout.is_identity and torch.equal(self.chain.u(last), self.chain.v(last))

    @cached_property
    def conjugates(self) -> tuple[Tensor, ...]:
        """b_0..b_L, each (M, C, n_l): b_L the readout, b_l = W_{l+1}^T (a_{l+1} * b_{l+1}) (156), (157)."""
        chain, outputs = self.chain, self.readout.outputs
        self.require(chain.inputs * outputs * sum(chain.widths), "conjugate fields")
        fields = [self.readout.matrix.expand(chain.inputs, -1, -1)]
        for number in range(chain.depth, 0, -1):
            masked = chain.a(number)[:, None, :] * fields[-1]
            fields.append(masked @ chain.layer(number).weight)
        return tuple(reversed(fields))

    def masked(self, number: int) -> Tensor:
        """z_l = a_l * b_l (M, C, n_l), l = 1..L (176)."""
        return self.chain.a(number)[:, None, :] * self.conjugates[number]

    def overlap(self, number: int) -> Tensor:
        """u_l . u_l over pairs of inputs (M, M), l = 0..L (14)."""
        u = self.chain.u(number)
        return u @ u.T

    def correlator(self, number: int) -> Tensor:
        """z_l . z_l over pairs (M, M, C, C), l = 1..L (160), (173)."""
        inputs, outputs = self.chain.inputs, self.readout.outputs
        self.require((inputs * outputs) ** 2, f"the correlator of layer {number}")
        flat = self.masked(number).reshape(inputs * outputs, -1)
        return (flat @ flat.T).reshape(inputs, outputs, inputs, outputs).permute(0, 2, 1, 3)

    def layer_kernel(self, number: int) -> Tensor:
        """Layer l's part of the tangent kernel, scale^2 (Q^{l-1} + 1 for a bias) * S^l (172)."""
        driven = self.chain.layer(number).driven_by(self.overlap(number - 1))
        return self.readout.scale**2 * driven[:, :, None, None] * self.correlator(number)

    def kernel(self) -> Tensor:
        """The tangent kernel K (M, M, C, C), the sum over layers (172)."""
        total = self.layer_kernel(1)
        for number in range(2, self.chain.depth + 1):
            total = total + self.layer_kernel(number)
        return total

    def kernel_traces(self) -> Tensor:
        """Trace of each layer's kernel over inputs and outputs (L,), without the kernels."""
        traces = []
        for number in range(1, self.chain.depth + 1):
            own = self.chain.layer(number).driven_by((self.chain.u(number - 1) ** 2).sum(dim=1))
            traces.append(self.readout.scale**2 * (own * (self.masked(number) ** 2).sum(dim=(1, 2))).sum())
        return torch.stack(traces)

    def residual(self, y: Tensor) -> Tensor:
        """r = Y - y (M, C) (10)."""
        return self.outputs - check_targets(y, self.outputs)

    def require(self, numbers: float, what: str) -> None:
        """Refuse arrays of so many numbers if they would not fit."""
        size = self.chain.u(0).element_size()
        require_memory(
            2 * numbers * size, f"{what} of {self.chain.inputs} inputs", "give fewer inputs or outputs"
        )


def check_targets(y: Tensor, outputs: Tensor) -> Tensor:
    """Targets in the shape, type and place of the outputs (M, C)."""
    given = torch.as_tensor(y).detach().to(outputs)
    if given.shape not in (outputs.shape, outputs.shape[:1]) or given.numel() != outputs.numel():
        raise InputError(
            f"y has shape {tuple(given.shape)} but the outputs have {tuple(outputs.shape)}: give one target for "
            "every output."
        )
    if not torch.isfinite(given).all():
        raise InputError("y has values that are not finite: clean the targets first.")
    return given.reshape(outputs.shape)


def check_loss_scale(loss_scale: float | None, inputs: int) -> float:
    """The factor of the sum of squares in the loss: 1/M in the note (11)."""
    if loss_scale is None:
        return 1.0 / inputs
    if not loss_scale > 0 or loss_scale == float("inf"):
        raise InputError(f"loss_scale is {loss_scale!r}: give a positive factor of the sum of squares.")
    return float(loss_scale)


def check_rate(lr: float) -> float:
    """A learning rate that is a positive number."""
    if not 0 < lr < float("inf"):
        raise InputError(f"`lr` is {lr!r}: give a positive learning rate.")
    return float(lr)


def joined(x: Tensor, unseen: Tensor) -> Tensor:
    """Trained inputs, then unseen ones."""
    first, second = torch.as_tensor(x), torch.as_tensor(unseen)
    if first.shape[1:] != second.shape[1:]:
        raise InputError(
            f"unseen inputs have shape {tuple(second.shape)} but x has {tuple(first.shape)}: only the first axis "
            "may differ."
        )
    return torch.cat([first, second.to(first)])


@dataclass(frozen=True, eq=False)
class Readout:
    """The matrix B (C, n_L), whose rows are b_L, and the factor in front: B = 1 and 1/N in the note (9)."""

    matrix: Tensor
    scale: float
    label: str
    is_identity: bool = False

    @property
    def outputs(self) -> int:
        """The number C of outputs."""
        return len(self.matrix)

    def __call__(self, u: Tensor) -> Tensor:
        """Outputs (M, C) of last-layer activations (M, n_L)."""
        return u if self.is_identity else self.scale * (u @ self.matrix.T)


def make_readout(readout: ReadoutLike, like: Tensor) -> Readout:
    """From what the user says; ``like`` are activations (M, n_L) of the last layer."""
    width = like.shape[1]
    if readout is None:
        eye = torch.eye(width, dtype=like.dtype, device=like.device)
        return Readout(eye, 1.0, f"the {width} unit{'s' * (width > 1)} of the last layer", is_identity=True)
    if isinstance(readout, str):
        if readout != "mean":
            raise unknown_name("readout", readout, ["mean"])
        return Readout(like.new_ones(1, width), 1.0 / width, "the mean of the last layer")
    given = torch.as_tensor(readout).detach().to(like)
    matrix = given[None, :] if given.ndim == 1 else given
    if matrix.ndim != 2 or matrix.shape[1] != width or len(matrix) == 0 or not torch.isfinite(matrix).all():
        raise InputError(
            f"the readout has shape {tuple(matrix.shape)}: give finite numbers, ({width},) or (outputs, {width}), "
            f"since the last layer has {width} units."
        )
    return Readout(matrix.clone(), 1.0, f"a fixed {len(matrix)} x {width} matrix")


def labelled(
    values: Tensor, dims: Sequence[str], meaning: str, coords: Mapping[str, Any] | None = None, **attrs: Any
) -> xr.DataArray:
    """A tensor as a DataArray on the CPU, with its meaning."""
    import xarray as xr

    return xr.DataArray(as_array(values), coords, tuple(dims), attrs={"meaning": meaning, **attrs})
