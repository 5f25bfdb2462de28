"""Really trained networks beside the prediction of chapter ∞: what finite width does to them, times n.

Networks of several widths are trained to the end, by gradient descent at two rates and by the two-step algorithm. The
part of their mean output that comes from the fluctuations of the tangent kernel, the part that comes from its change
while they learn, and that change itself must extrapolate to the coefficients of 1/n. At order 1/n the end of training
depends on the algorithm: the same networks end elsewhere, by as much as predicted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.effective_theory.finite_width_training.drawing import draw
from foretrain.experiments.effective_theory.finite_width_training.table import table, verdict
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Scale
from foretrain.support.progress import track
from foretrain.support.seeds import Seed, spawn
from foretrain.theory.architecture import MLP

if TYPE_CHECKING:
    import xarray

    from foretrain.compare.trained.finite.comparison import FiniteComparison
    from foretrain.compare.trained.finite.goal import FiniteAlgorithm

Array = NDArray[np.float64]

_RATE = 1.2
_ANGLES = np.pi / 3 * np.arange(6) + 0.3
_RADII = 1.6 * np.array([1.0, 1.15, 0.85, 1.1, 0.9, 1.2])


@dataclass(frozen=True, eq=False)
class Data:
    """What is learned, and where it is asked."""

    X_train: Array
    Y_train: Array
    X_test: Array


TWO_POINTS = Data(np.array([(-0.1, -0.7), (2.1, 0.25)]), np.array([[-0.3], [1.6]]), np.array([(-1.2, -0.95)]))
TWO_OUTPUTS = Data(TWO_POINTS.X_train, np.array([(-0.3, 0.8), (1.6, -0.5)]), TWO_POINTS.X_test)
SIX_POINTS = Data(
    np.stack([_RADII * np.cos(_ANGLES), _RADII * np.sin(_ANGLES)], axis=1),
    np.array([0.8, -0.6, 0.3, -0.9, 0.5, -0.2])[:, None],
    np.array([(0.5, 0.5), (-1.0, 0.4)]),
)


@dataclass(frozen=True, eq=False)
class Case:
    """Networks, data and an algorithm; ``rate`` is eta times the largest eigenvalue of Theta."""

    activation: str
    depth: int
    data: Data
    algorithm: FiniteAlgorithm
    rate: float | None = None
    note: str = ""

    @property
    def label(self) -> str:
        """For example ``sin, L = 2, descent at 1.2``."""
        how = "two-step" if self.algorithm == "two_step" else f"descent at {self.rate:g}"
        return f"{self.activation}, L = {self.depth}{self.note}, {how}"

    @property
    def networks(self) -> str:
        """Cases that share it train the same networks."""
        small = "" if self.rate in (None, _RATE) else f" {self.rate:g}"
        return f"{self.activation} {self.depth}{self.note}{small}"

    def mlp(self, width: int) -> MLP:
        """The network of table E of the reference."""
        outputs = self.data.Y_train.shape[1]
        sizes: dict[str, Any] = {"depth": self.depth, "width": width, "n_in": 2, "n_out": outputs}
        return MLP(self.activation, C_b=0.1, C_W=1.3, lambda_b=0.5, lambda_W=1.0, **sizes)


SIN, SMALL_STEPS, SIN_LEAP = (
    Case("sin", 2, TWO_POINTS, "gradient_descent", _RATE),
    Case("sin", 2, TWO_POINTS, "gradient_descent", 0.2),
    Case("sin", 2, TWO_POINTS, "two_step"),
)
TANH, TANH_LEAP = (
    Case("tanh", 2, TWO_POINTS, "gradient_descent", _RATE),
    Case("tanh", 2, TWO_POINTS, "two_step"),
)
TWO = Case("sin", 2, TWO_OUTPUTS, "gradient_descent", _RATE, ", two outputs")
SIX = Case("sin", 2, SIX_POINTS, "gradient_descent", _RATE, ", six points")
DEEP_SIN, DEEP_LEAP = (
    Case("sin", 3, TWO_POINTS, "gradient_descent", _RATE),
    Case("sin", 3, TWO_POINTS, "two_step"),
)
DEEP_TANH = Case("tanh", 3, TWO_POINTS, "gradient_descent", _RATE)
CASES = (SIN, SMALL_STEPS, SIN_LEAP, TANH, TANH_LEAP, TWO, SIX, DEEP_SIN, DEEP_LEAP, DEEP_TANH)

Draws = dict[int, int]  # networks by width


@dataclass(frozen=True)
class Plan:
    """Networks by width: of sin and of tanh with one hidden layer, at small steps, on six points, and deeper ones.

    The narrowest are those from which on a quadratic in 1/n reaches the limit: tanh bends more than sin.
    """

    sin: Draws
    tanh: Draws
    small_steps: Draws
    six: Draws
    deep: Draws
    deep_tanh: Draws

    def draws(self, case: Case) -> Draws:
        """How many networks of which widths."""
        if case.depth > 2:
            return self.deep_tanh if case.activation == "tanh" else self.deep
        special = {SMALL_STEPS.label: self.small_steps, SIX.label: self.six}
        return special.get(case.label, self.tanh if case.activation == "tanh" else self.sin)


PLANS: Mapping[Scale, Plan] = {
    Scale.QUICK: Plan(
        sin={64: 12_000, 128: 12_000, 256: 10_000, 1024: 8_000},
        tanh={128: 8_000, 256: 6_000, 512: 5_000, 1024: 6_000},
        small_steps={64: 4_000, 128: 4_000, 256: 3_000, 1024: 1_200},
        six={64: 5_000, 128: 5_000, 256: 4_000, 512: 2_400},
        deep={64: 8_000, 128: 6_000, 256: 2_400},
        deep_tanh={64: 6_000, 128: 4_000, 256: 2_400},
    ),
    Scale.PAPER: Plan(
        sin=dict.fromkeys((64, 128, 256, 1024), 60_000),
        tanh=dict.fromkeys((128, 256, 512, 1024), 60_000),
        small_steps={64: 30_000, 128: 30_000, 256: 30_000, 1024: 12_000},
        six={64: 40_000, 128: 40_000, 256: 40_000, 512: 20_000},
        deep={64: 60_000, 128: 60_000, 256: 24_000, 512: 8_000},
        deep_tanh={128: 60_000, 256: 24_000, 512: 8_000, 768: 4_000},
    ),
}


def finite_width_training(plan: Plan, seed: int, parts: Parts) -> Result:
    """n times what finite width does to trained networks, case by case, against theory."""
    names = list(dict.fromkeys(case.networks for case in CASES))
    seeds = dict(zip(names, spawn(seed, len(names)), strict=True))
    found = {
        case.label: compared(case, plan.draws(case), seeds[case.networks], parts)
        for case in track(CASES, "cases")
    }
    data = _dataset(found)
    rows = table(data)
    return Result(verdict(rows), rows, data, partial(draw, data))


def compared(case: Case, draws: Draws, seed: Seed, parts: Parts) -> FiniteComparison:
    """The comparison of one case, whose widths are kept one by one."""
    from foretrain.compare.trained.finite import compare_trained_finite

    def kept(name: str, compute: Callable[[], xarray.Dataset]) -> xarray.Dataset:
        return parts.get(f"{case.label} {name}", compute)

    mlp = case.mlp(min(draws))
    own = case.data
    return compare_trained_finite(
        mlp,
        own.X_train,
        own.Y_train,
        own.X_test,
        algorithm=case.algorithm,
        eta=_eta(case, mlp),
        widths=tuple(draws),
        draws=tuple(draws.values()),
        seed=seed,
        keeper=kept,
    )


def _eta(case: Case, mlp: MLP) -> float | None:
    if case.rate is None:
        return None
    from foretrain.theory.prediction.infinite_width import output_kernels

    return case.rate / float(np.linalg.eigvalsh(output_kernels(mlp, case.data.X_train).Theta_train)[-1])


def _dataset(found: dict[str, FiniteComparison]) -> xarray.Dataset:
    """All comparisons along ``case``; widths and entries that a case does not have are nan."""
    import xarray

    kept = (
        "theory",
        "limit",
        "standard_error",
        "z",
        "measured",
        "measured_error",
        "score",
        "batch_value",
        "steps",
    )
    parts = []
    for comparison in found.values():
        own = comparison.to_dataset()
        numbers = {name: own[name].reset_coords(drop=True) for name in kept}
        numbers["draws"] = xarray.DataArray(own["draws"].values.astype(float), dims="width")
        judged = {name: own.attrs[name] for name in ("rms_z", "largest_z", "bound", "agrees")}
        judged["rms_bound"] = comparison.judgement.rms_bound
        parts.append(xarray.Dataset(numbers).assign(judged))
    together = xarray.concat(parts, xarray.Variable("case", list(found)), join="outer", combine_attrs="drop")
    return together.assign(_printed()).sortby("width")


def _printed() -> dict[str, Any]:
    """n times two parts for ``SIN`` by the formulas as they are printed."""
    from foretrain.theory.prediction.finite_width import FiniteWidth, terms_as_printed

    mlp, own = SIN.mlp(1024), SIN.data
    ensemble = FiniteWidth.of(mlp, own.X_train, own.Y_train, own.X_test, spread="none")
    terms = terms_as_printed(ensemble, SIN.algorithm, _eta(SIN, mlp))
    n = {name: 1024 * float(term.values[0, 0]) for name, term in terms.items()}
    return {
        "printed_interaction": n["dntk"] + n["ddntk_1"] + n["ddntk_2"],
        "printed_ntk_variance": n["ntk_variance"],
    }
