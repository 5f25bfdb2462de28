"""Predictions of networks of finite width: the infinite-width mean and its corrections of order 1/n, by origin.

Tensors of given inputs are computed once, for many algorithms and targets; warnings say where not to trust them.

Three formulas are wrong as they are printed: (∞.162) has the opposite sign; (∞.163) has 2 Z_B where the two orders
of its indices must be added, which differ for unequal eigenvalues; (∞.165) has the index orders of Z_IIB in front
of T and U interchanged. ``terms_as_printed`` keeps them for comparison.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from foretrain.support.answers import Result, labelled
from foretrain.support.arguments import Array
from foretrain.support.errors import InputError
from foretrain.support.seeds import Seed
from foretrain.support.user_warnings import warn_user
from foretrain.theory.architecture import MLP, check_network
from foretrain.theory.arguments import check_targets
from foretrain.theory.finite_width import LARGE
from foretrain.theory.prediction.algorithms import NAMES, LearningRates, Plan, finite_algorithm
from foretrain.theory.prediction.bayes import finite_bayes_prediction
from foretrain.theory.prediction.bayes.posterior import bayes_equivalent_rates
from foretrain.theory.prediction.finite_width.corrections import (
    Changes,
    Store,
    bracket,
    check_kind,
    dntk_of_the_book,
    dntk_weights,
    errors_of,
    interpolation,
    mean_terms,
    on_samples,
    require_resources,
    sampled_terms,
    second_differential_weights,
    variance_weights,
    weights_of,
)
from foretrain.theory.prediction.infinite_width.gradient_descent import trained_spread
from foretrain.theory.prediction.kernels import Spread, check_spread
from foretrain.theory.prediction.predicted_outputs import (
    PredictedOutputs,
    labelled_mean,
    labelled_spread,
    labelled_tests,
)

if TYPE_CHECKING:
    import xarray as xr


_MEANINGS = {
    "ntk_mean": "1/n shift of the mean tangent kernel",
    "ntk_variance": "fluctuations of the tangent kernel (∞.162)",
    "dntk": "first differential of the tangent kernel (∞.163)",
    "ddntk_1": "second differential of the first kind (∞.164)",
    "ddntk_2": "second differential of the second kind (∞.165)",
}


@dataclass(frozen=True, repr=False)
class Expansion(Result):
    """How small the corrections are; where these numbers are not, neither is what the expansion leaves out.

    ``ratios`` are A, B, P, Q over n Theta^2 and R, S, T, U times (K + y^2) over n Theta^3 (∞.170), means over the
    training inputs; ``terms`` is the sum of the sizes of all terms and ``correction`` the size of their sum, both
    relative to the infinite-width mean.
    """

    ratios: Mapping[str, float]
    terms: float
    correction: float

    @property
    def largest(self) -> float:
        """The largest of all."""
        return max(self.terms, *(abs(ratio) for ratio in self.ratios.values()))


@dataclass(frozen=True, repr=False, eq=False, kw_only=True)
class FinitePrediction(PredictedOutputs):
    """The mean over initialisations of the outputs of trained networks, to order 1/n, and where it comes from.

    ``mean``, ``infinite_mean`` and each of ``terms`` have the dimensions (test, output), with the 1/n inside.
    ``covariance`` and ``variance`` are those at infinite width, ``standard_error`` that of a sampled mean, else None.
    """

    infinite_mean: xr.DataArray
    terms: dict[str, xr.DataArray]
    expansion: Expansion
    width: int
    eta: float | None
    time: float | None
    standard_error: xr.DataArray | None
    rest: Changes  # computes what is left on demand

    @cached_property
    def ntk_change(self) -> xr.DataArray:
        """Mean change of the tangent kernel by training, with its 1/n: (sample_1, sample_2, output_1, output_2).

        Training samples come first, then tests; computed when first asked for, for all pairs of samples.
        """
        return self.rest.ntk_change()

    @cached_property
    def covariance_correction(self) -> xr.Dataset:
        """All of order 1/n in the covariance at the end of training: its ``total`` and five parts, with their 1/n.

        (test_1, test_2, output_1, output_2), since outputs are no longer independent; computed when first asked for.
        """
        return self.rest.covariance_correction()

    def _parts(self) -> tuple[dict[str, xr.DataArray], dict[str, Any]]:
        # What is computed on demand only, as far as it was: saving must not take hours.
        known = self.__dict__
        corrections = known.get("covariance_correction", {})
        arrays = {f"term_{name}": term for name, term in self.terms.items()}
        arrays |= {f"covariance_correction_{name}": part for name, part in corrections.items()}
        arrays |= {"ntk_change": known["ntk_change"]} if "ntk_change" in known else {}
        sizes = {"terms_over_mean": self.expansion.terms, "correction_over_mean": self.expansion.correction}
        return arrays, sizes | {f"ratio_{name}": value for name, value in self.expansion.ratios.items()}

    def notes(self) -> list[str]:
        """How small the corrections are."""
        found = [
            f"Terms together are {self.expansion.terms:.2g} of the mean; about the square of that is left out."
        ]
        if self.standard_error is not None:
            found.append(
                f"They are sampled, with a standard error of at most {self.standard_error.max().item():.2g}."
            )
        return found


def labelled_terms(terms: Mapping[str, Array]) -> dict[str, xr.DataArray]:
    """Terms (tests, outputs) with names and meanings."""
    return {
        name: labelled_mean(values, f"{_MEANINGS[name]}, with its 1/n").rename(name)
        for name, values in terms.items()
    }


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
        return cls(store, check_targets(Y_train, len(store.train), mlp.n_out, "Y_train"))

    @property
    def rates(self) -> LearningRates:
        """Which learning rates converge, and the best constant one."""
        return self.store.modes.rates

    def with_targets(self, Y_train: ArrayLike) -> FiniteWidth:
        """The same inputs with other targets."""
        inputs, outputs = self.targets.shape
        return replace(self, targets=check_targets(Y_train, inputs, outputs, "Y_train"))

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
        algorithm: Any = "gradient_descent",
        *,
        draws: int | None = None,
        seed: Seed = 0,
    ) -> FinitePrediction:
        """The mean on the tests to order 1/n; arguments as in :func:`finite_prediction`."""
        way = finite_algorithm(algorithm)
        if draws is None:
            require_resources(self.store.mlp, len(self.store.train), len(self.store.test))
        plan = way.plan(self.store.modes.values)
        check_reach(self.store, self.targets)
        # f(Theta_AA) times columns, with what training has made of an error so far.
        fit = partial(self.store.modes.apply, plan.course().mean)
        mean = np.asarray(self.store.kernels.Theta_cross @ fit(self.targets))
        terms, error = self._terms(plan, mean, draws, seed)
        expansion = expansion_of(self.store, self.targets, mean, terms)
        covariance, variance = labelled_spread(
            trained_spread(self.store.kernels, fit),
            "covariance over initialisations at infinite width (10.41), without corrections of order 1/n",
        )
        widths = self.store.mlp.hidden_widths
        networks = f"Networks of width {widths[-1]}" if widths else "Networks without hidden layers"
        return FinitePrediction(
            mean=labelled_mean(mean + sum(terms.values()), "mean output over initialisations, to order 1/n"),
            covariance=covariance,
            variance=variance,
            statement=f"{networks} {plan.statement}",
            infinite_mean=labelled_mean(mean, "mean output at infinite width (10.40)"),
            terms=labelled_terms(terms),
            expansion=expansion,
            width=self.store.width,
            eta=plan.eta,
            time=plan.time,
            standard_error=None if error is None else labelled_mean(error, "standard error of the mean"),
            rest=Changes(self.store, self.targets, plan),
        )

    def _terms(
        self, plan: Plan, mean: Array, draws: int | None, seed: Seed
    ) -> tuple[dict[str, Array], Array | None]:
        """All terms with their 1/n, and the standard error of their sum if they are sampled."""
        width = self.store.width
        if draws is None:
            with np.errstate(over="ignore", invalid="ignore"):
                exact = mean_terms(self.store, self.targets, plan)
            terms = {name: part / width for name, part in exact.items()}
            if not all(np.isfinite(term).all() for term in terms.values()):  # third powers of targets
                raise InputError(
                    f"targets up to {np.abs(self.targets).max():.1g} make corrections that are no finite numbers: "
                    "rescale them."
                )
            check_integrals(self.store, self.targets, plan, mean, terms)
            return terms, None
        sampled = sampled_terms(self.store, self.targets, plan, draws, seed)
        terms = {name: part / width for name, part in sampled.terms.items()}
        error = sampled.standard_error / width
        noise, whole = float(np.abs(error).max()), float(np.abs(sum(terms.values())).max())
        if noise > whole / 2:
            warn_user(
                f"the standard error {noise:.2g} of the sampled correction is not small beside the correction "
                f"{whole:.2g}: give more `draws=`, or leave `draws` out where training inputs are few."
            )
        return terms, error


def finite_prediction(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    algorithm: Any = "gradient_descent",
    *,
    spread: Spread = "covariance",
    seed: Seed = 0,
    draws: int | None = None,
    tolerance: float = TOLERANCE,
) -> FinitePrediction:
    """The mean over trained networks of finite width, to order 1/n, split by origin (∞.160)-(∞.165).

    The activation must be smooth, and the network without skip connections. Unlike at infinite width, the end depends
    on the algorithm. For many algorithms, rates or targets on the same inputs use :class:`FiniteWidth`.

    Parameters
    ----------
    algorithm
        ``Descent(eta, steps)``, ``GradientFlow(time)`` or ``TwoStep()``, see
        :mod:`foretrain.theory.prediction.algorithms`; a name alone is the end of training. Or :class:`Projectors` of
        any other algorithm, or a function of the eigenvalues of Theta_AA that returns them.
    spread
        Of the covariance at infinite width: "covariance" of all pairs of test inputs, "variance" of each, or "none".
    draws, seed
        For more training inputs than N^4 entries allow: sums over triples of them are sampled, with a
        ``standard_error``. The work grows with draws times inputs, and the scatter with the number of inputs.
    tolerance
        Of the integrals; 1e-7 is several times faster for activations without closed forms.

    Examples
    --------
    >>> import foretrain as ft
    >>> mlp = ft.MLP("sin", depth=2, width=100, C_b=0.1, C_W=1.3, lambda_b=0.5)
    >>> found = finite_prediction(mlp, [[-0.1, -0.7], [2.1, 0.25]], [-0.3, 1.6], [[-1.2, -0.95]], "two_step")
    >>> {name: round(float(term[0, 0]), 6) for name, term in found.terms.items() if term.any()}
    {'ntk_variance': -0.003186, 'dntk': -0.002313, 'ddntk_1': -0.002552}
    >>> found
    Networks of width 100 to the end of two-step training: 1 test input, 1 output.
    <BLANKLINE>
    Outputs on test inputs
    <BLANKLINE>
    test       mean  infinite width  ± spread
    ----  ---------  --------------  --------
       0  -0.607454       -0.599403  0.540624
    ...
    """
    way = finite_algorithm(algorithm)
    check_network(mlp)
    check_kind(mlp)
    if draws is None:  # before the kernels of inputs that are too many
        require_resources(
            mlp, len(mlp.check_inputs(X_train, "X_train")), len(mlp.check_inputs(X_test, "X_test"))
        )
    ensemble = FiniteWidth.of(mlp, X_train, Y_train, X_test, spread=spread, tolerance=tolerance)
    return ensemble.predict(way, draws=draws, seed=seed)


_DOUBTFUL = 0.05  # of all terms together
_NEGLIGIBLE = 1e-6  # of the mean


def expansion_of(store: Store, targets: Array, mean: Array, terms: dict[str, Array]) -> Expansion:
    """Ratios (∞.170) at the training inputs, and terms relative to the mean they correct; warns if they are large."""
    K, Theta = np.diagonal(store.kernels.K_train), np.diagonal(store.kernels.Theta_train)
    size, moving = K + np.mean(targets**2), Theta > 0
    ratios = {}
    for name, values in store.alone.items():
        scale = Theta**2 if name in "ABPQ" else Theta**3 / np.where(size > 0, size, 1.0)
        ratios[name] = float(np.mean(values[moving] / scale[moving])) / store.width
    whole = float(np.linalg.norm(mean)) or np.inf
    total = sum(float(np.linalg.norm(term)) for term in terms.values())
    found = Expansion(ratios, total / whole, float(np.linalg.norm(sum(terms.values()))) / whole)
    if found.largest > LARGE:
        warn_user(
            f"the corrections of order 1/n are up to {found.largest:.2g} of what they correct, which is not small, "
            "so that the prediction may be far off: take wider or shallower networks, smaller targets or smaller "
            "learning rates of the hidden layers."
        )
    return found


def check_reach(store: Store, targets: Array) -> None:
    """Warn of targets along directions in which no network moves, which are left as they are."""
    basis = store.modes.vectors
    missed = float(np.abs(targets - basis @ (basis.T @ targets)).max())
    if missed > _NEGLIGIBLE * float(np.abs(targets).max()):
        warn_user(
            f"training inputs that no network can tell apart have different targets, which are missed by up to "
            f"{missed:.2g}: the prediction is that for the nearest targets that can be learned."
        )


def check_integrals(store: Store, targets: Array, plan: Plan, mean: Array, terms: dict[str, Array]) -> None:
    """Warn where weights are so large, because training inputs are nearly alike, that integrals need more digits."""
    # How much independent errors of all tensor entries, of the size of the tolerance, move the mean.
    back = float(np.linalg.norm(interpolation(store) @ store.modes.vectors.T, axis=1).max(initial=0))
    squares = 0.0
    for weights in weights_of(plan.course(), errors_of(store, targets)).values():
        for entry, cube in on_samples(weights, store.modes.vectors).items():
            size = np.abs(store.tests[entry]).max(initial=0) + back * np.abs(store.training[entry]).max()
            squares += (store.tolerance * size * float(np.sqrt((cube**2).sum(axis=(1, 2, 3))).max())) ** 2
    doubt = float(np.sqrt(squares)) / store.width
    total = sum(np.abs(term).max() for term in terms.values())
    if doubt > max(_DOUBTFUL * total, _NEGLIGIBLE * float(np.abs(mean).max())):
        modes = store.modes.values
        warn_user(
            f"integrals with tolerance {store.tolerance:.1g} leave the correction uncertain by about {doubt:.1g} "
            f"(condition number of the tangent kernel {modes[-1] / modes[0]:.2g}): leave out training inputs that "
            "are nearly alike, or lower `tolerance=`."
        )


_USUAL = {name: name for name in NAMES}


def compare_algorithms(ensemble: FiniteWidth, algorithms: Mapping[str, Any] = _USUAL) -> xr.Dataset:
    """Mean and terms (algorithm, test, output) of each algorithm, beside infinite width.

    ``algorithms`` gives a label to every algorithm, a name or a value such as ``Descent(eta)``.

    Examples
    --------
    >>> import foretrain as ft
    >>> from foretrain.theory.prediction.algorithms import Descent
    >>> mlp = ft.MLP("sin", depth=2, width=100, C_b=0.1, C_W=1.3, lambda_b=0.5)
    >>> ensemble = FiniteWidth.of(mlp, [[-0.1, -0.7], [2.1, 0.25]], [-0.3, 1.6], [[-1.2, -0.95]])
    >>> found = compare_algorithms(ensemble, {"slow": Descent(0.01), "flow": "flow"})
    >>> found["ddntk_2"].squeeze().values.round(4)
    array([0.0069, 0.007 ])
    """
    import xarray as xr

    if not algorithms:
        raise InputError("algorithms is empty: name at least one, such as {'flow': 'flow'}.")
    rows = []
    for algorithm in algorithms.values():
        found = ensemble.predict(algorithm)
        rows.append(xr.Dataset({"mean": found.mean, "infinite_mean": found.infinite_mean, **found.terms}))
    labels = xr.DataArray(list(algorithms), dims="algorithm", name="algorithm")
    return xr.concat(rows, labels)


def descent_and_bayes(
    mlp: MLP,
    X_train: ArrayLike,
    Y_train: ArrayLike,
    X_test: ArrayLike,
    algorithm: Any = "gradient_descent",
) -> xr.Dataset:
    """Means (learner, test, output) of gradient descent and exact inference, which part at order 1/n (∞.173).

    ``all_layers`` are trained by the ``algorithm`` at the network's rates, to its end; ``last_layer`` alone at rates
    at which infinite networks answer like the posterior; ``bayes`` is the posterior mean to order 1/n (6.88).
    """
    last = bayes_equivalent_rates(mlp)
    data = (X_train, Y_train, X_test)
    found: dict[str, Any] = {
        "all_layers": FiniteWidth.of(mlp, *data, spread="none").predict(algorithm),
        "last_layer": FiniteWidth.of(last, *data, spread="none").predict("flow"),
        "bayes": finite_bayes_prediction(mlp, *data, spread="none"),
    }
    dims = ("learner", "test", "output")
    means = np.stack([part.mean.values for part in found.values()])
    infinite = np.stack([part.infinite_mean.values for part in found.values()])
    return labelled(
        {
            "mean": (dims, means, "mean output to order 1/n"),
            "infinite_mean": (dims, infinite, "mean output at infinite width"),
        },
        {"network": repr(mlp)},
        learner=list(found),
    )


def terms_as_printed(ensemble: FiniteWidth, algorithm: Any = "gradient_descent") -> dict[str, xr.DataArray]:
    """The terms at the end of training, with their 1/n, where ntk_variance, dntk and ddntk_2 are as printed."""
    store = ensemble.store
    plan = finite_algorithm(algorithm).plan(store.modes.values)
    errors, course = errors_of(store, ensemble.targets), plan.course()
    Z = course.projectors
    first, second = second_differential_weights(Z.IA, Z.IB, Z.IIA, Z.IIB, errors.cubic())
    second["T", 0], second["U", 0] = second["U", 0], second["T", 0]
    weights = {
        "ntk_variance": variance_weights(-course.variance, errors),
        "dntk": dntk_weights(Z.A, 2 * Z.B, errors),
        "ddntk_1": first,
        "ddntk_2": second,
    }
    return labelled_terms({name: bracket(store, part) / store.width for name, part in weights.items()})


def covariance_part_as_printed(ensemble: FiniteWidth, algorithm: Any = "gradient_descent") -> xr.DataArray:
    """The sum (∞.167) letter by letter, with its 1/n, for the first output: no [..] on the tests, not symmetrised."""
    store = ensemble.store
    plan = finite_algorithm(algorithm).plan(store.modes.values)
    raw = dntk_of_the_book(store, ensemble.targets, plan)
    tests = raw[len(store.train) :, len(store.train) :, 0, 0]
    meaning = (
        "what (∞.167) adds to the covariance of the first output, without projection off the training outputs"
    )
    return labelled_tests("covariance_part", tests / store.width, meaning)
