"""Deadlines: work that reports its steps stops, and other work does not."""

from __future__ import annotations

import time

import pytest

from foretrain.support.errors import ForetrainError, InputError
from foretrain.support.progress import (
    Deadline,
    OutOfTimeError,
    Progress,
    duration_text,
    parse_duration,
    patient_clock,
    running_deadline,
    stop_if_late,
    track,
    within,
)


class Clock:
    """Seconds that pass when they are told to."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_work_stops_at_the_end_of_the_step_in_which_its_time_is_over() -> None:
    clock, made = Clock(), list[int]()
    deadline = Deadline(3.5, clock)

    def work() -> None:
        for step in track(range(10), "steps"):
            made.append(step)
            clock.now += 1

    with pytest.raises(OutOfTimeError, match=r"3\.5 s"), within(deadline):
        work()
    assert made == [0, 1, 2, 3]
    assert (deadline.spent, deadline.left) == (4.0, 0.0)
    assert running_deadline() is None
    assert not issubclass(OutOfTimeError, ForetrainError)  # or it would pass for a part that is refused


def test_an_inner_deadline_holds_inside_and_none_lets_work_end() -> None:
    late = Deadline(0.0, Clock())
    with within(late):
        with within(None), Progress("free", total=1) as bar:
            bar.advance()
        with within(Deadline(1.0, Clock())):
            stop_if_late()
        with pytest.raises(OutOfTimeError):
            stop_if_late()


def test_a_deadline_may_begin_before_it_is_made() -> None:
    clock = Clock()
    assert Deadline(30, clock, start=90.0).left == 20


@pytest.mark.parametrize(
    ("text", "seconds"), [("60s", 60), ("2m", 120), ("90", 90), ("1.5 min", 90), ("1h", 3600)]
)
def test_durations_are_read_as_people_write_them(text: str, seconds: float) -> None:
    assert parse_duration(text, "--budget") == seconds


@pytest.mark.parametrize("text", ["", "soon", "2 weeks", "-3", "1m30s"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"--budget is .* write it like 60s"):
        parse_duration(text, "--budget")


def test_durations_are_told_in_fitting_units() -> None:
    told = [duration_text(seconds) for seconds in (0, 0.31, 3, 45, 120, 150, 7200)]
    assert told == ["0 s", "0.3 s", "3 s", "45 s", "2 min", "2.5 min", "2 h"]


def test_a_patient_clock_counts_work_and_only_a_third_of_waiting() -> None:
    clock = patient_clock()
    time.sleep(0.3)
    assert 0.05 < clock() < 0.2
    start = time.thread_time()
    while time.thread_time() - start < 0.4:
        pass
    assert clock() >= 0.4
