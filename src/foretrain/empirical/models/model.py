"""How a model is called (arguments in, one matrix of outputs back, with their graph), and which is refused."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.overrides import TorchFunctionMode

from foretrain.empirical.autograd_graph.tape import Tape
from foretrain.empirical.models.arguments import Batch, leaves
from foretrain.support.errors import ForetrainError, InputError, NotSupportedError
from foretrain.support.user_warnings import filtered_warnings

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

    ``unfused`` runs it without the fused recurrent kernels, which hide the products inside a layer. ``has_hooks``
    says that Python of the user's own is called in its backward passes.
    """

    function: Callable[..., Any]
    parameters: Mapping[str, Tensor]
    output: Output = None
    given_parameters: Any = None  # what a functional model takes first
    unfused: bool = field(default=False)
    channels_last: bool = field(default=False)  # images go in with the channels of a pixel side by side
    has_hooks: bool = field(default=False)

    def __call__(self, batch: Batch, differentiable: bool = True) -> Tensor:
        """Outputs of all samples, (samples, outputs), flattened after the batch axis."""
        with ExitStack() as stack:
            stack.enter_context(torch.set_grad_enabled(differentiable))
            if self.unfused:
                stack.enter_context(
                    filtered_warnings("ignore", "TF32 acceleration")
                )  # from reading the flags
                stack.enter_context(torch.backends.mkldnn.flags(enabled=False))
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            arguments = batch.channels_last() if self.channels_last else batch.arguments
            first = () if self.given_parameters is None else (self.given_parameters,)
            outputs = picked(call_with(self.function, arguments, first), self.output)
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

    def moved(self) -> Model | None:
        """The same model with noise added to its parameters; None for a functional model, whose own they are."""
        if not isinstance(self.function, nn.Module):
            return None
        values = {}
        for name, value in self.parameters.items():
            # A tenth of a parameter's size, or of what a layer of its width starts with.
            usual = 1 / max(1, value.shape[-1] if value.ndim else 1) ** 0.5
            noise = 0.1 * value.detach().abs().mean().clamp_min(usual)
            values[name] = (value + torch.randn_like(value) * noise).detach().requires_grad_()
        function = with_values(self.function, values)
        return Model(function, values, self.output, None, self.unfused, self.channels_last, self.has_hooks)


def picked(result: Any, output: Output) -> Tensor:
    """The tensor that the user asked for, or the only one there is."""
    if callable(output):
        found = output(result)
    elif output is not None:
        found = entry_of(result, output)
    elif isinstance(result, Tensor):
        found = result
    else:
        tensors = [value for value in _entries(result).values() if isinstance(value, Tensor)]
        if len(tensors) != 1:
            raise InputError(
                f"the model returns {_described(result)}: `say with output= which tensor is meant, by name, "
                "position, or a function of the result|wrap it in a function of your file so that it returns one "
                "tensor`."
            )
        found = tensors[0]
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


def _entries(result: Any) -> dict[Any, Any]:
    if isinstance(result, Mapping):
        return dict(result)
    if isinstance(result, tuple | list):
        return dict(enumerate(result))
    return dict(vars(result)) if hasattr(result, "__dict__") else {}


def _described(result: Any) -> str:
    names = ", ".join(str(name) for name in _entries(result))
    return f"a {type(result).__name__}" + (f" with {names}" if names else "")


def call_with(function: Callable[..., Any], x: Any, first: tuple[Any, ...] = ()) -> Any:
    """function(*x) of a tuple or list, function(**x) of a dict whose keys are its arguments, else function(x).

    ``first`` are arguments before these.
    """
    if isinstance(x, tuple | list):
        return function(*first, *x)
    if isinstance(x, Mapping):
        declared = function.forward if isinstance(function, nn.Module) else function
        try:
            inspect.signature(declared).bind(*first, **x)
        except TypeError:
            pass  # its entries are no names of arguments: the dict itself is the argument
        else:
            return function(*first, **x)
    return function(*first, x)


