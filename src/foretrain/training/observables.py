"""Named observables of a training: functions of model and batch that a ``Recorder`` knows by name.

``loss``, ``gradient_norm``, ``learning_rate``, ``weight_spectra``, ``ntk_shares``, ``fields``, ``global_ntk_rank``,
``core_cosine``, ``mode_alignment``, ``imbalance``, ``lyapunov``, ``participation_ratio``, ``spectral_radius``,
``fixed_points``; each function here gives the observable with its options, such as ``mode_alignment(modes=5)``
(``imbalance`` has none). ``register`` adds more, ``names`` lists all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from foretrain.empirical.fields import fields as collective_fields
from foretrain.empirical.fields.spectra import weight_eigenvalues
from foretrain.empirical.global_ntk import global_ntk
from foretrain.empirical.global_ntk.dynamics import places_of
from foretrain.empirical.global_ntk.readout import find_readout, placed_mask, placed_target
from foretrain.empirical.imbalance import observe_imbalance
from foretrain.empirical.models.arguments import as_batch
from foretrain.empirical.models.model import call_with
from foretrain.empirical.tangent_kernel import ntk
from foretrain.operators.estimators import Estimate
from foretrain.support.arguments import whole_number
from foretrain.support.errors import InputError, unknown_name
from foretrain.support.seeds import Seed
from foretrain.training import dynamics

if TYPE_CHECKING:
    import xarray as xr

    from foretrain.empirical.fields.state import ReadoutLike

__all__ = [
    "Observable",
    "core_cosine",
    "fields",
    "fixed_points",
    "global_ntk_rank",
    "gradient_norm",
    "learning_rate",
    "loss",
    "lyapunov",
    "mode_alignment",
    "names",
    "ntk_shares",
    "participation_ratio",
    "register",
    "spectral_radius",
    "weight_spectra",
]

NEEDS = ("loss", "optimizer")  # what a Recorder may hand to an observable beside model and batch
_VIEWS = ("total", "temporal", "spatial")
_KEPT = (
    "kernel_trace",
    "kernel_drive",
    "kernel_participation",
    "layer_participation",
    "weight_participation",
)


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
        made = {name: _single(item, name) for name, item in asked.items()}
        return [Observable(name, item.function, item.needs) for name, item in made.items()]
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


def _single(item: ObservableLike, name: str = "") -> Observable:
    if isinstance(item, Observable):
        return item
    if isinstance(item, str):
        if item not in _registered:
            raise unknown_name("observable", item, _registered, "observables")
        return _registered[item]()
    if not callable(item):
        raise InputError(f"{item!r} is no observable: give a name or a function of model and batch.")
    name = name or getattr(item, "__name__", type(item).__name__)
    if name == "<lambda>":
        raise InputError("a lambda has no name to be recorded under: give a dict {name: function}.")
    return Observable(name, item)


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


def loss() -> Observable:
    """The recorder's loss(outputs, targets) on its batch, in evaluation mode."""

    def function(model: nn.Module, batch: Any, *, loss: Any) -> float:
        with torch.no_grad():
            return float(_evaluated(model, batch, loss))

    return Observable("loss", function, ("loss",))


def gradient_norm() -> Observable:
    """|dL/dtheta| over parameters with requires_grad, for the recorder's loss on its batch, in evaluation mode."""

    def function(model: nn.Module, batch: Any, *, loss: Any) -> float:
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        gradients = torch.autograd.grad(_evaluated(model, batch, loss), trained, allow_unused=True)
        squares = [gradient.double().square().sum() for gradient in gradients if gradient is not None]
        return float(torch.stack(squares).sum().sqrt())

    return Observable("gradient_norm", function, ("loss",))


def learning_rate() -> Observable:
    """That of the step just made, before a scheduler changes it; one entry for every group of the optimizer."""

    def function(model: nn.Module, batch: Any, *, optimizer: Any) -> Any:
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        return rates[0] if len(rates) == 1 else _by("group", np.arange(len(rates)), rates)

    return Observable("learning_rate", function, ("optimizer",))


