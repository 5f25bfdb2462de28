"""Making and writing one record after the other: the folder, what it held before, and what is known of all."""

from __future__ import annotations

import shutil
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from foretrain.support.atomic import new_file
from foretrain.support.durable import Lock, Log, WorkFolder, frame
from foretrain.support.errors import FileError, InputError
from foretrain.support.store import DATA
from foretrain.training.observables import Observable
from foretrain.training.recorder.budget import BOOKKEEPING, Budget
from foretrain.training.recorder.isolation import Snapshot, plain, undisturbed
from foretrain.training.recorder.records import LOG, Contents, Variable, layout_change, read_log, variables


class Folder:
    """A recording that is begun or gone on with by the first ``append``; until then nothing is touched.

    ``contents`` is what stays of an earlier recording: up to the step ``until``, or nothing if it is overwritten.
    """

    def __init__(
        self, folder: str | Path, header: dict[str, Any], *, resume: bool, until: int | None, overwrite: bool
    ) -> None:
        self.path = Path(folder).expanduser().absolute()
        resume = resume or until is not None
        if resume and overwrite:
            raise InputError("resume and overwrite exclude each other: give one of them.")
        self._place = WorkFolder(self.path, LOG, "recording")
        self._header = header
        self.contents = Contents(header)
        self._log: Log | None = None
        self._lock: Lock | None = None
        if not self._holds_recording(allowed=resume or overwrite):
            return
        self._lock = self._place.lock()
        try:
            if resume:
                self.contents = read_log(self.path, until)
                self._refuse_to_go_on()
        except BaseException:
            self._lock.release()
            raise

    @property
    def is_taken(self) -> bool:
        """Whether an earlier recording is gone on with or replaced, before the first frame is written."""
        return self._lock is not None and self._log is None

    def append(self, data: bytes) -> None:
        """Write frames and wait until they are on disk; the first ones begin the recording."""
        if self._log is not None:
            self._log.append(data)
            return
        if self._lock is None:
            self._lock = self._place.lock()
            self._holds_recording(allowed=False)  # another one may have been faster
        path, end = self.path / LOG, self.contents.end
        if end and not self.contents.forgotten:
            self._log = Log(path, end)
            self._log.append(data)
        else:
            whole = (path.read_bytes()[:end] if end else frame(self._header)) + data
            with new_file(path, overwrite=True) as successor:
                successor.write_bytes(whole)
            self._log = Log(path, len(whole))
        # What an earlier run wrote at its end is stale now that the new record is there, and not before.
        shutil.rmtree(self.path / DATA, ignore_errors=True)

    def close(self) -> None:
        """Let others have it."""
        if self._log is not None:
            self._log.close()
        if self._lock is not None:
            self._lock.release()

    def _holds_recording(self, *, allowed: bool) -> bool:
        found = self._place.holds_work()
        if found and not allowed:
            raise FileError(
                f"{self.path} already holds a recording: choose another folder, go on with `resume=True` (or "
                "resume_from=step), or start afresh with `overwrite=True`."
            )
        return found

    def _refuse_to_go_on(self) -> None:
        if self.contents.damaged and (self.path / DATA).exists():
            raise FileError(
                f"{self.path / LOG} is damaged, and {DATA} beside it may hold what is lost there: move {DATA} away, "
                "which `ft.load` reads, before you go on."
            )
        before, now = self.contents.header["observables"], self._header["observables"]
        if set(before) != set(now):
            raise InputError(
                f"{self.path} was recorded with {', '.join(before)}, not with {', '.join(now)}: ask for the same "
                "observables, or choose another folder."
            )


@dataclass
class Taken:
    """What one record will hold: labelled values, seconds by observable, and what failed."""

    measured: list[Variable] = field(default_factory=list)
    costs: dict[str, float] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)


