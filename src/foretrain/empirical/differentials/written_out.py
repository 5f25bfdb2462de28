"""Operations of torch whose second derivatives are right and whose higher ones are not, written out in plain ones.

The fused normalisations keep mean, deviation or norm from the forward pass and take them for constants when their own
derivatives are differentiated again, by nested forward mode and by backward passes alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from foretrain.empirical.kernel_operator.passes import differentiable_kernels


@contextmanager
def differentiable_often() -> Iterator[None]:
    """Models that run inside can be differentiated as often as their plain operations."""
    with differentiable_kernels(), _WrittenOut():
        yield


def layer_norm(
    x: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """(x − mean) / √(variance + eps) over the last axes."""
    found = _standard(x, list(range(-len(normalized_shape), 0)), eps)
    return _scaled(found, weight, bias, tuple(normalized_shape))


def group_norm(
    x: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *_: Any,
) -> Tensor:
    """The same over groups of channels and all positions."""
    grouped = x.reshape(x.shape[0], num_groups, -1)
    found = _standard(grouped, [-1], eps).reshape(x.shape)
    return _scaled(found, weight, bias, (-1, *(1,) * (x.ndim - 2)))


def rms_norm(
    x: Tensor, normalized_shape: Sequence[int], weight: Tensor | None = None, eps: float | None = None
) -> Tensor:
    """x / √(mean of x² + eps) over the last axes."""
    axes = list(range(-len(normalized_shape), 0))
    small = torch.finfo(x.dtype).eps if eps is None else eps
    found = x * torch.rsqrt((x * x).mean(axes, keepdim=True) + small)
    return _scaled(found, weight, None, tuple(normalized_shape))


def instance_norm(
    x: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Every channel of every sample alone; with statistics kept from before, nothing needs to be written out."""
    if use_input_stats:
        return group_norm(x, x.shape[1], weight, bias, eps)
    return functional.instance_norm(
        x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
    )


def weight_norm(v: Tensor, g: Tensor, dim: int = 0) -> Tensor:
    """g v / |v|, with a norm for every entry along an axis; -1 for one of all."""
    axes = [axis for axis in range(v.ndim) if axis != dim]
    return v * (g * torch.rsqrt((v * v).sum(axes, keepdim=True)))


def _standard(x: Tensor, axes: list[int], eps: float) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)
    return centred * torch.rsqrt((centred * centred).mean(axes, keepdim=True) + eps)


def _scaled(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    found = x if weight is None else x * weight.reshape(shape)
    return found if bias is None else found + bias.reshape(shape)


_INSTEAD: Mapping[Any, Callable[..., Tensor]] = {
    functional.layer_norm: layer_norm,
    torch.layer_norm: layer_norm,
    functional.group_norm: group_norm,
    torch.group_norm: group_norm,
    functional.rms_norm: rms_norm,
    torch.rms_norm: rms_norm,
    functional.instance_norm: instance_norm,
    torch._weight_norm: weight_norm,
}
_FIRST_NAME = "input"  # of the first argument in torch


class _WrittenOut(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        given = dict(kwargs or {})
        instead = _INSTEAD.get(func)
        if instead is None:
            return func(*args, **given)
        if _FIRST_NAME in given:
            args = (given.pop(_FIRST_NAME), *args)
        return instead(*args, **given)
