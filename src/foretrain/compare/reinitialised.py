"""``ensemble``: what any torch network does at initialisation, measured on many draws of it, at several widths.

The measured twin of infinite width: mean and covariance of the outputs, the kernel of the outputs (NNGP) and the
tangent kernel (NTK), with standard errors over independent networks, extrapolated in 1/width.
"""

from __future__ import annotations

import inspect
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.compare.ensemble_statistics import EnsembleStatistics, FloatArray, Moments, with_limits
from foretrain.empirical.any_kernel import routes_taken
from foretrain.empirical.models.arguments import Batch, Rates, as_batch, mapped
from foretrain.empirical.models.model import Model, Output, call_with, entry_of, explained, refuse_ill_defined
from foretrain.empirical.tangent_kernel.kernel import ntk
from foretrain.support.answers import labelled
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, NotSupportedError, unknown_name
from foretrain.support.memory import require_memory
from foretrain.support.progress import Progress
from foretrain.support.seeds import Seed, integer, kept_random_states, seed_text, spawn
from foretrain.support.threads import on_free_cores

Quantity = Literal["outputs", "nngp", "ntk"]
QUANTITIES: tuple[Quantity, ...] = ("outputs", "nngp", "ntk")

Build = Callable[[int | None], Any]  # from a width, or None, to a network
Statistics = dict[str, FloatArray]

_ARRAYS_AT_WORK, _ARRAYS_KEPT = 9, 6  # of the size of a kernel, for each quantity; the second for every width


@on_free_cores()
def ensemble(
    make: nn.Module | Callable[..., nn.Module],
    x: Any,
    x2: Any = None,
    *,
    draws: int = 200,
    widths: int | Sequence[int] | None = None,
    quantities: Quantity | Sequence[Quantity] = QUANTITIES,
    rates: Rates | Callable[[nn.Module], Rates] = None,
    parameters: Any = None,
    output: Output = None,
    channel_axis: int | None = None,
    seed: Seed = 0,
) -> EnsembleStatistics:
    """Draw a network many times, and measure what its outputs and kernels are on average and how they scatter.

    Networks are drawn one after the other, each from a seed of its own; the random states of torch, numpy and Python
    stay as they were. Networks have their own dtype (float64 is best), statistics are float64.

    Parameters
    ----------
    make
        A function that builds the model, ``make(width)`` or ``make()``; or an ``nn.Module`` whose modules have
        ``reset_parameters()``, of which a copy is reset for every draw.
    x, x2
        Inputs as ``ntk`` takes them, or numpy arrays, which get the dtype of the network. Kernels are between x and
        x2, or between x and itself.
    draws
        Networks of each width.
    widths
        What ``make(width)`` is called with. Two or more are extrapolated in 1/width; with the quadratic that three
        or more allow, errors of the limit are about three times those of the widest networks.
    quantities
        Which of "outputs" (mean, variance, covariance), "nngp" and "ntk" are measured; the last takes most
        of the time.
    rates, parameters, output
        As in ``ntk``. Of rates that change with the width: a function ``rates(model)`` that returns them.
    channel_axis
        The axis of channels in the output, over which kernels are averaged; other axes are positions, and kernels
        then have axes ``position_1`` and ``position_2`` too. By default all outputs of a sample are channels.

    Examples
    --------
    >>> import foretrain as ft, torch
    >>> found = ft.ensemble(lambda: torch.nn.Linear(3, 1), torch.eye(3), draws=50)
    >>> found.ntk.sel(input_1=0, input_2=0).item()  # x.x + 1 in every network
    2.0
    """
    build, sizes = _source(make, widths)
    count = whole_number("draws", draws, least=2)
    chosen = _checked_quantities(quantities)
    seeds = [spawn(own, count) for own in spawn(seed, len(sizes))]
    with kept_random_states(), torch.inference_mode(False):
        # A look at one network of each width, so that what is wrong is said before the work begins.
        network = _drawn(build, sizes[0], seeds[0][0])
        first, second = _batch(x, network), None if x2 is None else _batch(x2, network)
        shapes = {
            size: _output_shape(_drawn(build, size, own[0]), first, output, channel_axis)
            for size, own in zip(sizes, seeds)
        }
        channels = _channels(shapes, channel_axis)
        measurement = Measurement(chosen, first, second, rates, parameters, output, channels)
        measurement.require_memory(count, len(sizes))
        with Progress("networks", total=count * len(sizes)) as bar:
            found = [measurement.of_width(build, size, own, bar) for size, own in zip(sizes, seeds)]
    statistics = _labelled_statistics(measurement, found, sizes, count, seed_text(seed))
    reset = ", each with the reset_parameters() of its modules, whatever values the given model has"
    return replace(statistics, route=statistics.route + reset * isinstance(make, nn.Module))


