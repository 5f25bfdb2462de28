"""A recording begins as a whole or not at all, and what is over is over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded_runs import MSE, data, network
from torch import nn

from foretrain.support.errors import FileError, InputError
from foretrain.training.recorder import Recorder, read


def recorder(folder: Path, observables: Any = "loss", **options: Any) -> Recorder:
    given: dict[str, Any] = {"batch": data(), "loss": MSE, "every": 1, "budget": None}
    return Recorder(folder, network(), observables, **(given | options))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"budget": "5%"}, "budget is '5%'"),
        ({"budget": True}, "budget is True"),
        ({"loss": "mse"}, "loss is 'mse'"),
        ({"loss": nn.MSELoss}, r"MSELoss\(\)"),
        ({"observables": None}, "None is no observable"),
        ({"every": np.float64(2)}, "every is"),
        ({"resume_from": 1.5}, "resume_from is 1.5"),
    ],
)
def test_wrong_kinds_are_refused_in_words(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        recorder(tmp_path / "run", **options)
    assert not (tmp_path / "run").exists()


def test_whole_numbers_of_numpy_are_whole_numbers(tmp_path: Path) -> None:
    with recorder(tmp_path / "run", every=np.int64(2), resume_from=np.int64(10)) as found:
        for _ in range(4):
            found.step()
    np.testing.assert_array_equal(read(tmp_path / "run")["step"], [10, 12, 14])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch": data()[0]}, "'loss': InputError.*targets"),
        ({"loss": nn.MSELoss(reduction="none")}, r"\(12, 2\)"),
        ({"observables": {"text": lambda *_: "high"}}, "text is a str"),
    ],
)
def test_a_recording_of_nothing_does_not_start(tmp_path: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        recorder(tmp_path / "run", **options)
    recorder(tmp_path / "run").close()  # the mended call finds the folder free


def test_a_start_that_fails_keeps_an_earlier_recording(tmp_path: Path) -> None:
    recorder(tmp_path / "run").close()
    with pytest.raises(InputError, match="no observable works"):
        recorder(tmp_path / "run", batch=None, resume=True)
    assert read(tmp_path / "run").sizes["step"] == 1


def test_two_variables_of_one_name_are_told_apart_at_once(tmp_path: Path) -> None:
    observables = {"a": lambda *_: {"b": 1.0}, "a_b": lambda *_: 2.0}
    with pytest.warns(UserWarning, match="'a_b' .*variable of a"):
        found = recorder(tmp_path / "run", observables)
    found.step()
    found.close()
    np.testing.assert_array_equal(read(tmp_path / "run")["a_b"], [1.0, 1.0])


def test_what_is_closed_stays_closed(tmp_path: Path) -> None:
    found = recorder(tmp_path / "run")
    found.close()
    for action in (found.step, lambda: found.note(mine=1.0), found.__enter__):
        with pytest.raises(InputError, match="this recorder is closed"):
            action()


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match=r"cannot be written"):
        recorder(tmp_path / "file" / "run")
