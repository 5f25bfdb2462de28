"""Accuracies of classifiers: standard errors, differences judged by them, and what scikit-learn has no name for."""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.experiments.judgements import Sampled
from foretrain.experiments.registry import Row
from foretrain.support.errors import NotSupportedError
from foretrain.theory.architecture import FloatArray

Labels = NDArray[np.int64]

_ALLOWED = 3.0  # standard errors: a smaller difference is not told apart from none


def scikit_learn(room: str) -> Any:
    """A module of scikit-learn, which is no requirement of the package."""
    try:
        return import_module(f"sklearn.{room}")
    except ImportError as error:
        raise NotSupportedError(
            "this experiment needs data and classifiers of scikit-learn: install it with "
            "`pip install scikit-learn`."
        ) from error


@dataclass
class KernelRegression:
    """Ridge regression on one target per class, with kernels in place of inputs; the largest output wins."""

    ridge: float = 0.0
    weights: FloatArray = field(init=False, repr=False)

    def fit(self, kernel: FloatArray, labels: Labels) -> KernelRegression:
        """Weights of the samples seen, from the kernel among them."""
        from scipy.linalg import solve

        classes = int(labels.max()) + 1
        regular = kernel + self.ridge * np.eye(len(kernel))
        self.weights = solve(regular, np.eye(classes)[labels] - 1 / classes, assume_a="pos")
        return self

    def predict(self, kernel: FloatArray) -> Labels:
        """Classes of the samples asked, from the kernel between them and those seen."""
        return np.asarray((kernel @ self.weights).argmax(axis=1))


def over_folds(values: FloatArray, folds: int) -> Sampled:
    """Mean of what each fold gave, in one or several cross-validations of the same samples.

    Folds share samples: their scatter is widened by the ratio of test to training samples (Nadeau & Bengio 2003).
    """
    widened = 1 / values.size + 1 / (folds - 1)
    return Sampled(float(values.mean()), float(np.sqrt(widened * values.var(ddof=1))))


def over_sets_and_tests(values: FloatArray) -> Sampled:
    """Mean over training sets and test samples, (set, sample), both of which are drawn.

    The variances of both means add; what they share counts twice, so that the error is rather too large.
    """
    variances = [values.mean(axis=1 - axis).var(ddof=1) / values.shape[axis] for axis in (0, 1)]
    return Sampled(float(values.mean()), float(np.sqrt(sum(variances))))


def difference_row(title: str, difference: Sampled, claim: str) -> Row:
    """A difference of accuracies: the note says whether error bars hide it, and how large those they hide can be.

    The claim that it is "above 0" is then neither right nor wrong; "not below 0" is right. Others are not tested.
    """
    reach = _ALLOWED * difference.error
    sign = int(difference.mean > reach) - int(difference.mean < -reach)
    agrees = {"above 0": None if sign == 0 else sign > 0, "not below 0": sign >= 0}.get(claim)
    word = ("not told apart", "higher", "lower")[sign]
    return Row(
        title, claim, *difference, agrees, f"{word}, where differences up to {reach:.2g} cannot be seen"
    )