@dataclass(frozen=True, eq=False)
class Measurement:
    """What is measured on every network, and on which inputs."""

    quantities: tuple[Quantity, ...]
    first: Batch
    second: Batch | None
    rates: Any
    parameters: Any
    output: Output
    channels: NDArray[np.int64]  # (channels, positions): numbers of a sample's outputs

    def require_memory(self, draws: int, widths: int) -> None:
        """Refuse what does not fit: outputs of all networks of a width, and sums for every entry of the kernels."""
        columns = 0 if self.second is None else self.second.count
        pairs = self.first.count * (columns or self.first.count) * self.channels.shape[1] ** 2
        kernels = len(self.quantities) * pairs * (_ARRAYS_AT_WORK + _ARRAYS_KEPT * widths)
        outputs = 2 * draws * (self.first.count + columns) * self.channels.size
        require_memory(
            8 * (outputs + kernels),
            f"an ensemble of {draws} networks on {self.first.count} inputs",
            "give fewer inputs or `draws`, or fewer `quantities`",
        )

    def of_width(
        self, build: Build, width: int | None, seeds: Sequence[Seed], bar: Progress
    ) -> tuple[Statistics, str]:
        """All statistics of the networks of one width, and the routes of their tangent kernels."""
        outputs, others = list[FloatArray](), list[FloatArray]()  # of every network, (samples, outputs)
        kernels, scales, routes = Moments(), Moments(), ""
        before: list[Tensor] = []
        for number, seed in enumerate(seeds):
            network = _drawn(build, width, seed)
            before = _refuse_equal(network, before, number)
            outputs.append(self._finite_outputs(network, self.first, "x", width))
            if self.second is not None:
                others.append(self._finite_outputs(network, self.second, "x2", width))
            if "ntk" in self.quantities:
                kernel, routes = self._tangent_kernel(network)
                kernels.add(kernel)
                scales.add(self._scale(kernel))
            bar.advance()
        found = self._output_statistics(np.stack(outputs), np.stack(others or outputs))
        if "ntk" in self.quantities:
            found |= kernels.record("ntk") | scales.record("ntk_scale")
        return found, routes

    def _finite_outputs(self, network: nn.Module, batch: Batch, name: str, width: int | None) -> FloatArray:
        found = _outputs(network, batch, self.output, name)
        if not bool(torch.isfinite(found).all()):
            where = "" if width is None else f" of width {width}"
            raise InputError(
                f"a network{where} has outputs on `{name}` that are not finite: let `make` draw smaller weights."
            )
        return np.asarray(found.cpu().double().numpy())

    def _tangent_kernel(self, network: nn.Module) -> tuple[FloatArray, str]:
        """Θ_cc averaged over channels, (N, N2) or (N, N2, P, P), and the routes it was found by."""
        rates = self.rates(network) if callable(self.rates) and _takes(self.rates, network) else self.rates
        channels, positions = self.channels.shape
        options = {"output": self.output, "parameters": self.parameters, "rates": rates}
        second = None if self.second is None else _copied(self.second)
        kernel = ntk(network, _copied(self.first), second, "trace" if positions == 1 else "full", **options)
        values = np.asarray(kernel, dtype=np.float64)
        if positions > 1:
            values = reduce(np.add, (values[:, :, own[:, None], own] for own in self.channels))
        return values / channels, routes_taken(kernel.routes)

    def _output_statistics(self, outputs: FloatArray, others: FloatArray) -> Statistics:
        """Mean and covariance of the outputs, and the NNGP, from outputs (draws, samples, outputs)."""
        found: Statistics = {}
        draws = len(outputs)
        if "outputs" in self.quantities:
            each, covariances = Moments(), Moments()
            left, right = outputs.mean(axis=0), others.mean(axis=0)
            for mine, theirs in zip(outputs, others):
                each.add(mine)
                covariances.add(self._second_moments(mine - left, theirs - right) * draws / (draws - 1))
            found |= each.record("outputs_mean", "outputs_variance")
            found |= {
                "outputs_covariance": covariances.mean,
                "outputs_covariance_error": covariances.mean_error,
            }
        if "nngp" in self.quantities:
            kernels, scales = Moments(), Moments()
            for mine, theirs in zip(outputs, others):
                kernel = self._second_moments(mine, theirs)
                kernels.add(kernel)
                scales.add(self._scale(kernel))
            found |= kernels.record("nngp") | scales.record("nngp_scale")
        return found

    def _second_moments(self, mine: FloatArray, theirs: FloatArray) -> FloatArray:
        """The mean over channels of f_c(a) f_c(b): (N, N2), or (N, N2, P, P) with more than one position."""
        left, right = mine[:, self.channels], theirs[:, self.channels]
        moments = np.einsum("acp,bcq->abpq", left, right, optimize=True) / len(self.channels)
        return np.asarray(moments if self.channels.shape[1] > 1 else moments[:, :, 0, 0])

    def _scale(self, kernel: FloatArray) -> FloatArray:
        """The mean of a kernel's diagonal, or of all its entries if it is between two sets."""
        if self.second is not None:
            return np.asarray(kernel.mean())
        diagonal = np.diagonal(kernel)  # the axis of samples is the last one now
        return np.asarray((diagonal if kernel.ndim == 2 else np.diagonal(diagonal)).mean())


