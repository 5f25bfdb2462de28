"""An expectation with its error estimate."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foretrain.support.answers import Answer, Result


class Expectation(Result):
    """A value, an honest estimate of its absolute error, and the rule that gave it.

    ``np.asarray`` and ``float`` give the value.
    """

    def __init__(
        self, value: NDArray[Any], error: NDArray[Any] | Callable[[], NDArray[Any]], rule: str
    ) -> None:
        self.value = value
        self.rule = rule
        self._error = error

    @cached_property
    def error(self) -> NDArray[Any]:
        """The error estimate, of the shape of the value (made when first asked for)."""
        return self._error() if callable(self._error) else self._error

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        array = np.asarray(self.value, dtype=dtype)
        return array.copy() if copy else array

    def __float__(self) -> float:
        return float(self.value)

    def answer(self) -> Answer:
        """The value and its error."""
        if np.ndim(self.value) == 0:
            return Answer(f"Expectation({float(self.value):.12g} ± {float(self.error):.1e}, by {self.rule})")
        worst = float(np.max(self.error, initial=0.0))
        statement = f"Expectation of shape {np.shape(self.value)}, error at most {worst:.1e}, by {self.rule}"
        return Answer(statement, [f"{self.value!r}"], record=self.__dict__ | {"error": self.error})
