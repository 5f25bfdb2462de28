"""The folder of a sweep: an append-only log of points, one writer at a time, and the labelled data made from it.

A point is written before the next one, so a kill costs the points that were at work; the disk is waited for a few
times a second, which is what a failure of power can cost. The log begins with what is swept; a sweep that asks for
something else is refused, unless it only adds points and is allowed to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foretrain._version import __version__
from foretrain.experiments.sweep.evaluation import Outcome
from foretrain.experiments.sweep.spec import Plan, Spec
from foretrain.support.atomic import new_file
from foretrain.support.durable import Frame, Log, WorkFolder, damage, frame, read_frames
from foretrain.support.errors import FileError, ForetrainError, ForetrainWarning
from foretrain.support.store import DATA, save
from foretrain.support.user_warnings import warn_user

if TYPE_CHECKING:
    import xarray


LOG = "points.log"
_FORMAT = 1
_ENDS = 3  # values that a message names
_SYNC_SECONDS = 0.2  # between waits for the disk, which take longer than many a point
_DATA_SECONDS = 15.0  # between writings of the data
_DATA_SHARE = 0.05  # of the time of a run, at most, that they may take


@dataclass
class Contents:
    """What a log says: the sweep, finished points and failures by key, and where the last whole frame ends."""

    identity: dict[str, Any] = field(default_factory=dict)
    version: str = ""
    done: dict[str, Frame] = field(default_factory=dict)
    failed: dict[str, dict[str, Any]] = field(default_factory=dict)
    end: int = 0
    lost: int = 0  # bytes between points that cannot be read

    @property
    def seconds(self) -> list[float]:
        """That finished points took."""
        return [float(found.entry["seconds"]) for found in self.done.values()]

    @property
    def peak(self) -> int:
        """The most memory in bytes that a process had at them."""
        return max((int(found.entry.get("peak", 0)) for found in self.done.values()), default=0)


def read_log(folder: Path) -> Contents | None:
    """All that a log says, also while it is written; None if there is no log."""
    frames = read_frames(folder / LOG, "a sweep", _FORMAT)
    if frames is None:
        return None
    found = Contents(end=frames[-1].stop, lost=damage(frames))
    for item in frames:
        kind, key = item.entry["kind"], item.entry.get("key", "")
        if kind in ("header", "extended"):
            found.identity, found.version = item.entry["identity"], item.entry["version"]
        elif kind == "point":
            found.done.setdefault(key, item)
            found.failed.pop(key, None)
        elif kind == "failure" and key not in found.done:
            found.failed[key] = item.entry
    return found


def tell_damage(folder: Path, contents: Contents) -> None:
    """Warn of points that were lost: once, by whoever reads a log on behalf of the user."""
    if contents.lost:
        told = f"{contents.lost} bytes between its points are not readable, and those points are missing"
        warn_user(f"{folder / LOG} is damaged: {told}.", ForetrainWarning)


class Journal:
    """A sweep's folder open for writing.

    Beside the log it keeps the labelled data: whole stores, each in place of the one before, so that whoever reads
    them finds one state of the sweep.
    """

    def __init__(self, plan: Plan, contents: Contents) -> None:
        self.contents, self._plan = contents, plan
        self._log = Log(plan.store / LOG, contents.end)
        self._sync_due = 0.0  # when the disk is waited for
        self._data_due = time.monotonic() + _DATA_SECONDS

    def write(self, outcome: Outcome) -> None:
        """When this returns the end of this process cannot harm it."""
        common = {"key": outcome.key, "seconds": round(outcome.seconds, 6), "peak": outcome.peak}
        if outcome.entry is not None:
            found = {**outcome.entry, "warnings": outcome.warnings}
            self._log.write(frame({"kind": "point", **common, **found}, outcome.body))
        else:
            self._log.write(frame({"kind": "failure", **common, "error": outcome.error}))
        if time.monotonic() > self._sync_due:
            self._log.sync()
            self._sync_due = time.monotonic() + _SYNC_SECONDS
        start = time.monotonic()
        if start >= self._data_due:
            try:
                self.write_data()
            except ForetrainError as error:  # points are safe in the log
                told = f"the data could not be brought up to date, points are kept all the same: {error}"
                warn_user(told, ForetrainWarning)
            end = time.monotonic()
            self._data_due = end + max(_DATA_SECONDS, (end - start) / _DATA_SHARE)

    def write_data(self) -> tuple[Contents, xarray.Dataset]:
        """Write the labelled data of now, and hand them out with the log behind them."""
        contents = read_log(self._plan.store)
        if contents is None:
            raise FileError(f"{self._plan.store} was removed while the sweep ran: run it again.")
        data = self._plan.dataset(contents)
        save(data, self._plan.store / DATA, overwrite=True)
        return contents, data

    def extend(self, spec: Spec) -> None:
        """From now on the sweep is this larger one."""
        self._log.append(_beginning("extended", spec))

    def close(self) -> None:
        """Wait for the disk and let go of the log."""
        try:
            self._log.sync()
        finally:
            self._log.close()


def _beginning(kind: str, spec: Spec) -> bytes:
    return frame({"kind": kind, "format": _FORMAT, "version": __version__, "identity": spec.identity()})


@contextmanager
def opened(plan: Plan, *, extend: bool) -> Iterator[Journal]:
    """The folder, made anew or gone on with, for one writer at a time; refused before anything is touched."""
    place = WorkFolder(plan.store, LOG, "sweep", "store")
    if place.holds_work() and (contents := read_log(plan.store)) is not None:
        has_grown(plan, contents, extend=extend)
    with place.lock():
        if not place.holds_work():
            with new_file(plan.store / LOG) as path:
                path.write_bytes(_beginning("header", plan.spec))
        contents = read_log(plan.store)
        assert contents is not None
        tell_damage(plan.store, contents)
        grown = has_grown(plan, contents, extend=extend)
        journal = Journal(plan, contents)
        try:
            if grown:
                journal.extend(plan.spec)
            yield journal
        finally:
            journal.close()


def has_grown(plan: Plan, contents: Contents, *, extend: bool) -> bool:
    """Whether the sweep has grown since the store was begun; refused if it differs in another way."""
    path, before, now = plan.store, contents.identity, plan.spec.identity()
    if contents.version != __version__:
        raise FileError(
            f"{path} was begun with foretrain {contents.version}, and this is {__version__}: choose another store, "
            "so that numbers of two versions do not mix."
        )
    if before == now:
        return False
    told = "; ".join(_differences(before, now))
    known = contents.done.keys() | contents.failed.keys()
    same = all(before[key] == now[key] for key in ("target", "seed"))
    if not same or not known <= plan.points.keys() or not _covers(before, now):
        raise FileError(
            f"{path} was begun for another sweep ({told}): restore that, or choose another store for this one."
        )
    same_code = before["code"] == now["code"]
    if not extend and not (same_code and _covers(now, before)):
        how = "for a smaller sweep" if same_code else "with other code"
        raise FileError(
            f"{path} was begun {how} ({told}): add --extend to keep its {len(contents.done)} points and compute "
            f"{len(plan.points) - len(known)} more, or choose another store."
        )
    return True


def _covers(before: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether all values that were asked for still are."""
    values = {name: [value] for name, value in now["fixed"].items()} | now["axes"]
    wanted = {name: [value] for name, value in before["fixed"].items()} | before["axes"]
    inside = all(name in values and set(own) <= set(values[name]) for name, own in wanted.items())
    return inside and values.keys() == wanted.keys() and (now["repeats"] or 1) >= (before["repeats"] or 1)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    for key in ("target", "seed", "repeats"):
        if before[key] != now[key]:
            yield f"{key} was {before[key]}, now {now[key]}"
    if before["code"] != now["code"] and before["target"] == now["target"]:
        yield f"the file of {now['target'].removeprefix('observable ')} has changed"
    first, second = (said["fixed"] | said["axes"] for said in (before, now))
    for name in dict.fromkeys([*first, *second]):
        was, has_become = (_told(said[name]) if name in said else "absent" for said in (first, second))
        if first.get(name) != second.get(name):
            yield f"{name} was {was}, now {has_become}"


def _told(value: Any) -> str:
    if not isinstance(value, list):
        return "left out" if value is None else str(value)
    if len(value) <= _ENDS:
        return ", ".join(map(str, value))
    return f"{len(value)} values from {value[0]} to {value[-1]}"
