"""A power of the width, as measured."""

from __future__ import annotations

from dataclasses import dataclass

_ALLOWED = 3.0  # standard errors


@dataclass(frozen=True)
class Slope:
    """A power of the width with its standard error."""

    value: float
    standard_error: float

    def agrees(self, expected: float) -> bool:
        """Whether it is the expected power, within three standard errors."""
        return abs(self.value - expected) <= _ALLOWED * self.standard_error

    def __repr__(self) -> str:
        return f"{self.value:.2f} ± {self.standard_error:.2f}"