class Session:
    """The records of one recorder: observables that still work, layouts of variables, counts."""

    def __init__(
        self,
        model: nn.Module,
        observables: Mapping[str, Observable],
        given: Mapping[str, Any],
        budget: Budget,
        folder: Folder,
    ) -> None:
        self._model, self._observables, self._given = model, observables, given
        self._budget, self._folder = budget, folder
        self._layouts = dict(folder.contents.layouts)
        self._seconds_before = folder.contents.seconds
        self.active = list(observables)
        self.written = 0
        self.counts: Counter[str] = Counter()
        self.failures: dict[str, str] = {}
        self.recorded_at: dict[str, int] = {}
        self.shown: tuple[str, float] | None = None

    def rehearse(self, batch: Callable[[], Any]) -> float:
        """Call every observable once for nothing, so that imports and other first-time work are not its cost.

        The seconds it took. What fails here will fail again in the first record, which says so. If all fail, or one
        that an earlier recording would suffer from, the recording is refused.
        """
        start, unused = clock(), Taken()
        with undisturbed(self._model) as snapshot:
            given = batch()
            for name in self.active:
                self._try(unused, name, partial(self._observed, snapshot, name, given))
        if len(unused.failures) == len(self.active):
            name, why = next(iter(unused.failures.items()))
            raise InputError(f"nothing would be recorded, for no observable works here; {name!r}: {why}")
        before = {failure["observable"] for failure in self._folder.contents.failures}
        if self._folder.is_taken and (worse := unused.failures.keys() - before):
            name = min(worse)
            raise InputError(
                f"the observable {name!r} does not work here ({unused.failures[name]}); {self._folder.path} holds "
                "an earlier recording, which stays: mend that first, or choose another folder."
            )
        return clock() - start

    def record(
        self, step: int, names: Sequence[str], notes: Mapping[str, Any], batch: Callable[[], Any]
    ) -> float:
        """Make one record; it is on disk when this returns. The seconds it took."""
        start = clock()
        taken = Taken()
        with undisturbed(self._model) as snapshot:
            given = batch()
            for name in names:
                began = clock()
                self._try(taken, name, partial(self._observed, snapshot, name, given))
                taken.costs[name] = clock() - began
        for name, value in notes.items():
            if name not in self.failures:
                self._try(taken, name, partial(lambda given: given, value))
        self._write(step, taken)
        for name, why in taken.failures.items():
            self.active = [other for other in self.active if other != name]
            self.failures[name] = why
            text = f"the observable {name!r} failed at step {step} and is left out from now on: {why}"
            warnings.warn(text, stacklevel=2)
        for name, seconds in taken.costs.items():
            self._budget.charge(name, seconds)
        total = clock() - start
        self._budget.charge(BOOKKEEPING, total - sum(taken.costs.values()))
        return total

    def _observed(self, snapshot: Snapshot, name: str, batch: Any) -> Any:
        observable = self._observables[name]
        snapshot.lend()
        try:
            return observable(
                plain(self._model), batch, **{need: self._given[need] for need in observable.needs}
            )
        finally:
            snapshot.restore()

    def _try(self, taken: Taken, name: str, function: Callable[[], Any]) -> None:
        """Whatever an observable raises, the training goes on."""
        try:
            found = variables(name, function())
            for variable in found:
                self._check_fit(variable, taken)
        except Exception as error:
            taken.failures[name] = words(error)
        else:
            taken.measured += found

    def _check_fit(self, variable: Variable, taken: Taken) -> None:
        """Refuse what does not fit to earlier records, or has a name twice."""
        here = (own.layout for own in taken.measured if own.name == variable.name)
        known = self._layouts.get(variable.name) or next(here, None)
        if known is None:
            return
        if known["observable"] != variable.observable:
            raise InputError(f"{variable.name} is a variable of {known['observable']} already: rename it.")
        change = layout_change(known, variable.layout)
        if change:
            raise InputError(f"{variable.name} cannot join its earlier records: {change}.")

    def _write(self, step: int, taken: Taken) -> None:
        layouts = {own.name: own.layout for own in taken.measured if own.name not in self._layouts}
        parts = [frame({"kind": "layout", "step": step} | layout) for layout in layouts.values()]
        parts += [
            frame({"kind": "failure", "step": step, "observable": name, "error": why})
            for name, why in taken.failures.items()
        ]
        record = {
            "kind": "record",
            "step": step,
            "seconds": self._seconds_before + self._budget.elapsed,
            "costs": taken.costs,
            "values": [variable.entry for variable in taken.measured],
        }
        parts.append(frame(record, b"".join(variable.values.tobytes() for variable in taken.measured)))
        self._folder.append(b"".join(parts))
        self._layouts |= layouts
        self.written += 1
        seen = {variable.observable for variable in taken.measured}
        self.counts.update(seen)
        self.recorded_at |= dict.fromkeys(seen, step)
        numbers = {own.name: float(own.values.real) for own in taken.measured if not own.dims}
        self.shown = next(iter(numbers.items()), self.shown)


def clock() -> float:
    """Seconds, once queued work of a GPU is done: it is the training's, not the recorder's."""
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
    return time.perf_counter()


def words(error: BaseException) -> str:
    """The kind of an error and the first line of what it says."""
    first = str(error).strip().splitlines()[:1]
    return f"{type(error).__name__}: {first[0][:500]}" if first else type(error).__name__
