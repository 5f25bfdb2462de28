"""``foretrain.compare``: networks at initialisation, or trained ones, beside what the theory says about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, overload

from numpy.typing import ArrayLike

from foretrain.support.errors import InputError, unknown_name

if TYPE_CHECKING:
    from foretrain.compare.comparison import Comparison
    from foretrain.compare.trained.comparison import TrainedComparison
    from foretrain.compare.trained.finite.comparison import FiniteComparison
    from foretrain.compare.trained.finite.goal import FiniteAlgorithm
    from foretrain.compare.trained.training import Algorithm
    from foretrain.support.seeds import Seed
    from foretrain.theory.architecture import MLP
    from foretrain.theory.prediction.predict import Learner, LossName


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


def compare(mlp: MLP, *arguments: Any, trained: bool = False, **options: Any) -> Comparison:
    """Networks beside theory: at initialisation, or with ``trained=True`` after training on data.

    ``compare(mlp, X, observables, draws)``
        Random networks: :func:`foretrain.compare.initial.entry.compare_initial`.
        Options: widths, scales, method, estimator, seed.
    ``compare(mlp, X_train, Y_train, X_test, trained=True)``
        Trained ones beside infinite width: :func:`foretrain.compare.trained.comparison.compare_trained`.
        Options: learner, algorithm, eta, time, loss, label_smoothing, noise, widths, scales, draws, seed.
    ``compare(mlp, X_train, Y_train, X_test, trained=True, regime="finite")``
        Trained ones beside order 1/n: :func:`foretrain.compare.trained.finite.entry.compare_trained_finite`.
        Options: learner, algorithm, eta, noise, widths, scales, draws, seed.

    What they mean is told there; ``widths`` are those of the networks, ``scales`` multipliers of the own ones.

    Examples
    --------
    >>> import foretrain as ft
    >>> ft.compare(ft.MLP("relu", depth=3, width=32, C_W=2.0), [[1.0, 0.5], [0.2, -1.0]], draws=1000).agrees
    True
    """
    if trained is True:
        return _compare_trained(mlp, *arguments, **options)
    if trained is not False:
        raise InputError(f"`trained` is {trained!r}: give True or False.")
    from foretrain.compare.initial import compare_initial

    return compare_initial(mlp, *arguments, **options)


def _compare_trained(mlp: MLP, *arguments: Any, regime: str = "infinite", **options: Any) -> Comparison:
    data = ("X_train", "Y_train", "X_test")
    if len(arguments) + sum(name in options for name in data) < len(data):
        raise InputError(
            "trained networks need training inputs, targets and test inputs: call compare(mlp, X_train, Y_train, "
            "X_test, `trained=True`)."
        )
    if regime == "infinite":
        from foretrain.compare.trained.comparison import compare_trained

        return compare_trained(mlp, *arguments, **options)
    if regime == "finite":
        from foretrain.compare.trained.finite import compare_trained_finite

        return compare_trained_finite(mlp, *arguments, **options)
    raise unknown_name("`regime`", str(regime), ("infinite", "finite"))
