"""Models whose tangent kernel is not defined, refused by name with the remedy."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.autograd_graph.tape import Tape
from foretrain.support.errors import NotSupportedError

_BATCH_NORMS = nn.modules.batchnorm._BatchNorm
_DROPOUTS = nn.modules.dropout._DropoutNd
# Relative differences that another order of summation may make.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}


def refuse_ill_defined(model: Any) -> None:
    """Dropout and batch statistics make outputs random, or make one sample's output depend on the others."""
    if not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules():
        called = f"{name or 'the model'} ({type(module).__name__})"
        rate = _dropout_rate(module)
        if rate > 0:
            raise NotSupportedError(
                f"{called} drops values at random (p = {rate:g}), so that the kernel is not defined: call "
                "model.eval(), or set p = 0."
            )
        # Spectral normalisation, as a parametrisation or as the older hook.
        hooks = [type(hook).__name__ for hook in module._forward_pre_hooks.values()]
        if module.training and (type(module).__name__ == "_SpectralNorm" or "SpectralNorm" in hooks):
            raise NotSupportedError(
                f"{called} goes on with its power iteration in every pass, so that the kernel is not defined: call "
                "model.eval()."
            )
        if isinstance(module, _BATCH_NORMS) and (module.training or module.running_mean is None):
            raise NotSupportedError(
                f"{called} normalises with the statistics of the batch, so that samples depend on each other: "
                "call model.eval() (with track_running_stats on), or use another normalisation."
            )


def _dropout_rate(module: nn.Module) -> float:
    """The rate at which a module drops values now."""
    if not module.training:
        return 0.0
    if isinstance(module, _DROPOUTS):
        return float(module.p)
    if isinstance(module, nn.MultiheadAttention):
        return float(module.dropout)
    if isinstance(module, nn.RNNBase) and module.num_layers > 1:
        return float(module.dropout)
    if isinstance(module, nn.RReLU) and module.lower != module.upper:
        return float(module.upper - module.lower)
    return 0.0


def refuse_random(first: Tensor, second: Tensor) -> None:
    """Two passes with the same batch must agree."""
    if not close(first, second):
        raise NotSupportedError(
            "two passes with the same samples give different outputs, so that the kernel is not defined: switch off "
            "what is random in the model (dropout, noise, sampling) or changes with every call."
        )


def refuse_coupling(together: Tensor, alone: Tensor) -> None:
    """A sample must have the same outputs whatever else is in its batch."""
    if not close(together, alone):
        raise NotSupportedError(
            "the outputs of a sample change with the other samples of its batch, so that they have no kernel of "
            "their own: switch off what couples samples (batch statistics, attention over the batch axis, "
            "a batch axis that is not the first: `batch_axis=`)."
        )


def refuse_false_gradients(tape: Tape) -> None:
    """Embeddings may scale their gradients by how often a row occurs in a batch: no derivative of the output."""
    for node, name in enumerate(tape.names):
        if name.startswith("Embedding") and tape.saved(node, "scale_grad_by_freq"):
            raise NotSupportedError(
                "an embedding scales its gradients by frequency, so that they are not the derivatives of the output: "
                "set scale_grad_by_freq=False."
            )


_CHECKPOINTS = (
    "the model uses reentrant checkpointing, which hides its parameters: pass use_reentrant=False to "
    "torch.utils.checkpoint, or switch it off."
)


def refuse_checkpoints(tape: Tape) -> None:
    """Reentrant checkpoints run parts of the model outside of the graph."""
    if any(name.startswith("CheckpointFunction") for name in tape.names):
        raise NotSupportedError(_CHECKPOINTS)


@contextmanager
def refused_checkpoints() -> Iterator[None]:
    """The same where they leave no trace in the graph but a warning of torch, because the inputs have no gradient."""
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*None of the inputs have requires_grad=True")
        try:
            yield
        except UserWarning as warning:
            raise NotSupportedError(_CHECKPOINTS) from warning


def refuse_not_finite(outputs: Tensor) -> None:
    """Kernels of nan are nan."""
    if not bool(torch.isfinite(outputs).all()):
        raise NotSupportedError("the model's outputs are not finite: mend its weights or its inputs first.")


def close(first: Tensor, second: Tensor) -> bool:
    """Equal up to rounding."""
    if first.shape != second.shape:
        return False
    scale = float(first.detach().abs().max().clamp_min(1e-30))
    tolerance = _ROUNDING.get(first.dtype, 0.05)
    return float((first - second).detach().abs().max()) <= tolerance * scale