def weight_spectra(largest: int | None = None) -> Observable:
    """Singular values of every parameter with two axes or more (the first against the others), or the largest ones.

    (matrix, rank); nan where a matrix has fewer, or is not finite.
    """
    most = None if largest is None else whole_number("largest", largest)

    def function(model: nn.Module, batch: Any) -> xr.DataArray:
        import xarray as xr

        named = model.named_parameters()
        matrices = {name: value.detach().flatten(1) for name, value in named if value.ndim > 1}
        if not matrices:
            raise InputError("the model has no parameter with two axes: there are no weight spectra.")
        count = max(min(matrix.shape) for matrix in matrices.values())
        values = np.full((len(matrices), min(count, most or count)), np.nan)
        for row, matrix in zip(values, matrices.values()):
            if bool(torch.isfinite(matrix).all()):
                singular = weight_eigenvalues(matrix).sqrt().cpu().double().numpy()[: len(row)]
                row[: len(singular)] = singular
        labels = {"matrix": list(matrices), "rank": np.arange(1, values.shape[1] + 1)}
        return xr.DataArray(values, labels, ["matrix", "rank"], attrs={"picture": "spectra"})

    return Observable("weight_spectra", function)


def _evaluated(model: nn.Module, batch: Any, loss: Any) -> Any:
    x, y = both(batch)
    found = loss(call_with(model, x), y)
    if isinstance(found, torch.Tensor) and found.numel() != 1:
        raise InputError(
            f"the loss has shape {tuple(found.shape)}: give one that is a single number, such as the mean."
        )
    return found


def ntk_shares(
    by: Literal["parameter", "layer"] = "parameter", samples: int = 64, **options: Any
) -> Observable:
    """Share of every parameter or layer in the trace of the NTK of the outputs, for the first samples of the batch.

    Further options are those of ``ft.ntk``, such as ``output=`` or ``rates=``.
    """
    if by not in ("parameter", "layer"):
        raise unknown_name("grouping", str(by), ["parameter", "layer"], "by=")

    def function(model: nn.Module, batch: Any) -> xr.DataArray:
        import xarray as xr

        kernel = ntk(model, inputs(batch, samples), outputs="trace", by=by, **options)
        traces = torch.diagonal(kernel.values, dim1=1, dim2=2).double().sum(1)
        shares = (traces / traces.sum()).cpu().numpy()
        return xr.DataArray(shares, {by: list(kernel.labels or ())}, [by], attrs={"picture": "shares"})

    return Observable("ntk_shares", function)


def fields(readout: ReadoutLike = None) -> Observable:
    """Numbers of the collective fields of a chain of linear layers, by layer: see ``ft.fields(model, x).observe(y)``.

    ``kernel_trace`` tr K_l, ``kernel_drive`` r^T K_l r / r^T r, participation ratios of K, of every K_l and of
    W_l^T W_l, and ``metric_alignment`` of G_l with the gradient, the mean over the inputs that are followed.
    """

    def function(model: nn.Module, batch: Any) -> dict[str, xr.DataArray]:
        seen = collective_fields(model, inputs(batch), readout=readout).observe(targets(batch))
        alignment = seen["metric_alignment"].values
        known = np.isfinite(alignment)
        count = known.sum(1)
        mean = np.where(known, alignment, 0.0).sum(1) / np.where(count, count, np.nan)
        kept = {name: seen[name] for name in _KEPT}
        return kept | {"metric_alignment": seen["metric_alignment"].isel(followed=0).copy(data=mean)}

    return Observable("fields", function)


def global_ntk_rank(accuracy: float = 0.02, seed: Seed = 0, **options: Any) -> Observable:
    """Effective ranks tr(A)^2 / tr(A^2) of NTK_S and of its temporal and spatial reductions (15), with errors.

    ``accuracy`` is their relative standard error; further options are those of ``ft.global_ntk``: ``states=``, ...
    """

    def function(model: nn.Module, batch: Any) -> dict[str, xr.DataArray]:
        kernel = global_ntk(model, inputs(batch), **options)
        ranks = [
            kernel.effective_rank(accuracy=accuracy, seed=seed),
            kernel.temporal(accuracy=accuracy, seed=seed).rank,
            kernel.spatial(accuracy=accuracy, seed=seed).rank,
        ]
        return {
            "": _by("view", _VIEWS, [rank.value for rank in ranks]),
            "error": _by("view", _VIEWS, [rank.standard_error for rank in ranks]),
        }

    return Observable("global_ntk_rank", function)


def core_cosine(accuracy: float = 0.02, seed: Seed = 0, **options: Any) -> Observable:
    """Cosine of NTK_S with the concatenated core V V* (x) I, with its error."""

    def function(model: nn.Module, batch: Any) -> Estimate:
        kernel = global_ntk(model, inputs(batch), **options)
        found: Estimate = kernel.cosine(kernel.concatenated_core, accuracy=accuracy, seed=seed)
        return found

    return Observable("core_cosine", function)