def _source(make: Any, widths: Any) -> tuple[Build, list[int | None]]:
    """A function of the width that gives a network from the random state, and the widths, increasing."""
    if isinstance(make, nn.Module):
        if widths is not None:
            raise InputError(
                "`widths=` is given, but `make` is a module, which has one width: pass a function make(width) that "
                "builds the model."
            )
        return _resetting(make), [None]
    if not callable(make):
        raise InputError(
            f"`make` is a {type(make).__name__}: give a function that builds the model, make(width) or make(), or an "
            "nn.Module."
        )
    if widths is None:
        if not _takes(make):
            raise InputError("`make` takes a width: say which ones with `widths=[64, 128, 256]`.")
        return lambda _: make(), [None]
    if not _takes(make, 64):
        raise InputError(
            "`widths=` is given, but `make` does not take one number: write it as make(width), or leave `widths` out."
        )
    given = widths if isinstance(widths, Iterable) else [widths]
    sizes = sorted({whole_number("widths", width) for width in given})
    if not sizes:
        raise InputError("`widths` is empty: give at least one, such as `widths=[64, 128, 256]`.")
    return make, list(sizes)


def _resetting(module: nn.Module) -> Build:
    """A function that resets a copy of the module, children before parents, as when they are built."""
    own = deepcopy(module)
    names = ("reset_parameters", "_reset_parameters")  # the second is that of attention and transformers
    resets = []
    for name, part in reversed(list(own.named_modules())):
        known = [getattr(part, method) for method in names if callable(getattr(part, method, None))]
        if not known and any(True for _ in part.parameters(recurse=False)):
            raise NotSupportedError(
                f"{name or 'the model'} ({type(part).__name__}) has parameters but no reset_parameters(): pass a "
                "function that builds the model as `make`, instead of the model."
            )
        resets += known[:1]

    def build(_: int | None) -> nn.Module:
        for reset in resets:
            reset()
        return own

    return build


