"""How a model is called: arguments in, one matrix of outputs (samples, outputs) back, with its autograd graph."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from foretrain.empirical.models.batches import Batch
from foretrain.empirical.models.calls import call_with, with_values
from foretrain.support.errors import InputError, NotSupportedError

Output = Callable[[Any], Tensor] | str | int | None


@contextmanager
def unchanged(model: Any) -> Iterator[None]:
    """Leave a module as it was: some change their buffers, and embeddings their rows. Also in inference mode."""
    with torch.inference_mode(False):
        buffers: list[Tensor] = []
        if isinstance(model, nn.Module):
            embeddings = [m for m in model.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)]
            buffers = [*model.buffers(), *(m.weight for m in embeddings if m.max_norm is not None)]
        before = [buffer.detach().clone() for buffer in buffers]
        try:
            yield
        finally:
            with torch.no_grad():
                for buffer, value in zip(buffers, before):
                    if not torch.equal(buffer, value):
                        buffer.copy_(value)


@dataclass
class Model:
    """A module, or a function of (parameters, x), with what is picked from its result.

    ``unfused`` runs it without the fused recurrent kernels, which hide the products inside a layer.
    """

    function: Callable[..., Any]
    parameters: Mapping[str, Tensor]
    output: Output = None
    given_parameters: Any = None  # what a functional model takes first
    unfused: bool = field(default=False)
    channels_last: bool = field(default=False)  # images go in with the channels of a pixel side by side

    def __call__(self, batch: Batch, differentiable: bool = True) -> Tensor:
        """Outputs of all samples, (samples, outputs), flattened after the batch axis."""
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(differentiable))
            if self.unfused:
                stack.enter_context(warnings.catch_warnings())
                warnings.filterwarnings("ignore", message="TF32 acceleration")  # from reading the flags
                stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            arguments = batch.channels_last() if self.channels_last else batch.arguments
            first = () if self.given_parameters is None else (self.given_parameters,)
            result = call_with(self.function, arguments, first)
            return _as_matrix(_picked(result, self.output), batch, differentiable)

    def moved(self) -> Model | None:
        """The same model with noise added to its parameters; None for a functional model, whose own they are."""
        if not isinstance(self.function, nn.Module):
            return None
        values = {
            name: (value + torch.randn_like(value) * _noise(value)).detach().requires_grad_()
            for name, value in self.parameters.items()
        }
        function = with_values(self.function, values)
        return Model(function, values, self.output, None, self.unfused, self.channels_last)


def _noise(value: Tensor) -> Tensor:
    """A tenth of a parameter's size, or of what a layer of its width starts with."""
    usual = 1 / max(1, value.shape[-1] if value.ndim else 1) ** 0.5
    return 0.1 * value.detach().abs().mean().clamp_min(usual)


def _picked(result: Any, output: Output) -> Tensor:
    """The tensor that the user asked for, or the only one there is."""
    if callable(output):
        found = output(result)
    elif output is not None:
        found = entry_of(result, output)
    else:
        found = _only_tensor(result)
    if not isinstance(found, Tensor):
        raise InputError(
            f"`output=` picks a {type(found).__name__} from what the model returns, not a tensor."
        )
    return found


def entry_of(result: Any, output: str | int) -> Any:
    """An entry of what a model returns: by position, key or attribute."""
    try:
        if isinstance(output, str) and not isinstance(result, Mapping):
            return getattr(result, output)
        return result[output]
    except (AttributeError, KeyError, IndexError, TypeError):
        raise InputError(
            f"the model's result ({_described(result)}) has no entry {output!r}: choose another `output=`."
        ) from None


def _only_tensor(result: Any) -> Tensor:
    if isinstance(result, Tensor):
        return result
    tensors = {name: value for name, value in _entries(result).items() if isinstance(value, Tensor)}
    if len(tensors) == 1:
        return next(iter(tensors.values()))
    raise InputError(
        f"the model returns {_described(result)}: `say with output= which tensor is meant, by name, position, "
        "or a function of the result|wrap it in a function of your file so that it returns one tensor`."
    )


def _entries(result: Any) -> dict[Any, Any]:
    if isinstance(result, Mapping):
        return dict(result)
    if isinstance(result, tuple | list):
        return dict(enumerate(result))
    return dict(vars(result)) if hasattr(result, "__dict__") else {}


def _described(result: Any) -> str:
    names = ", ".join(str(name) for name in _entries(result))
    return f"a {type(result).__name__}" + (f" with {names}" if names else "")


def _as_matrix(outputs: Tensor, batch: Batch, differentiable: bool) -> Tensor:
    if not outputs.is_floating_point():
        raise NotSupportedError(
            f"the model's output has dtype {outputs.dtype}, which has no derivative: `pick a real output "
            "with output=|let the model return real numbers`."
        )
    if differentiable and not outputs.requires_grad:
        raise NotSupportedError(
            "the model's output does not depend differentiably on any chosen parameter: return it before "
            "detach, argmax or no_grad, and leave requires_grad on."
        )
    if outputs.ndim <= batch.axis or outputs.shape[batch.axis] != batch.count:
        raise InputError(
            f"the output has shape {tuple(outputs.shape)} for {batch.count} samples: it needs one entry "
            f"per sample along axis {batch.axis}; `pick or reshape it with output=|let the model return "
            "samples first`."
        )
    return outputs.movedim(batch.axis, 0).reshape(batch.count, -1)
