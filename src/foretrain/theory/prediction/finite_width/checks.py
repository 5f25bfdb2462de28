"""Whether a prediction can be trusted: the expansion in 1/n, the accuracy of integrals, and sampled sums."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from foretrain.support.errors import InputError
from foretrain.support.user_warnings import warn_user
from foretrain.theory.finite_width.expansion import LARGE
from foretrain.theory.prediction.finite_width.mean import errors_of, interpolation
from foretrain.theory.prediction.finite_width.plan import Plan
from foretrain.theory.prediction.finite_width.result import Expansion
from foretrain.theory.prediction.finite_width.store import Store
from foretrain.theory.prediction.finite_width.weights import on_samples, weights_of

Array = NDArray[np.float64]

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


def check_finite(targets: Array, terms: dict[str, Array]) -> None:
    """An error where the third powers of targets exceed all numbers."""
    if not all(np.isfinite(term).all() for term in terms.values()):
        raise InputError(
            f"targets up to {np.abs(targets).max():.1g} make corrections that are no finite numbers: rescale them."
        )


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
    doubt, total = (
        _doubt(store, targets, plan) / store.width,
        sum(np.abs(term).max() for term in terms.values()),
    )
    if doubt > max(_DOUBTFUL * total, _NEGLIGIBLE * float(np.abs(mean).max())):
        modes = store.modes.values
        warn_user(
            f"integrals with tolerance {store.tolerance:.1g} leave the correction uncertain by about {doubt:.1g} "
            f"(condition number of the tangent kernel {modes[-1] / modes[0]:.2g}): leave out training inputs that "
            "are nearly alike, or lower `tolerance=`."
        )


def check_sampling(error: Array, terms: dict[str, Array]) -> None:
    """Warn where sampling has not found the correction."""
    noise, found = float(np.abs(error).max()), float(np.abs(sum(terms.values())).max())
    if noise > found / 2:
        warn_user(
            f"the standard error {noise:.2g} of the sampled correction is not small beside the correction {found:.2g}"
            ": give more `draws=`, or leave `draws` out where training inputs are few."
        )


def _doubt(store: Store, targets: Array, plan: Plan) -> float:
    """n times how much independent errors of all tensor entries, of the size of the tolerance, move the mean."""
    back = float(np.linalg.norm(interpolation(store) @ store.modes.vectors.T, axis=1).max(initial=0))
    total = 0.0
    for weights in weights_of(plan.course(), errors_of(store, targets)).values():
        for entry, cube in on_samples(weights, store.modes.vectors).items():
            size = np.abs(store.tests[entry]).max(initial=0) + back * np.abs(store.training[entry]).max()
            total += (store.tolerance * size * float(np.sqrt((cube**2).sum(axis=(1, 2, 3))).max())) ** 2
    return float(np.sqrt(total))