def mode_alignment(
    modes: int = 3,
    accuracy: float = 0.02,
    seed: Seed = 0,
    *,
    components: Any = "target",
    mask: Any = None,
    **options: Any,
) -> Observable:
    """How NTK_S treats the leading modes of the target: cosine of u and A u, relative Rayleigh quotient, its error.

    ``components`` and ``mask`` are those of ``target_modes``: with ``"trials"``, ``modes`` are of all components.

    Through the model's linear readout where it has one, else by the temporal kernel. ``rayleigh`` is 1 for a random
    direction, ``cosine`` is 1 for an eigenvector; nan where the target has fewer modes.
    """
    modes = whole_number("modes", modes)

    def function(model: nn.Module, batch: Any) -> dict[str, xr.DataArray]:
        x = inputs(batch)
        kernel = global_ntk(model, x, **options)
        readout = find_readout(model, x, kernel)
        target = placed_target(targets(batch), places_of(kernel.domain, "mode_alignment"), readout)
        weight = None if readout is None else readout.weight
        asked: dict[str, Any] = {"modes": modes, "accuracy": accuracy, "seed": seed, "components": components}
        if mask is not None:
            asked["mask"] = placed_mask(mask, tuple(targets(batch).shape), target)
        found = kernel.alignment(target, weight, **asked)
        return {
            "": _modes(found.cosine, modes),
            "rayleigh": _modes(found.rayleigh, modes),
            "rayleigh_error": _modes(found.standard_error, modes),
        }

    return Observable("mode_alignment", function)


def lyapunov(count: int = 5, **options: Any) -> Observable:
    """The largest Lyapunov exponents along the batch, with their errors; options of ``ft.lyapunov``."""
    count = whole_number("count", count)

    def function(model: nn.Module, batch: Any) -> dict[str, xr.DataArray]:
        seen = dynamics.lyapunov(model, inputs(batch), count=count, **options)
        places = range(1, len(seen.values) + 1)
        return {
            "": _by("exponent", places, seen.values),
            "error": _by("exponent", places, seen.standard_error),
        }

    return Observable("lyapunov", function)


def participation_ratio(**options: Any) -> Observable:
    """How many directions the hidden states use, with its error; options of ``ft.participation_ratio``."""

    def function(model: nn.Module, batch: Any) -> dict[str, float]:
        seen = dynamics.participation_ratio(model, inputs(batch), **options)
        return {"": seen.value, "error": seen.standard_error}

    return Observable("participation_ratio", function)


def spectral_radius(draws: int = 16, **options: Any) -> Observable:
    """Of every recurrent weight, and the mean over Jacobians of steps; options of ``ft.spectral_radius``."""

    def function(model: nn.Module, batch: Any) -> dict[str, Any]:
        seen = dynamics.spectral_radius(model, inputs(batch), draws=draws, **options)
        jacobian = {"": seen.jacobian, "error": seen.jacobian_error}
        weights = {"weights": _by("weight", seen.weights, [*seen.weights.values()])} if seen.weights else {}
        return jacobian | weights

    return Observable("spectral_radius", function)


def fixed_points(starts: int = 30, **options: Any) -> Observable:
    """How many fixed, stable and slow points the states of the batch lead to; options of ``ft.fixed_points``."""

    def function(model: nn.Module, batch: Any) -> xr.DataArray:
        seen = dynamics.fixed_points(model, trials=inputs(batch), starts=starts, **options)
        counts = [int(seen.fixed.sum()), int(seen.stable.sum()), int((~seen.fixed).sum())]
        return _by("kind", ["fixed", "stable", "slow"], counts)

    return Observable("fixed_points", function)


def _modes(values: NDArray[np.float64], count: int) -> xr.DataArray:
    padded = np.full(count, np.nan)
    padded[: len(values)] = values[:count]
    return _by("target_mode", range(1, count + 1), padded)


def _by(axis: str, labels: Any, values: Any) -> xr.DataArray:
    import xarray as xr

    return xr.DataArray(np.asarray(values, dtype=np.float64), {axis: list(labels)}, [axis])


for _make in (
    loss,
    gradient_norm,
    learning_rate,
    weight_spectra,
    ntk_shares,
    fields,
    global_ntk_rank,
    core_cosine,
    mode_alignment,
    lyapunov,
    participation_ratio,
    spectral_radius,
    fixed_points,
):
    add(_make.__name__, _make)
register("imbalance", observe_imbalance, needs=("loss",))
