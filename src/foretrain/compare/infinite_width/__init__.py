"""Infinite width of real architectures: a torch module in, its NNGP and NTK out.

``graph``       the operations of a module, captured by torch.export
``reader``      what every axis of every tensor means; the graph becomes a signal of ``foretrain.theory.layers``
``operations``  the rules of operations, by their kinds
``laws``        which law weights were drawn from, and learning rates
``stored``      kernels larger than memory, tile by tile into a store
``beside``      the kernels beside those of finite networks, with z-scores and a verdict
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from dataclasses import field as standing
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader

from foretrain.compare.infinite_width import operations  # noqa: F401 - its rules register themselves
from foretrain.compare.infinite_width.graph import capture, refuse_hidden_numbers
from foretrain.compare.infinite_width.laws import Hyperparameters, Patterns, Row
from foretrain.compare.infinite_width.reader import Reader, Value, WideAxes
from foretrain.empirical.models.arguments import Batch, as_batch, leaves, mapped
from foretrain.empirical.models.model import Output
from foretrain.empirical.stored_kernel import asked_of_store
from foretrain.empirical.stored_kernel.identity import short_description
from foretrain.empirical.tangent_kernel.kernel import chunk_size
from foretrain.support.answers import Answer, Column, Part, Result, Table, dataset_figure, labelled
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed, kept_random_states
from foretrain.support.threads import one_thread_of_torch
from foretrain.theory.layers import Signal
from foretrain.theory.layers.expressions import Expression, Leaf, Sum
from foretrain.theory.layers.fields import Field
from foretrain.theory.layers.linear_maps import Table as FixedTable
from foretrain.theory.layers.tiles import ACCURACY, DRAWS, Data, Found, in_order, kernel_of

if TYPE_CHECKING:
    from foretrain.compare.infinite_width.stored import StoredInfiniteWidth

_HERE = torch.device("cpu")
_WIDTHS = (32, 64)  # of networks by which a factory tells which axes grow, and how laws depend on it
_DRAWN = 8  # networks of each


@dataclass(frozen=True, eq=False, repr=False)
class InfiniteWidth(Result):
    """NNGP and NTK of a network of infinite width, per output channel, and what was read to get them.

    ``nngp`` and ``ntk`` have dims (input_1, input_2); where the output keeps positions, each input is followed by
    them. ``standard_error`` holds the same for what was sampled, and is None where everything is exact.
    """

    nngp: xr.DataArray
    ntk: xr.DataArray
    rows: tuple[Row, ...]
    standard_error: xr.Dataset | None = None
    notes: tuple[str, ...] = ()
    outputs: int = 1  # channels of the output
    loops: str = ""  # what went through all pairs: numba, numpy or torch

    @cached_property
    def reading(self) -> Table:
        """What each module was taken for, its constants and rates, and how they were known."""
        return reading_of(self.rows)

    def answer(self) -> Answer:
        """The size of the kernels, what was read, and a picture."""
        data = xr.Dataset({"nngp": self.nngp, "ntk": self.ntk})
        if self.standard_error is not None:
            data = data.assign({f"{name}_error": part for name, part in self.standard_error.items()})
        first, second = self.nngp.sizes["input_1"], self.nngp.sizes["input_2"]
        sizes = ", ".join(
            f"{word} {float(abs(part).mean()):.4g}" for word, part in (("NNGP", self.nngp), ("NTK", self.ntk))
        )
        how = "exact"
        if self.standard_error is not None:
            largest = max(
                float((self.standard_error[name] / abs(data[name]).mean()).max()) for name in ("nngp", "ntk")
            )
            how = f"partly sampled, standard errors up to {100 * largest:.2g} %"
        statement = (
            f"Kernels of infinite width between {first} and {second} inputs ({how}): mean size {sizes}."
        )
        parts: list[Part] = [self.reading, *self.notes, f"Loops over pairs of inputs: {self.loops}."]
        if self.nngp.ndim == 2:
            parts.append(lambda: dataset_figure(data[["nngp", "ntk"]], "Infinite width"))
        return Answer(statement, parts, data)


@dataclass(frozen=True, eq=False)
class Network:
    """A network as fields, its inputs, and what was read to get there."""

    field: Field
    data: Data
    other: Data | None  # the second set of inputs
    description: str
    rows: tuple[Row, ...] = ()
    notes: tuple[str, ...] = ()
    outputs: int = 1
    device: torch.device = _HERE  # of the model
    wide: WideAxes = standing(default_factory=WideAxes)
    learning: Mapping[str, tuple[float, float]] = standing(default_factory=dict)  # lambda, fan-in


def reading_of(rows: Sequence[Row]) -> Table:
    """The rows of a reading as a table."""
    names = ("module", "taken for", "fan-in", "C_W", "C_b", "lambda_W", "lambda_b", "known from")
    values = [(r.module, r.taken_for, r.fan_in, r.C_W, r.C_b, r.lambda_W, r.lambda_b, r.known) for r in rows]
    return Table([Column(name) for name in names], values)


@overload
def infinite_width(
    model: Any, x: Any, x2: Any = None, *, store: None = None, **options: Any
) -> InfiniteWidth: ...
@overload
def infinite_width(
    model: Any, x: Any, x2: Any = None, *, store: str | Path, **options: Any
) -> StoredInfiniteWidth: ...
def infinite_width(  # type: ignore[misc]  # the overloads leave the other options to this signature
    model: nn.Module | Callable[[int], nn.Module] | Signal,
    x: Any,
    x2: Any = None,
    *,
    init: str | Patterns = "module",
    rates: str | float | Patterns = "ntk",
    output: Output = None,
    widths: Sequence[int] = _WIDTHS,
    draws: int = DRAWS,
    accuracy: float = ACCURACY,
    seed: Seed = 0,
    store: str | Path | None = None,
    engine: object = None,
    workers: int | None = None,
    memory: float | str | None = None,
    batch_size: int | Literal["auto"] | None = None,
    overwrite: bool = False,
) -> InfiniteWidth | StoredInfiniteWidth:
    """NNGP and NTK of a network whose hidden channels become infinitely many.

    Parameters
    ----------
    model
        A torch module: every channel axis that is neither the input's nor the output's becomes wide. A function
        ``make(width)``: what grows between two widths becomes wide. Or a signal of ``foretrain.theory.layers``,
        for networks written by hand.
    x, x2
        Inputs as the model takes them, samples first: a tensor or array, or a tuple, list or dict of tensors for
        several arguments. Kernels are between x and x2, or between x and itself.
    init
        "module" recognises the law each weight was drawn from, or takes the variance it has;
        ``{pattern: (C_W, C_b)}`` gives them for modules whose names match. ``reading`` says what was taken.
    rates
        "ntk": lambda_W = C_W, lambda_b = C_b; gains and shifts of norms do not train. "standard": one rate, 1, for
        every stored parameter, so that the NTK grows with the fan-ins of this module; or that rate as a number. Or
        ``{pattern: (lambda_W, lambda_b)}``, for norms the rates of gain and shift; what no pattern matches is "ntk".
    output
        Which of several tensors that the model returns is meant: its name, position, or a function of the result.
    widths
        Of a function ``make(width)``: two widths for which it builds networks. By them it is known which axes grow,
        and which laws go on to infinite width.
    draws
        Random draws, at most, for means that have no formula, such as max pooling of rectified images.
    accuracy
        Fewer draws are taken once the standard errors of NNGP and NTK are this small beside their entries (root mean
        squares). 0 takes all ``draws``, as kernels in a store do: all their tiles have the same draws.
    store
        A folder for kernels larger than memory: their tiles go there as they finish, and the result reads from it.
        The same call again goes on where an earlier one stopped; ``overwrite=True`` starts afresh.
    engine, workers, memory, batch_size
        With ``store``, as in ``ntk``: where tiles are computed, by how many, the bytes each may take ("1GB"), and the
        side of a tile.

    Examples
    --------
    >>> import foretrain as ft, torch
    >>> from torch import nn
    >>> net = nn.Sequential(nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 1))
    >>> kernels = ft.infinite_width(net, torch.eye(3), init={"*": (2.0, 0.0)})
    >>> kernels.ntk.values.round(3)
    array([[1.333, 0.212, 0.212],
           [0.212, 1.333, 0.212],
           [0.212, 0.212, 1.333]])
    """
    draws = whole_number("draws", draws, least=2)
    side = None if batch_size is None else chunk_size(batch_size)
    stored = asked_of_store(
        store, engine=engine, workers=workers, memory=memory, side=side, overwrite=overwrite
    )
    if isinstance(model, Signal):
        network = _of_signal(model, x, x2)
    else:
        with one_thread_of_torch():  # it is read in small steps, after each of which threads would wait
            network = of_module(model, x, x2, init, rates, output, widths)
    if stored is not None:
        from foretrain.compare.infinite_width.stored import compute_stored

        return compute_stored(network, draws, seed, stored)
    return computed(network, draws, accuracy, seed)


def computed(
    network: Network, draws: int = DRAWS, accuracy: float = ACCURACY, seed: Seed = 0
) -> InfiniteWidth:
    """The kernels of a network, where its model is."""
    if network.device != _HERE:
        network = _beside_model(network)
    found = kernel_of(network.field, network.data, network.other, draws=draws, accuracy=accuracy, seed=seed)
    return _result(found, network)


@torch.inference_mode(False)
def of_module(
    model: Any,
    x: Any,
    x2: Any,
    init: str | Patterns,
    rates: str | float | Patterns,
    output: Output,
    widths: Sequence[int] = _WIDTHS,
    known: WideAxes | None = None,
) -> Network:
    """A module as fields; ``known``: which axes are wide, if a factory that made it has told."""
    hyperparameters = Hyperparameters(init, rates)
    module, wide = _module(model, widths) if known is None else (model, known)
    device = next((one.device for one in module.parameters()), _HERE)
    made_for_inference = any(one.is_inference() for one in (*module.parameters(), *module.buffers()))
    if device != _HERE or made_for_inference:  # it is read here, and only its kernels are computed there
        module = copy.deepcopy(module).cpu()
    first = _batch(x, module, "x")
    # A single sample stands twice: with one alone, the axis of samples cannot be told from others of size 1.
    second = _batch(x2, module, "x2") if x2 is not None else first.pick(slice(first.count == 1))
    together = _together(first, second)
    with kept_random_states():
        reader = Reader(capture(module, together, output), together, hyperparameters, wide)
        value = reader.read()
        refuse_hidden_numbers(module, together, output)
    _refuse_other_outputs(value)
    if unused := hyperparameters.unused():
        raise InputError(
            f"no layer has a name that matches {', '.join(map(repr, unused))}: the names are "
            f"{', '.join(dict.fromkeys(row.module for row in hyperparameters.rows))}."
        )
    count = first.count
    rows = {one: values[:count] for one, values in reader.data.items()}
    columns = None if x2 is None else {one: values[count:] for one, values in reader.data.items()}
    outputs = math.prod(atom.size for atom in value.atoms if atom.kind == "channel")
    notes = _notes(rates, wide)
    return Network(
        value.signal.field,
        rows,
        columns,
        short_description(model),
        tuple(hyperparameters.rows),
        notes,
        outputs,
        device,
        wide,
        reader.learning,
    )


def _beside_model(network: Network) -> Network:
    """With inputs where the model is, which then computes the kernels, or a note why the processor does it."""
    other = next((one for one in in_order(network.field) if not one.for_any_library), None)
    reason = None if other is None else f"{other.name or type(other).__name__} is not written for it"
    try:
        torch.zeros(1, dtype=torch.float64, device=network.device)
    except (TypeError, RuntimeError):
        reason = "it has no double precision"
    if reason is not None:
        note = f"Computed by the processor instead of {network.device}: {reason}."
        return replace(network, notes=(*network.notes, note))

    def moved(data: Data) -> Data:
        return {one: torch.as_tensor(values, device=network.device) for one, values in data.items()}

    return replace(
        network, data=moved(network.data), other=None if network.other is None else moved(network.other)
    )


def _of_signal(signal: Signal, x: Any, x2: Any) -> Network:
    """A network written by hand."""
    other = None if x2 is None else signal.inputs(x2)
    return Network(signal.field, signal.inputs(x), other, "network written by hand")


def _module(model: Any, widths: Sequence[int]) -> tuple[nn.Module, WideAxes]:
    """The module, and what networks of two widths tell if it is made for a width."""
    if isinstance(model, nn.Module):
        return model, WideAxes()
    if not callable(model):
        raise InputError(
            f"`model` must be a torch module or a function make(width), not {type(model).__name__}."
        )
    narrow, wide = _two_widths(widths)
    with kept_random_states():
        networks = [[_made(model, width) for _ in range(_DRAWN)] for width in (wide, narrow)]
    drawn = [[dict(one.named_parameters()) for one in some] for some in networks]
    names = drawn[0][0].keys()
    if names != drawn[1][0].keys():
        raise InputError(
            "make(width) gives other parameters at another width: only their sizes may depend on it."
        )
    drawn_at = {name: ([one[name] for one in drawn[0]], [one[name] for one in drawn[1]]) for name in names}
    if all(large[0].shape == small[0].shape for large, small in drawn_at.values()):
        raise InputError(
            "make(width) gives the same sizes at every width: use the width for the hidden layers."
        )
    (large, *_), (small, *_) = networks
    groups = {
        f"{name}.num_groups"
        for name, part in large.named_modules()
        if isinstance(part, nn.GroupNorm) and part.num_groups != small.get_submodule(name).num_groups
    }
    return large, WideAxes((wide, narrow), drawn_at, frozenset(groups))


def _two_widths(widths: Sequence[int]) -> tuple[int, int]:
    """A narrow and a wide one."""
    sizes = sorted({whole_number("widths", one, least=1) for one in widths})
    if len(sizes) < 2:
        raise InputError("`widths` must hold two different numbers, for which make(width) builds networks.")
    return sizes[0], sizes[-1]


def _made(make: Callable[[int], nn.Module], width: int) -> nn.Module:
    """A network of a width."""
    try:
        network = make(width)
    except (ValueError, RuntimeError, TypeError, AssertionError, ArithmeticError, MemoryError) as error:
        raise InputError(
            f"make({width}) failed ({error}): give `widths=(…, …)`, two widths for which it builds networks."
        ) from error
    if not isinstance(network, nn.Module):
        raise InputError(f"make(width) must return a torch module, not {type(network).__name__}.")
    return network


def _batch(x: Any, module: nn.Module, name: str) -> Batch:
    """Inputs with the module's kind of numbers: what it takes, or one array."""
    parameter = next((one for one in module.parameters() if one.is_floating_point()), None)
    if isinstance(x, DataLoader):
        x = as_batch(x).arguments
    if not any(isinstance(one, Tensor) for one in leaves(x)):
        try:
            x = torch.as_tensor(np.asarray(x))
        except (TypeError, ValueError):
            raise InputError(
                f"`{name}` is a {type(x).__name__} that holds no numbers: give a tensor or array, samples first."
            ) from None

    def converted(one: Any) -> Any:
        if not isinstance(one, Tensor):
            return one
        if parameter is not None:
            one = one.to(parameter.device, dtype=parameter.dtype if one.is_floating_point() else None)
        if not bool(torch.isfinite(one).all()):
            raise InputError(f"`{name}` holds numbers that are not finite as {str(one.dtype)[6:]}.")
        return one

    return as_batch(mapped(converted, x))


