"""Observables by name: ours, and those that others register."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from torch import Tensor

from foretrain.empirical.models.batches import as_batch
from foretrain.support.errors import InputError, unknown_name

NEEDS = ("loss", "optimizer")  # what a Recorder may hand to an observable beside model and batch


@dataclass(frozen=True, eq=False)
class Observable:
    """A function (model, batch) -> numbers under a name; what it ``needs`` beside is given to it by keyword."""

    name: str
    function: Callable[..., Any]
    needs: tuple[str, ...] = ()

    def __call__(self, model: Any, batch: Any, **needed: Any) -> Any:
        """What it sees now."""
        return self.function(model, batch, **needed)


ObservableLike: TypeAlias = str | Observable | Callable[..., Any]
Asked: TypeAlias = ObservableLike | Sequence[ObservableLike] | Mapping[str, ObservableLike]

_registered: dict[str, Callable[[], Observable]] = {}


def register(name: str, function: Callable[..., Any], needs: Sequence[str] = ()) -> None:
    """Make a function (model, batch) known by a name, so that ``Recorder(folder, model, [name])`` finds it.

    It returns a number, an array, an xarray.DataArray or Dataset (their labels are kept), an estimate with its
    standard error, or a dict of these; always of one shape. ``needs=("loss",)`` or ``("optimizer",)``: what it is
    given by keyword beside.

    Examples
    --------
    >>> register("largest_weight", lambda model, batch: max(float(p.abs().max()) for p in model.parameters()))
    """
    if name in _registered:
        raise InputError(f"an observable called {name!r} is known already: choose another name.")
    if not callable(function):
        raise InputError(f"the observable {name!r} is a {type(function).__name__}: give a function.")
    for need in needs:
        if need not in NEEDS:
            raise unknown_name("need of an observable", need, NEEDS, "needs")
    add(name, lambda: Observable(name, function, tuple(needs)))


def names() -> list[str]:
    """All that are known by name."""
    return sorted(_registered)


def found(asked: Asked) -> list[Observable]:
    """Observables from names, functions, or a dict of these under other names."""
    if isinstance(asked, Mapping):
        return [_under(name, item) for name, item in asked.items()]
    several = (
        [asked]
        if not isinstance(asked, Iterable) or isinstance(asked, str) or callable(asked)
        else list(asked)
    )
    result = [_single(item) for item in several]
    twice = [item.name for place, item in enumerate(result) if item.name in {r.name for r in result[:place]}]
    if twice:
        raise InputError(f"{twice[0]!r} is asked for twice: give them different names with a dict.")
    return result


def add(name: str, make: Callable[[], Observable]) -> None:
    """Make known what gives an observable with its usual options."""
    _registered[name] = make


def _single(item: ObservableLike) -> Observable:
    if isinstance(item, Observable):
        return item
    if isinstance(item, str):
        if item not in _registered:
            raise unknown_name("observable", item, _registered, "observables")
        return _registered[item]()
    if not callable(item):
        raise InputError(f"{item!r} is no observable: give a name or a function of model and batch.")
    name = getattr(item, "__name__", type(item).__name__)
    if name == "<lambda>":
        raise InputError("a lambda has no name to be recorded under: give a dict {name: function}.")
    return Observable(name, item)


def _under(name: str, item: ObservableLike) -> Observable:
    if isinstance(item, str | Observable):
        known = _single(item)
        return Observable(name, known.function, known.needs)
    return Observable(name, item) if callable(item) else _single(item)


def inputs(batch: Any, samples: int | None = None) -> Any:
    """x of a batch (x, y), or of one that is x alone; ``samples``: only the first ones."""
    if batch is None:
        raise InputError("it needs inputs: give the Recorder a batch=(x, y).")
    x = batch[0] if _is_pair(batch) else batch
    if samples is None:
        return x
    given = as_batch(x)
    return x if given.count <= samples else given.pick(slice(samples)).arguments


def both(batch: Any) -> tuple[Any, Any]:
    """x and y of a batch (x, y)."""
    if not _is_pair(batch):
        raise InputError("it needs targets: give the Recorder a batch=(x, y) of inputs and targets.")
    return batch[0], batch[1]


def targets(batch: Any) -> Tensor:
    """y of a batch (x, y), which is a tensor."""
    _, y = both(batch)
    if not isinstance(y, Tensor):
        raise InputError("it needs targets: give the Recorder a batch=(x, y) whose y is a tensor.")
    return y


def _is_pair(batch: Any) -> bool:
    return isinstance(batch, tuple | list) and len(batch) == 2
