"""What a comparison of the order 1/n holds: n times what finite width changes, measured and from theory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from foretrain.compare.comparison import Comparison
from foretrain.compare.trained.comparison import ENTRIES_SHOWN
from foretrain.compare.trained.finite.entries import POSTERIOR, TRAINED
from foretrain.compare.trained.pictures import finite_figure
from foretrain.support.answers import Part
from foretrain.theory.architecture import FloatArray

if TYPE_CHECKING:
    import xarray

    from foretrain.compare.trained.finite.goal import FiniteGoal
    from foretrain.compare.trained.finite.posterior import PosteriorGoal


_NEAR = 2.0  # standard errors, at the largest width


@dataclass(frozen=True, eq=False, repr=False)
class FiniteComparison(Comparison):
    """n times what finite width changes: measured at every width, the limit, the theory, and how far they are apart.

    ``theory``, ``measured``, ``limit``, ``standard_error`` and ``z`` belong to ``entries``, see ``rows()``.
    """

    compared: ClassVar[tuple[str, str]] = ("the order 1/n", "networks")
    rows_have_widths: ClassVar[bool] = True
    still: ClassVar[float] = 1e-4  # a kernel that never changes fluctuates less, by what is left of training
    equal: ClassVar[float] = 1e-3

    goal: FiniteGoal | PosteriorGoal
    learner: str
    steps: FloatArray  # (widths,), mean number until the end; nan where nothing is trained

    @property
    def widths(self) -> FloatArray:
        """n, of the last hidden layer."""
        return np.array([network.hidden_widths[-1] for network in self.ladder.networks])

    @cached_property
    def scores(self) -> FloatArray:
        """(measured − theory) / standard error at each width, nan where nothing fluctuates: (widths, entries).

        At finite width it holds what is of higher order too, which falls as 1/n.
        """
        error = np.where(self.fluctuates, self.measured_error, np.nan)
        return np.asarray((self.measured - self.theory) / error)

    def _found(self) -> str:
        """What every comparison says, and how many means the widest networks get right by themselves."""
        widest = self.scores[-1, self.of("mean") & self.fluctuates]
        near = f"{(np.abs(widest) <= _NEAR).sum()} of {widest.size} means within {_NEAR:g} standard errors"
        return f"{super()._found()}; at width {self.widths[-1]} {near}"

    def scaled_terms(self) -> dict[str, Any]:
        """n times the terms of the mean."""
        prediction, n = self.goal.prediction, self.widths[-1]
        return {name: n * np.asarray(term.values) for name, term in prediction.terms.items()}

    def to_dataset(self) -> xarray.Dataset:
        """What every comparison holds, with z-scores at each width, and n times the terms of the prediction."""
        base = super().to_dataset().drop_vars(["corrected", "layer"])
        outputs = [" ".join(map(str, getattr(entry, "outputs", ()))) for entry in self.entries]
        added: dict[str, Any] = {
            "score": (("width", "entry"), self.scores),
            "steps": (("width",), self.steps),
            "infinite_mean": (("test", "output"), self.goal.prediction.infinite_mean.values),
            **{f"term_{name}": (("test", "output"), term) for name, term in self.scaled_terms().items()},
        }
        labels = {"entry": [entry.label for entry in self.entries], "outputs": (("entry",), outputs)}
        attributes = {"learner": self.learner, "statement": self.goal.statement}
        whole = base.rename({"score": "direction"}).assign_coords(labels)
        return whole.assign_coords(width=self.widths).assign(added).assign_attrs(attributes)

    draw = staticmethod(finite_figure)

    def _parts(self) -> list[Part]:
        meanings = POSTERIOR if self.learner == "bayes" else TRAINED
        return [
            f"They are {self.goal.statement}; n is the width of the last hidden layer.",
            self._entries_table("entry", [f"n = {width}" for width in self.widths], ENTRIES_SHOWN),
            "\n".join(f"{name}: {meanings[name]}" for name in self.observables),
        ]

    def _record(self) -> dict[str, Any]:
        training = getattr(getattr(self.goal, "goal", None), "training", None)  # a posterior has none
        leaps = getattr(self.goal, "algorithm", "") == "two_step"
        return super()._record() | {
            "regime": "finite",
            "learner": self.learner,
            "trained": self.goal.statement,
            "eta": None if training is None or leaps else training.eta,
            "widths": self.widths.tolist(),
            "steps": self.steps.tolist(),
            "infinite_mean": self.goal.prediction.infinite_mean.values,
            "scaled_terms": self.scaled_terms(),
        }