def _together(first: Batch, second: Batch) -> Batch:
    """The samples of both, one after another; what belongs to all samples is that of the first."""
    one, two = leaves(first.arguments), leaves(second.arguments)
    shapes = [[tuple(value.shape[1:]) for value in some if isinstance(value, Tensor)] for some in (one, two)]
    if shapes[0] != shapes[1]:
        names = [" and ".join(map(str, some)) for some in shapes]
        raise InputError(f"`x2` has samples of shape {names[1]}, `x` of {names[0]}.")
    parts = iter([torch.cat(pair) if held else pair[0] for pair, held in zip(zip(one, two), first.holders)])
    arguments = mapped(lambda _: next(parts), first.arguments)
    return replace(first, arguments=arguments, count=first.count + second.count)


def _refuse_other_outputs(value: Value) -> None:
    """The end of the network must be a layer, and begin with the samples."""
    if [atom.kind for atom in value.dims[0]] != ["batch"]:
        raise InputError("the output of the model does not begin with the samples.")
    laws = [block.law for block in value.signal.blocks]
    if len(laws) > 1:
        raise InputError(
            "outputs of layers with different kernels are concatenated: say which are meant, for example with "
            "output=lambda y: y[:, :3]."
        )
    if isinstance(laws[0], Sum) and (laws[0].constant or any(_is_fixed(one) for _, one in laws[0].terms)):
        raise InputError(
            "the model adds fixed numbers to its outputs, so that their mean is not 0; they change neither "
            "covariance nor NTK: leave them out, for example with output=lambda y: y - 1."
        )
    if not value.signal.field.gaussian:
        raise InputError(
            "the model ends with a nonlinearity, a norm or a pooling, after which outputs are not Gaussian: let it "
            "return what its last linear layer gives."
        )