def with_values(module: nn.Module, values: Mapping[str, Tensor]) -> Callable[..., Any]:
    """The module with other tensors in the place of some of its own, tied ones included."""

    @wraps(module.forward)  # with its signature, by which dicts of arguments are understood
    def called(*args: Any, **kwargs: Any) -> Any:
        return functional_call(module, dict(values), args, kwargs, tie_weights=True)

    return called


@contextmanager
def explained(x: Any, parameters: Iterable[Tensor], name: str = "x") -> Iterator[None]:
    """Around the first pass with inputs: where torch stumbles over them, say over what."""
    try:
        yield
    except (ForetrainError, NotImplementedError, torch.OutOfMemoryError):
        raise  # these have nothing to do with the inputs
    except (RuntimeError, TypeError, ValueError, IndexError) as error:
        given = [leaf for leaf in leaves(x) if isinstance(leaf, Tensor)]
        own = [value for value in parameters if value.is_floating_point()]
        dtypes, devices = {value.dtype for value in own}, {value.device for value in own}
        for leaf in given if own else []:
            if leaf.device not in devices:
                raise InputError(
                    f"`{name}` is on {leaf.device}, but the model on {own[0].device}: move one of them with .to(...)."
                ) from error
            if leaf.is_floating_point() and leaf.dtype not in dtypes:
                raise InputError(
                    f"`{name}` is {_told(leaf.dtype)}, but the model is {_told(own[0].dtype)}: convert one of them "
                    f"with .to({own[0].dtype}) or .to({leaf.dtype})."
                ) from error
        said = " ".join(str(error).split()).rstrip(".")[:200] or type(error).__name__
        shapes = ", ".join(f"{tuple(leaf.shape)} {_told(leaf.dtype)}" for leaf in given)
        raise InputError(
            f"the model cannot be called on `{name}` of shape {shapes} ({said}): give what its forward takes."
        ) from error


def _told(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


_BATCH_NORMS = nn.modules.batchnorm._BatchNorm
_DROPOUTS = nn.modules.dropout._DropoutNd
# Relative differences that another order of summation may make.
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-4}


def refuse_ill_defined(model: Any, *, is_frozen: bool = False) -> None:
    """Dropout and batch statistics make outputs random, or make one sample's output depend on the others.

    ``is_frozen``: what is random is drawn the same in every pass.
    """
    if not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules():
        called = f"{name or 'the model'} ({type(module).__name__})"
        # The rate at which it drops values now.
        rate = 0.0
        if isinstance(module, nn.RReLU):
            rate = float(module.upper - module.lower)
        elif isinstance(module, _DROPOUTS):
            rate = float(module.p)
        elif isinstance(module, nn.MultiheadAttention) or (
            isinstance(module, nn.RNNBase) and module.num_layers > 1
        ):
            rate = float(module.dropout)
        if module.training and rate > 0 and not is_frozen:
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


def refuse_random(first: Tensor, second: Tensor, remedy: str = "") -> None:
    """Two passes with the same batch must agree; a further ``remedy`` ends the sentence."""
    if not close(first, second):
        raise NotSupportedError(
            "two passes with the same samples give different outputs, so that the kernel is not defined: switch off "
            f"what is random in the model (dropout, noise, sampling) or changes with every call{remedy}."
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
    with filtered_warnings("error", ".*None of the inputs have requires_grad=True"):
        try:
            yield
        except UserWarning as warning:
            raise NotSupportedError(_CHECKPOINTS) from warning


class GradientHooks(TorchFunctionMode):
    """Notices, while a model runs, whether it asks for Python of its own to be called in the backward pass.

    That is the case for ``tensor.register_hook`` and for saved tensors that are packed and unpacked, as checkpoints
    do; neither leaves a trace in the graph.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Run the function as it is, and look whether it is a hook or runs below one."""
        packs = torch._C._autograd._top_saved_tensors_default_hooks(True) is not None
        self.seen |= packs or getattr(func, "__name__", "") == "register_hook"
        return func(*args, **(kwargs or {}))


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
