"""Networks of finite width on given training inputs: every prediction from tensors that are computed once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from foretrain.support.answers import Result
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed
from foretrain.theory.architecture import MLP
from foretrain.theory.arguments import check_targets
from foretrain.theory.prediction.finite_width.changes import Changes
from foretrain.theory.prediction.finite_width.checks import (
    check_finite,
    check_integrals,
    check_reach,
    check_sampling,
    expansion_of,
)
from foretrain.theory.prediction.finite_width.mean import mean_terms
from foretrain.theory.prediction.finite_width.plan import Plan, plan_of
from foretrain.theory.prediction.finite_width.projectors import Algorithm, require_algorithm
from foretrain.theory.prediction.finite_width.result import (
    FinitePrediction,
    labelled_terms,
)
from foretrain.theory.prediction.finite_width.sampling import sampled_terms
from foretrain.theory.prediction.finite_width.store import Store
from foretrain.theory.prediction.finite_width.tensors import require_resources
from foretrain.theory.prediction.infinite_width.gradient_descent import LearningRates, Solver, trained_spread
from foretrain.theory.prediction.kernels import Spread, check_spread
from foretrain.theory.prediction.result import labelled_mean, labelled_spread

Array = NDArray[np.float64]

TOLERANCE = 1e-10


@dataclass(frozen=True, eq=False, repr=False)
class FiniteWidth(Result):
    """An ensemble on given inputs: ask it for as many algorithms, rates, times, targets and widths as you like.

    Examples
    --------
    >>> import foretrain as ft
    >>> mlp = ft.MLP("sin", depth=2, width=100, C_b=0.1, C_W=1.3, lambda_b=0.5)
    >>> ensemble = FiniteWidth.of(mlp, [[-0.1, -0.7], [2.1, 0.25]], [-0.3, 1.6], [[-1.2, -0.95]])
    >>> ensemble.predict("flow").terms["ddntk_2"].values.round(6)
    array([[0.007018]])
    """

    store: Store = field(repr=False)
    targets: Array  # (training, outputs)

    @classmethod
    def of(
        cls,
        mlp: MLP,
        X_train: ArrayLike,
        Y_train: ArrayLike,
        X_test: ArrayLike,
        *,
        spread: Spread = "covariance",
        tolerance: float = TOLERANCE,
    ) -> FiniteWidth:
        """From a network, training inputs and targets, and test inputs."""
        store = Store.of(mlp, X_train, X_test, check_spread(spread), tolerance)
        return cls(store, check_targets(Y_train, len(store.train), mlp.n_out))

    @property
    def rates(self) -> LearningRates:
        """Which learning rates converge, and the best constant one."""
        return self.store.modes.rates

    def with_targets(self, Y_train: ArrayLike) -> FiniteWidth:
        """The same inputs with other targets."""
        return replace(self, targets=check_targets(Y_train, *self.targets.shape))

    def with_width(self, width: int | Sequence[int]) -> FiniteWidth:
        """The same network with other hidden widths, whose ratios must stay, since tensors depend on these."""
        mlp = self.store.mlp.replace(width=width)
        old, new = (np.array(network.hidden_widths, dtype=float) for network in (self.store.mlp, mlp))
        if not np.allclose(old * new[:1], new * old[:1], rtol=1e-12):
            raise InputError(
                f"widths {list(mlp.hidden_widths)} are no multiple of {list(self.store.mlp.hidden_widths)}: start "
                "from a network with the new widths."
            )
        return replace(self, store=self.store.rescaled(mlp))

    def predict(
        self,
        algorithm: Algorithm = "gradient_descent",
        eta: float | None = None,
        time: float | None = None,
        *,
        draws: int | None = None,
        seed: Seed = 0,
    ) -> FinitePrediction:
        """The mean on the tests to order 1/n; arguments as in :func:`finite_prediction`."""
        require_algorithm(algorithm)
        if draws is None:
            require_resources(self.store.mlp, len(self.store.train), len(self.store.test))
        plan = plan_of(algorithm, eta, time, self.store.modes.values)
        check_reach(self.store, self.targets)
        fit = self._fit(plan)
        mean = np.asarray(self.store.kernels.Theta_cross @ fit(self.targets))
        terms, error = self._terms(plan, mean, draws, seed)
        expansion = expansion_of(self.store, self.targets, mean, terms)
        covariance, variance = labelled_spread(
            trained_spread(self.store.kernels, fit),
            "covariance over initialisations at infinite width (10.41), without corrections of order 1/n",
        )
        return FinitePrediction(
            mean=labelled_mean(mean + sum(terms.values()), "mean output over initialisations, to order 1/n"),
            covariance=covariance,
            variance=variance,
            statement=f"{self._networks()} {plan.statement}",
            infinite_mean=labelled_mean(mean, "mean output at infinite width (10.40)"),
            terms=labelled_terms(terms),
            expansion=expansion,
            width=self.store.width,
            eta=plan.eta,
            time=plan.time,
            standard_error=None if error is None else labelled_mean(error, "standard error of the mean"),
            rest=Changes(self.store, self.targets, plan),
        )

    def _fit(self, plan: Plan) -> Solver:
        """f(Theta_AA) times columns, with what training has made of an error so far."""
        vectors, done = self.store.modes.vectors, plan.course().mean
        return lambda columns: np.asarray(vectors @ (done[:, None] * (vectors.T @ columns)))

    def _networks(self) -> str:
        widths = self.store.mlp.hidden_widths
        return f"Networks of width {widths[-1]}" if widths else "Networks without hidden layers"

    def _terms(
        self, plan: Plan, mean: Array, draws: int | None, seed: Seed
    ) -> tuple[dict[str, Array], Array | None]:
        """All terms with their 1/n, and the standard error of their sum if they are sampled."""
        width = self.store.width
        if draws is None:
            with np.errstate(over="ignore", invalid="ignore"):
                exact = mean_terms(self.store, self.targets, plan)
            terms = {name: part / width for name, part in exact.items()}
            check_finite(self.targets, terms)
            check_integrals(self.store, self.targets, plan, mean, terms)
            return terms, None
        sampled = sampled_terms(self.store, self.targets, plan, draws, seed)
        terms, error = (
            {name: part / width for name, part in sampled.terms.items()},
            sampled.standard_error / width,
        )
        check_sampling(error, terms)
        return terms, error
