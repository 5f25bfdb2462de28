"""How long an examination may take, and what was left out because that was over."""

from __future__ import annotations

import math
from dataclasses import dataclass

from foretrain.support.progress import duration_text

_SMALL, _LARGE = 1e6, 1e7  # parameters
_MORE = 1.5  # times a budget that was not enough
_SHORT, _LONG = 30.0, 120.0  # seconds for them, on two cores


def default_budget(parameters: int) -> float:
    """Seconds for a model of this size: 30 up to a million parameters, 120 at ten million, then slowly more."""
    decades = math.log(max(1.0, parameters / _SMALL)) / math.log(_LARGE / _SMALL)
    return _SHORT * (_LONG / _SHORT) ** decades if decades <= 1 else _LONG * decades


@dataclass(frozen=True)
class Account:
    """What an examination took, in seconds: ``enough`` is about what all of it would have taken."""

    budget: float = math.inf
    spent: float = 0.0
    enough: float = 0.0
    interrupted: bool = False

    @property
    def left(self) -> float:
        """Seconds of the budget that were not spent; none after an interruption."""
        return 0.0 if self.interrupted else max(0.0, self.budget - self.spent)

    @property
    def reason(self) -> str:
        """Why something was not looked at, and what would have sufficed."""
        if self.interrupted:
            return "it was interrupted"
        budget, enough = duration_text(self.budget), duration_text(self.rounded)
        if self.spent < self.budget:  # its part was over, or far less was left than it takes
            return f"too little of the {budget} was left for it, a budget of {enough} would do"
        return f"{budget} were not enough, a budget of {enough} would do"

    @property
    def rounded(self) -> float:
        """Enough, rounded up to five seconds or half a minute."""
        enough = max(self.enough, _MORE * self.budget if math.isfinite(self.budget) else 0.0)
        unit = 30.0 if enough > 120 else 5.0
        return unit * math.ceil(enough / unit)
