"""Theory beside measurement: real torch networks against predictions, entry by entry, with standard errors.

``foretrain.compare(mlp, X)`` compares networks at initialisation, ``foretrain.compare(mlp, X_train, Y_train, X_test,
trained=True)`` trained ones, because this package can be called like its function :func:`compare`. Its rooms are

``build``       the torch network and the optimizer groups that the theory speaks of
``ensembles``   many random networks at once
``infinite_width``    NNGP and NTK of any torch module whose hidden channels become infinitely many
``prediction``        predictions of trained networks, of an MLP or of any module by its kernels
``estimators``        the same as estimators of scikit-learn, and kernels for its Gaussian processes
``reinitialised``     the same measured: a module drawn again and again, at several widths
``ensemble_statistics``  what such an ensemble has in common, and its limit
``initial``     networks at initialisation: kernel, vertex, NTK and its differentials, beside the flow
``trained``     ensembles that are really trained, beside the prediction for their outputs
``comparison``  what every comparison holds; it rests on ``judging``: several widths, their limit, scores, a verdict
``effective_kernel``  the tangent kernel after real training beside its prediction at initialisation
``plateau``     how long a real network is stuck at small weights, why, and the rescaling that removes it
``task``        data and loss as a torch model takes them

Importing this package does not import torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, overload

from numpy.typing import ArrayLike

from foretrain.support.callable_room import CallableRoom, Function
from foretrain.support.errors import InputError, unknown_name
from foretrain.theory.architecture import MLP

if TYPE_CHECKING:
    from torch import nn

    from foretrain.compare import (
        build,
        comparison,
        effective_kernel,
        ensemble_statistics,
        ensembles,
        infinite_width,
        initial,
        judging,
        plateau,
        prediction,
        reinitialised,
        task,
        trained,
    )
    from foretrain.compare.comparison import Comparison
    from foretrain.compare.infinite_width.beside import WidthComparison
    from foretrain.compare.trained import FiniteComparison, TrainedComparison
    from foretrain.compare.trained.finite_goals import FiniteAlgorithm
    from foretrain.compare.trained.training import Algorithm
    from foretrain.support.seeds import Seed
    from foretrain.theory.prediction.predict import Learner, LossName

__all__ = [
    "Comparison",
    "build",
    "compare",
    "comparison",
    "effective_kernel",
    "ensemble_statistics",
    "ensembles",
    "infinite_width",
    "initial",
    "judging",
    "plateau",
    "prediction",
    "reinitialised",
    "task",
    "trained",
]


@overload
def compare(
    mlp: MLP,
    X: ArrayLike,
    observables: Sequence[str] | None = None,
    draws: int = 20_000,
    *,
    trained: Literal[False] = False,
    widths: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    method: str = "auto",
    estimator: str = "metric",
    seed: Seed = 0,
) -> Comparison: ...


@overload
def compare(
    make: Callable[[int], nn.Module],
    x: Any,
    /,
    *,
    draws: int = 320,
    widths: Sequence[int] | None = None,
    init: Any = "module",
    rates: Any = "ntk",
    seed: Seed = 0,
) -> WidthComparison: ...


@overload
def compare(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    *,
    trained: Literal[True],
    regime: Literal["infinite"] = "infinite",
    learner: Learner = "gradient_descent",
    algorithm: Algorithm = "gradient_descent",
    eta: float | None = None,
    time: float | None = None,
    loss: LossName = "squared_error",
    label_smoothing: float | None = None,
    noise: float = 0.0,
    widths: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    draws: int | Sequence[int] = 400,
    seed: Seed = 0,
) -> TrainedComparison: ...


@overload
def compare(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    *,
    trained: Literal[True],
    regime: Literal["finite"],
    learner: Learner = "gradient_descent",
    algorithm: FiniteAlgorithm = "gradient_descent",
    eta: float | None = None,
    noise: float = 0.0,
    widths: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    draws: int | Sequence[int] | None = None,
    seed: Seed = 0,
) -> FiniteComparison: ...


def compare(
    mlp: Any,
    *data: Any,
    trained: bool = False,
    X: ArrayLike | None = None,
    observables: Sequence[str] | None = None,
    method: str | None = None,
    estimator: str | None = None,
    X_train: ArrayLike | None = None,
    Y_train: ArrayLike | None = None,
    X_test: ArrayLike | None = None,
    regime: str | None = None,
    learner: Learner | None = None,
    algorithm: FiniteAlgorithm | None = None,
    eta: float | None = None,
    time: float | None = None,
    loss: LossName | None = None,
    label_smoothing: float | None = None,
    noise: float | None = None,
    widths: Sequence[int] | None = None,
    scales: Sequence[float] | None = None,
    draws: int | Sequence[int] | None = None,
    init: Any = None,
    rates: Any = None,
    seed: Seed = 0,
) -> Comparison | WidthComparison:
    """Networks beside theory: at initialisation, or with ``trained=True`` after training on data.

    ``compare(mlp, X, observables, draws)``
        Random networks: :func:`foretrain.compare.initial.comparison.compare_initial`.
        Options: widths, scales, method, estimator, seed.
    ``compare(make, x)``
        Random networks of any architecture, built by make(width), beside infinite width:
        :func:`foretrain.compare.infinite_width.beside.compare_infinite_width`.
        Options: widths, draws, init, rates, seed.
    ``compare(mlp, X_train, Y_train, X_test, trained=True)``
        Trained ones beside infinite width: :func:`foretrain.compare.trained.comparison.compare_trained`.
        Options: learner, algorithm, eta, time, loss, label_smoothing, noise, widths, scales, draws, seed.
    ``compare(mlp, X_train, Y_train, X_test, trained=True, regime="finite")``
        Trained ones beside order 1/n: :func:`foretrain.compare.trained.finite.compare_trained_finite`.
        Options: learner, algorithm, eta, noise, widths, scales, draws, seed.

    What they mean, and their defaults, are told there; ``widths`` are those of the networks, ``scales`` multipliers
    of the own ones. ``data`` are what the forms name first, which may be given by name too.

    Examples
    --------
    >>> import foretrain as ft
    >>> ft.compare(ft.MLP("relu", depth=3, width=32, C_W=2.0), [[1.0, 0.5], [0.2, -1.0]], draws=1000).agrees
    True
    """
    given = {name: value for name, value in locals().items() if value is not None}
    # What is not given is left to the function of each form, which refuses options that are not its own.
    options = {name: given[name] for name in given if name not in ("mlp", "data", "trained")} | {"seed": seed}
    if callable(mlp) and not isinstance(mlp, MLP):
        from foretrain.compare.infinite_width.beside import compare_infinite_width

        if trained:
            raise InputError("trained networks are compared for an MLP only: leave `trained` out.")
        return compare_infinite_width(mlp, *data, **options)
    if trained is False:
        from foretrain.compare.initial import compare_initial

        return compare_initial(mlp, *data, **options)
    if trained is not True:
        raise InputError(f"`trained` is {trained!r}: give True or False.")
    if len(data) + sum(name in options for name in ("X_train", "Y_train", "X_test")) < 3:
        raise InputError(
            "trained networks need training inputs, targets and test inputs: call compare(mlp, X_train, Y_train, "
            "X_test, `trained=True`)."
        )
    regime = options.pop("regime", "infinite")
    if regime not in ("infinite", "finite"):
        raise unknown_name("`regime`", str(regime), ("infinite", "finite"))
    from foretrain.compare.trained import compare_trained, compare_trained_finite

    return (compare_trained_finite if regime == "finite" else compare_trained)(mlp, *data, **options)


class CompareRoom(CallableRoom[Function]):
    """This package: called, it is :func:`compare`."""

    if TYPE_CHECKING:
        from foretrain.compare.comparison import Comparison


def __getattr__(name: str) -> Any:
    if name == "Comparison":
        return import_module(f"{__name__}.comparison").Comparison
    if name in __all__:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__


sys.modules[__name__].__class__ = CompareRoom