def _is_fixed(law: Expression) -> bool:
    """Whether an expression is a table of numbers that are neither drawn nor trained."""
    return isinstance(law, Leaf) and isinstance(law.field, FixedTable) and law.field.values is not None


def _notes(rates: Any, wide: WideAxes) -> tuple[str, ...]:
    notes = []
    if wide.drawn_at is None:
        notes.append(
            "Wide: every channel axis but those of input and output; a function make(width) would decide."
        )
    if not isinstance(rates, str | Mapping) or rates == "standard":
        notes.append(
            "Rates of stored parameters: every wide layer adds fan-in times its second moments, so the NTK grows "
            "linearly with the width; biases and norms stay as they are."
        )
    return tuple(notes)


def _result(found: Found, network: Network) -> InfiniteWidth:
    positions = network.field.positions
    nngp, ntk = _labelled(found.S, positions), _labelled(found.Theta, positions)
    errors = None
    if found.errors is not None:
        errors = xr.Dataset({n: _labelled(e, positions) for n, e in zip(("nngp", "ntk"), found.errors)})
    return InfiniteWidth(nngp, ntk, network.rows, errors, network.notes, network.outputs, found.loops)


def inputs_first(values: NDArray[np.float64], positions: tuple[int, ...]) -> NDArray[np.float64]:
    """Pairs of positions and inputs (pairs of each axis..., N, N2) as (N, positions..., N2, positions...)."""
    axes = len(positions)
    shaped = values.reshape(*(n for size in positions for n in (size, size)), *values.shape[-2:])
    return shaped.transpose(2 * axes, *range(0, 2 * axes, 2), 2 * axes + 1, *range(1, 2 * axes, 2))


def _labelled(values: NDArray[np.float64], positions: tuple[int, ...]) -> xr.DataArray:
    """(N, N2), or (N, positions..., N2, positions...) where the output keeps them."""
    names = [
        word
        for side in (1, 2)
        for word in (f"input_{side}", *(f"position_{k}_{side}" for k in range(1, len(positions) + 1)))
    ]
    data = labelled({"kernel": (" ".join(names), inputs_first(values, positions))}, {})
    return data["kernel"].rename(None)
