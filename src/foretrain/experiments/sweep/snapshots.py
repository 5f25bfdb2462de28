"""The labelled data of a sweep, made from its log: while it runs from time to time, and when it ends."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from foretrain.experiments.sweep import journal
from foretrain.support.errors import FileError, ForetrainError, ForetrainWarning
from foretrain.support.store import DATA, save
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    import xarray

    from foretrain.experiments.sweep.plan import Plan

_EVERY = 15.0  # seconds between them
_SHARE = 0.05  # of the time of a run, at most, that they may take


class Snapshots:
    """Whole stores, each in place of the one before: whoever reads them finds one state of the sweep."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._due = time.monotonic() + _EVERY

    def refresh(self) -> None:
        """Write one if it is time; points are safe in the log, so that a failure is only told."""
        start = time.monotonic()
        if start < self._due:
            return
        try:
            self.write()
        except ForetrainError as error:
            told = f"the data could not be brought up to date, points are kept all the same: {error}"
            warn_user(told, ForetrainWarning)
        end = time.monotonic()
        self._due = end + max(_EVERY, (end - start) / _SHARE)

    def write(self) -> tuple[journal.Contents, xarray.Dataset]:
        """Write one now, and hand it out with the log behind it."""
        contents = journal.read_log(self._plan.store)
        if contents is None:
            raise FileError(f"{self._plan.store} was removed while the sweep ran: run it again.")
        data = self._plan.dataset(contents)
        save(data, self._plan.store / DATA, overwrite=True)
        return contents, data