def _takes(function: Callable[..., Any], *arguments: Any) -> bool:
    """Whether a function can be called with these arguments; where Python cannot say, it is tried."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        return False
    except ValueError:
        return True
    return True


def _checked_quantities(quantities: Any) -> tuple[Quantity, ...]:
    several = isinstance(quantities, Iterable) and not isinstance(quantities, str)
    given = list(quantities) if several else [quantities]
    for name in given:
        if name not in QUANTITIES:
            raise unknown_name("quantity", str(name), QUANTITIES, "quantities")
    if not given:
        raise InputError(f"`quantities` is empty: give some of {', '.join(QUANTITIES)}.")
    return tuple(name for name in QUANTITIES if name in given)


def _batch(x: Any, network: nn.Module) -> Batch:
    """Inputs as a batch; arrays of numpy get the dtype of the network, tensors keep theirs."""
    like = next((value for value in network.parameters() if value.is_floating_point()), torch.zeros(0))

    def tensor(value: Any) -> Any:
        if not isinstance(value, np.ndarray):
            return value
        return torch.tensor(value, device=like.device, dtype=like.dtype if value.dtype.kind == "f" else None)

    return as_batch(x if isinstance(x, Batch | torch.utils.data.DataLoader) else mapped(tensor, x))


def _copied(batch: Batch) -> Batch:
    """For networks that write into their inputs."""
    copies = mapped(lambda value: value.clone() if isinstance(value, Tensor) else value, batch.arguments)
    return replace(batch, arguments=copies)


def _outputs(network: nn.Module, batch: Batch, output: Output, name: str) -> Tensor:
    """(samples, outputs)."""
    with explained(batch.arguments, network.parameters(), name):
        return Model(network, {}, output)(_copied(batch), differentiable=False)


def _output_shape(network: nn.Module, batch: Batch, output: Output, axis: int | None) -> tuple[int, ...]:
    """Samples first; outputs are flattened unless one of their axes is that of channels."""
    flat = _outputs(network, batch, output, "x")
    if axis is None:
        return tuple(flat.shape)
    with torch.no_grad():
        result = call_with(network, _copied(batch).arguments)
    whole = output(result) if callable(output) else result if output is None else entry_of(result, output)
    return tuple(getattr(whole, "shape", flat.shape))


def _channels(shapes: Mapping[int | None, tuple[int, ...]], axis: int | None) -> NDArray[np.int64]:
    """(channels, positions) of the outputs, whose shape must be the same in all widths."""
    shape = next(iter(shapes.values()))
    if len(set(shapes.values())) > 1:
        each = ", ".join(f"{own} at width {width}" for width, own in shapes.items())
        raise InputError(f"the outputs change their shape ({each}): let `make` change hidden widths only.")
    numbers = np.arange(np.prod(shape[1:], dtype=int)).reshape(shape[1:])
    if axis is None:
        return numbers[:, None]
    if axis not in range(-len(shape), len(shape)) or axis % len(shape) == 0:
        raise InputError(
            f"`channel_axis` is {axis!r}, but the outputs have shape {shape}: give an axis behind the samples."
        )
    place = axis % len(shape) - 1
    return np.moveaxis(numbers, place, 0).reshape(shape[place + 1], -1)


def _drawn(build: Build, width: int | None, seed: Seed) -> nn.Module:
    """A network from a seed, which all global streams of random numbers start from."""
    number = integer(seed)
    torch.manual_seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002 - what the user's function may draw from
    random.seed(number)
    network = build(width)
    if not isinstance(network, nn.Module):
        raise InputError(f"`make` returns a {type(network).__name__}: let it return an nn.Module.")
    refuse_ill_defined(network)
    return network


def _refuse_equal(network: nn.Module, before: list[Tensor], number: int) -> list[Tensor]:
    """The second network must differ from the first; what is returned are the values of the first."""
    values = [*network.parameters(), *network.buffers()]
    if number == 0:
        return [value.detach().clone() for value in values]
    if number == 1 and all(map(torch.equal, values, before)):
        raise InputError(
            "two draws have the same parameters: let `make` draw new ones with every call, and set no seed in it."
        )
    return []


def _labelled_statistics(
    measurement: Measurement,
    found: Sequence[tuple[Statistics, str]],
    sizes: Sequence[int | None],
    draws: int,
    seed: str,
) -> EnsembleStatistics:
    """Statistics by width as one dataset, with their limit if there is more than one width."""
    kernel = "width input_1 input_2" + " position_1 position_2" * (measurement.channels.shape[1] > 1)
    dims = {"outputs_mean": "width input_1 output", "outputs_variance": "width input_1 output"}
    dims |= {f"{name}_scale{part}": "width" for name in ("nngp", "ntk") for part in ("", "_variance")}
    variables = {
        name: (dims.get(name.removesuffix("_error"), kernel), np.stack([each[name] for each, _ in found]))
        for name in found[0][0]
    }
    widths = [size for size in sizes if size is not None]
    notes = {"draws": draws, "seed": seed, "two_sets": measurement.second is not None}
    data = labelled(variables, notes, (), **({"width": widths} if widths else {}))
    routes = found[-1][1]
    route = "networks one after the other" + (f", their tangent kernels exactly ({routes})" if routes else "")
    return EnsembleStatistics(with_limits(data) if len(widths) > 1 else data, draws, seed, route)
