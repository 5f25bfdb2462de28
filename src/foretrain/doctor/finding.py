"""What a check says: findings with evidence and advice, and the measurements behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import xarray

    from foretrain.doctor.setup import Setup


class Severity(IntEnum):
    """How much a finding holds learning back; sorts from the worst."""

    CRITICAL = 0  # the network will not learn, or hardly
    WARNING = 1  # it learns, but much slower or less than it could
    NOTE = 2  # worth knowing; nothing to do, or nothing certain
    GOOD = 3  # looked at and healthy

    @property
    def word(self) -> str:
        """In lower case, for people and machines."""
        return self.name.lower()


@dataclass(frozen=True)
class Treatment:
    """Advice that can be carried out: ``change`` takes a setup to a better one and leaves the given one as it is."""

    name: str
    change: Callable[[Setup], Setup]

    def apply(self, setup: Setup) -> Setup:
        """The treated setup: always the same one, so that what is measured of it is kept with it."""
        key = (self, repr(setup.recipe))
        if key not in setup.known:
            setup.known[key] = self.change(setup)
        treated: Setup = setup.known[key]
        return treated


@dataclass(frozen=True)
class Finding:
    """One thing that was found.

    ``title`` says it in one plain sentence, ``evidence`` with numbers, ``source`` names the theory (author and
    equation), ``advice`` what to do (empty for good news) and ``code`` is Python that does it to ``model``,
    ``optimizer``, ``x``. ``numbers`` are the evidence for machines, ``where`` the layers or features concerned.
    """

    severity: Severity
    title: str
    evidence: str
    source: str
    advice: str = ""
    code: str = ""
    treatment: Treatment | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    where: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class Examination:
    """What one check found: at least one finding, and the labelled measurements behind it."""

    findings: tuple[Finding, ...] = ()
    data: xarray.Dataset | None = None
    skipped: str = ""  # one sentence, where the check does not apply to this model
    failed: bool = False  # by an error of its own; its only finding says so
