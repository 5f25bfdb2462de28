"""What a comparison of the order 1/n holds: n times what finite width changes, measured and from theory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from foretrain.compare.comparison import Comparison
from foretrain.compare.trained.finite.presentation import finite_dataset, finite_text

if TYPE_CHECKING:
    import xarray

    from foretrain.compare.trained.finite.goal import FiniteGoal
    from foretrain.compare.trained.finite.posterior import PosteriorGoal

Array = NDArray[np.float64]

_NEAR = 2.0  # standard errors, at the largest width


@dataclass(frozen=True, eq=False, repr=False)
class FiniteComparison(Comparison):
    """n times what finite width changes: measured at every width, the limit, the theory, and how far they are apart.

    ``theory``, ``measured``, ``limit``, ``standard_error`` and ``z`` belong to ``entries``, see ``rows()``.
    """

    still: ClassVar[float] = 1e-4  # a kernel that never changes fluctuates less, by what is left of training
    equal: ClassVar[float] = 1e-3

    goal: FiniteGoal | PosteriorGoal
    learner: str
    steps: Array  # (widths,), mean number until the end; nan where nothing is trained

    @property
    def widths(self) -> Array:
        """n, of the last hidden layer."""
        return np.array([network.hidden_widths[-1] for network in self.ladder.networks])

    @cached_property
    def scores(self) -> Array:
        """(measured − theory) / standard error at each width, nan where nothing fluctuates: (widths, entries).

        At finite width it holds what is of higher order too, which falls as 1/n.
        """
        error = np.where(self.fluctuates, self.measured_error, np.nan)
        return np.asarray((self.measured - self.theory) / error)

    @property
    def verdict(self) -> str:
        """One sentence."""
        word = "agrees" if self.agrees else "does NOT agree"
        found = self.judgement.told(exact_agrees=self.exact_agrees)
        widest = self.scores[-1, self.of("mean") & self.fluctuates]
        near = f"{(np.abs(widest) <= _NEAR).sum()} of {widest.size} means within {_NEAR:g} standard errors"
        where = f"at width {self.widths[-1]} {near}"
        return f"{self.mlp.activation.label}: the order 1/n {word} with networks ({found}; {where})."

    def rows(self) -> list[dict[str, object]]:
        """One dictionary per entry."""
        return [
            row
            | {"observable": entry.observable, "measured": values.tolist(), "measured_error": errors.tolist()}
            for row, entry, values, errors in zip(
                super().rows(), self.entries, self.measured.T, self.measured_error.T, strict=True
            )
        ]

    def to_dataset(self) -> xarray.Dataset:
        """Every number, labelled; ``foretrain.save`` stores it."""
        return finite_dataset(self)

    def __repr__(self) -> str:
        return finite_text(self)
