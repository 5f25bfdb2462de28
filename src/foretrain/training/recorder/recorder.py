"""``Recorder``: observables of a model while any training loop runs."""

from __future__ import annotations

import os
import time
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import nn

from foretrain._version import __version__
from foretrain.support.answers import Answer, Result
from foretrain.support.arguments import whole_number
from foretrain.support.durable import frame
from foretrain.support.errors import ForetrainWarning, InputError
from foretrain.support.store import DATA, json_safe, save
from foretrain.support.user_warnings import warn_user
from foretrain.training.observables import Asked, found
from foretrain.training.recorder.arguments import (
    Counting,
    Schedule,
    ScheduleLike,
    batch_source,
    check_loss,
    check_model,
    check_observables,
    counted_optimizer,
    make_schedule,
    on_every_step,
)
from foretrain.training.recorder.budget import BOOKKEEPING, Budget, Pace
from foretrain.training.recorder.isolation import plain, undisturbed
from foretrain.training.recorder.live_line import LiveLine
from foretrain.training.recorder.recording import ObservableSummary, RecorderSummary, recording
from foretrain.training.recorder.records import FORMAT, check_name, read
from foretrain.training.recorder.session import Folder, Session, words

if TYPE_CHECKING:
    import xarray as xr


class Recorder(Result):
    """Record observables every k steps, or evenly on a log axis, into a folder that survives a kill at any moment.

    Parameters
    ----------
    folder
        Where the records go: ``records.log`` while it runs, and ``data.zarr`` beside it once it is closed. An
        existing recording is refused unless ``resume=True`` (go on after its last record, or begin if there is none),
        ``resume_from=step`` (forget later records and count from there, as after loading a checkpoint), or
        ``overwrite=True``.
    observables
        Names (``foretrain.training.observables.names()``), functions (model, batch), or a dict of either by name.
        What a function may return is said at ``observables.register``. One that raises is left out from then on,
        with a warning; the training goes on.
    batch
        What observables look at, (x, y) for most: always the same one, or a function without arguments that gives it.
        Of a DataLoader its first batch is taken.
    loss
        A function (outputs, targets), for the observables that need one.
    optimizer
        Its steps are counted, by a hook: accumulated gradients, schedulers and closures make no difference. Of
        several optimizers give one. With ``count="calls"``, or without one, call :meth:`step` after every step.
    every, schedule, per_decade
        ``every=k`` steps; or ``schedule="log"`` with so many steps ``per_decade`` (the default, 10), a list of steps,
        or a function step -> bool. The state before the first step and after the last one is always recorded.
    budget
        The share of the time that recording may take, the slower step after a record included: observables that would
        exceed it are skipped. None: no limit.
        Not part of it, but stated by :meth:`summary`: before the start every observable is called once for nothing,
        and after the end the dataset is written.
    metadata
        Anything JSON can hold, stored beside.

    While observables run the model is in evaluation mode, without autocast; afterwards random states, modes, weights,
    buffers and gradients are what they were, to the last bit.

    Examples
    --------
    >>> import torch
    >>> from foretrain.training import Recorder, read, recording
    >>> model = torch.nn.Linear(2, 1)
    >>> x, y = torch.randn(8, 2), torch.randn(8, 1)
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> mse = torch.nn.functional.mse_loss
    >>> with Recorder(
    ...     "runs/first", model, ["loss"], batch=(x, y), loss=mse, optimizer=optimizer, every=10
    ... ):  # doctest: +SKIP
    ...     for _ in range(100):
    ...         optimizer.zero_grad()
    ...         mse(model(x), y).backward()
    ...         optimizer.step()
    >>> read("runs/first")["loss"]  # doctest: +SKIP
    >>> recording("runs/first").plot()  # doctest: +SKIP
    """

    def __init__(
        self,
        folder: str | Path,
        model: nn.Module,
        observables: Asked,
        *,
        batch: Any = None,
        loss: Callable[[Any, Any], Any] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        count: Counting | None = None,
        every: int | None = None,
        schedule: ScheduleLike = None,
        per_decade: int | None = None,
        budget: float | None = 0.05,
        resume: bool = False,
        resume_from: int | None = None,
        overwrite: bool = False,
        metadata: Mapping[str, Any] | None = None,
        progress: bool = True,
    ) -> None:
        self.model = check_model(model)
        given = {"loss": check_loss(loss), "optimizer": optimizer}
        self._observables = check_observables(found(observables), given)
        self._schedule = make_schedule(every, schedule, per_decade)
        self._budget = Budget.planned(budget, self._observables)
        counted = counted_optimizer(count, optimizer)
        if resume_from is not None:
            resume_from = whole_number("resume_from", resume_from, least=0)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        header = {
            "kind": "header",
            "step": 0,
            "format": FORMAT,
            "version": __version__,
            "observables": list(self._observables),
            "schedule": self._schedule.text,
            "budget": budget,
            "started": _now(),
            "model": f"{type(plain(model)).__name__}, {parameters} parameters",
            "metadata": json_safe(dict(metadata or {}), "metadata"),
        }
        self._folder = Folder(folder, header, resume=resume, until=resume_from, overwrite=overwrite)
        self._session = Session(self.model, self._observables, given, self._budget, self._folder)
        before = self._folder.contents
        self._step = before.last_step if resume_from is None else resume_from
        self._skipped: Counter[str] = Counter()
        self._passed = 0  # due steps that are not yet counted as skipped
        self._notes: dict[str, Any] = {}  # for the step that comes
        self._last_notes: dict[str, Any] = {}  # of the step just made
        self._ends = 0.0  # seconds of the first and the last record
        self._closed_after: float | None = None
        self._closing_seconds = 0.0
        self._process = os.getpid()
        self._line = LiveLine(progress)
        self._pace = Pace()
        self._hook: torch.utils.hooks.RemovableHandle | None = None
        try:
            self._begin(batch)
        except BaseException:
            self._folder.close()
            raise
        if counted is not None:
            self._hook = on_every_step(counted, weakref.WeakMethod(self._advance))
        self._lost = weakref.finalize(self, _let_go, self._folder, self._hook)
        self._lost.atexit = False

    @property
    def folder(self) -> Path:
        """Where the records go."""
        return self._folder.path

    @property
    def steps(self) -> int:
        """The number of the step just made."""
        return self._step

    @property
    def records(self) -> int:
        """How many records this recorder has written; they are on disk."""
        return self._session.written

    @property
    def overhead(self) -> float:
        """The share of the time since the start that recording took, as measured."""
        return self._budget.total / self._elapsed

    def note(self, **numbers: Any) -> None:
        """Numbers of your own for the step that comes, such as the loss of its batch; kept if it is recorded."""
        self._check_open()
        for name in numbers:
            if name in self._observables:
                raise InputError(f"{name!r} is an observable: note your number under another name.")
            check_name(name, "a number")
        self._notes |= numbers

    def step(self, **numbers: Any) -> None:
        """Count one step, with numbers of your own; not if an optimizer counts."""
        self._check_open()
        if self._hook is not None:
            raise InputError(
                "the optimizer counts the steps already: use note(...) before its step, or pass `count='calls'`."
            )
        self.note(**numbers)
        self._advance()

    def to_dataset(self) -> xr.Dataset:
        """All records so far: see ``read``."""
        return read(self.folder)

    def summary(self) -> RecorderSummary:
        """Steps, records, what was skipped, and the measured overhead by observable."""
        self._count_passed()
        session, spent = self._session, self._budget.spent
        return RecorderSummary(
            folder=str(self.folder),
            steps=self._step,
            records=session.written,
            seconds=self._elapsed,
            overhead=self.overhead,
            budget=self._budget.given,
            bookkeeping_seconds=spent[BOOKKEEPING],
            setup_seconds=self._setup_seconds,
            closing_seconds=self._closing_seconds,
            observables={
                name: ObservableSummary(
                    session.counts[name], self._skipped[name], spent[name], session.failures.get(name)
                )
                for name in self._observables
            },
        )

    def close(self) -> None:
        """Record the last step, write the dataset, and let go of optimizer and folder."""
        self._close(with_last=True)

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # After an error or an interruption no further measurement stands in the way.
        self._close(with_last=error is None)

    def answer(self) -> Answer:
        """What it did and what that cost, and the picture of what it recorded."""
        done, figure = self.summary().answer(), lambda: recording(self.folder).figure()
        return replace(done, parts=[*done.parts, figure], data=self.to_dataset)

    @property
    def _elapsed(self) -> float:
        return self._budget.elapsed if self._closed_after is None else self._closed_after

    def _check_open(self) -> None:
        if self._closed_after is not None:
            raise InputError("this recorder is closed: make a new one with `resume=True`.")

    def _begin(self, batch: Any) -> None:
        """The first record, unless it is there already."""
        with undisturbed(self.model):
            self._batch = batch_source(batch)
        self._setup_seconds = self._session.rehearse(self._batch)
        self._budget.start()
        before = self._folder.contents
        if before.records:
            self._folder.append(frame({"kind": "session", "step": self._step, "started": _now()}))
        if before.records and before.last_step == self._step:
            self._session.recorded_at = dict.fromkeys(self._observables, self._step)
        else:
            self._ends += self._session.record(self._step, self._session.active, {}, self._batch)

    def _advance(self, *_: object) -> None:
        """One step was made. Most of them end here soon, so that a fast loop stays fast."""
        self._step += 1
        slower = self._pace.stepped(time.perf_counter())
        if slower:
            self._budget.spend(slower)
        if self._notes or self._last_notes:
            self._last_notes, self._notes = self._notes, {}
        try:
            due = self._schedule.due(self._step)
        except Exception as error:
            self._give_up(error)
            return
        if due:
            if time.perf_counter() < self._budget.next_decision:
                self._passed += 1
            else:
                self._guarded(self._record_what_fits)
        if self._line.is_due():
            self._guarded(lambda: self._line.show(self._line_text()))

    def _guarded(self, function: Callable[[], None]) -> None:
        """Whatever goes wrong in here must not end the training; what it takes is counted."""
        if os.getpid() != self._process:  # a forked child has the hook too
            return
        start, counted = time.perf_counter(), self._budget.total
        try:
            function()
        except Exception as error:
            self._give_up(error)
        self._budget.spend(time.perf_counter() - start - (self._budget.total - counted))

    def _give_up(self, error: Exception) -> None:
        self._session.active, self._schedule = [], Schedule(lambda step: False, self._schedule.text)
        self._warn(f"recording ended at step {self._step}, the training goes on: {words(error)}")

    def _record_what_fits(self) -> None:
        self._count_passed()
        active = self._session.active
        chosen = self._budget.chosen(active)
        self._skipped.update(set(active).difference(chosen or ()))
        if chosen or (chosen is not None and active and self._last_notes):
            cost = self._session.record(self._step, chosen, self._last_notes, self._batch)
            self._pace.recorded(time.perf_counter(), cost)

    def _count_passed(self) -> None:
        """Due steps at which the budget was known to be exhausted."""
        for name in self._session.active:
            self._skipped[name] += self._passed
        self._passed = 0

    def _warn(self, text: str) -> None:
        self._line.clear()
        warnings.warn(text, stacklevel=2)

    def _line_text(self) -> str:
        shown = self._session.shown
        value = f" | {shown[0]} {shown[1]:.4g}" if shown else ""
        return f"step {self._step}{value} | {self._session.written} records | overhead {self.overhead:.1%}"

    def _close(self, with_last: bool) -> None:
        if self._closed_after is not None or os.getpid() != self._process:  # a forked child owns nothing
            return
        self._lost.detach()
        if self._hook is not None:
            self._hook.remove()
        self._line.clear()
        try:
            if with_last:
                self._record_last()
            self._closed_after = self._budget.elapsed
            self._write_dataset()
        except Exception as error:
            self._warn(f"the recording is not complete, read() gives what there is: {words(error)}")
        finally:
            self._closed_after = self._closed_after or self._budget.elapsed
            self._folder.close()

    def _record_last(self) -> None:
        session = self._session
        missing = [name for name in session.active if session.recorded_at.get(name) != self._step]
        if missing:
            noted = {
                name: value
                for name, value in self._last_notes.items()
                if session.recorded_at.get(name) != self._step
            }
            self._ends += session.record(self._step, missing, noted, self._batch)
        share, elapsed = self._budget.given, self._budget.elapsed
        if share is not None and self._ends > share * elapsed:
            self._warn(
                f"the first and the last record took {self._ends:.3g} s of {elapsed:.3g} s, more than the budget "
                f"of {share:.3g}: train longer, or give a smaller batch."
            )

    def _write_dataset(self) -> None:
        start = time.perf_counter()
        self._count_passed()
        closing = {
            "kind": "close",
            "step": self._step,
            "steps": self._step,
            "overhead": self.overhead,
            "skipped": {name: self._skipped[name] for name in self._observables},
        }
        self._folder.append(frame(closing))
        save(self.to_dataset(), self.folder / DATA, overwrite=True)
        self._closing_seconds = time.perf_counter() - start


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


def _let_go(folder: Folder, hook: torch.utils.hooks.RemovableHandle | None) -> None:
    """Of a recorder that nobody refers to any more, as after an exception: what it has recorded stays."""
    if hook is not None:
        hook.remove()
    folder.close()
    told = (
        f"the Recorder in {folder.path} is lost before it was closed: keep it, or use it in a `with` block."
    )
    warn_user(told, ForetrainWarning)
