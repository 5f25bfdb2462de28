"""Functions of a user's own that misbehave: answers that do not fit, warnings, prints, errors, exits, crashes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from swept import write_spec

from foretrain.experiments.sweep import price, sweep
from foretrain.support.errors import InputError


def test_answers_that_cannot_be_labelled_are_failures(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "from xarray import DataArray as A\n\ndef odd(a: int):\n"
        "    twice, unequal = A([1.0, 2.0], {'k': [3, 3]}, ['k']), A([1.0, 2.0], {'k': [3, 4]}, ['k'])\n"
        "    other = {'v': A([1.0], {'k': [3]}, ['k']), 'w': unequal}\n"
        "    own = {'k': 1.0, 'v': unequal}\n"
        "    return [{'a': 1.0}, None, {}, {'x/y': 1.0}, 1j, {'status': 1.0}, {'v': twice}, own, other][a]\n"
    )
    spec = write_spec(tmp_path, 'observable = "mine.py:odd"\n[axes]\na = { from = 0, to = 8, step = 1 }')
    found = sweep(spec, workers=1)
    words = [
        *("is that of a parameter", "NoneType", "empty", "'x/y' cannot name", "complex128", "reserved"),
        *("the labels of k repeat", "'k' names a value and an axis"),
    ]
    assert found.done == 1
    assert found.data["v"].sel(a=8).values.tolist()[0] == 1.0
    assert all(word in error for word, error in zip(words, found.errors.values(), strict=True))


def test_warnings_are_kept_with_their_points(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import warnings\n\ndef loud(a: int):\n    if a:\n        warnings.warn('about  that')\n    return a\n"
    )
    spec = write_spec(tmp_path, 'observable = "mine.py:loud"\n[axes]\na = [0, 1]')
    assert sweep(spec, workers=1).warnings == {"a = 1": "about that"}
    assert sweep(spec, workers=1).warnings == {"a = 1": "about that"}


def test_points_keep_to_one_thread(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import threadpoolctl, torch\n\ndef threads(a: int):\n"
        "    pools = [p['num_threads'] for p in threadpoolctl.threadpool_info() if p['user_api'] == 'blas']\n"
        "    return {'torch': torch.get_num_threads(), 'blas': max(pools)}\n"
    )
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        data = sweep(
            write_spec(tmp_path, 'observable = "mine.py:threads"\n[axes]\na = [0, 1]'), workers=1
        ).data
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert (data["torch"] == 1).all()
    assert (data["blas"] == 1).all()


def test_answers_of_another_kind_than_before_are_failures(tmp_path: Path) -> None:
    """By the order of the points, not by that in which they were finished."""
    (tmp_path / "mine.py").write_text(
        "from xarray import DataArray as A\n\ndef turns(a: int):\n"
        "    answer = {'x': [1.0, A([1.0], {'k': [1]}, ['k']), 'word', 2.0, 3.0][a]}\n"
        "    return answer | ({'y': [1.0]} if a > 3 else {})\n"
    )
    spec = write_spec(tmp_path, 'observable = "mine.py:turns"\n[axes]\na = [0, 1, 2, 3, 4]')
    found = sweep(spec, workers=1)
    np.testing.assert_array_equal(found.data["x"], [1.0, np.nan, np.nan, 2.0, 3.0])
    assert list(found.errors) == ["a = 1", "a = 2"]
    assert "x is numbers over (k) here, but numbers without axes at an earlier point" in found.errors["a = 1"]
    assert "x is text without axes here" in found.errors["a = 2"]
    assert (found.done, found.missing) == (3, 0)


def write_function(folder: Path, code: str, values: str = "[0, 1, 2, 3]") -> Path:
    """A sweep of the function ``own`` over ``a``."""
    (folder / "mine.py").write_text(code)
    return write_spec(folder, f'observable = "mine.py:own"\n[axes]\na = {values}')


CRASHES = """
import os, signal, sys

def own(a: int):
    if a == 1:
        os._exit(3)
    if a == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    if a == 3:
        sys.exit("enough")
    return a
"""


@pytest.mark.slow
def test_points_that_end_their_process_have_failed_and_the_others_are_done(tmp_path: Path) -> None:
    """Also when such a point is the only one to compute, which otherwise would be done in this process."""
    spec = write_function(tmp_path, CRASHES, "[0, 1, 2, 3, 4, 5]")
    found = sweep(spec, workers=2)
    died = "its worker process died ({}): it was killed, crashed, or ran out of memory."
    expected = {
        "a = 1": died.format("EXIT(3)"),
        "a = 2": died.format("SIGKILL(-9)"),
        "a = 3": "SystemExit: enough (mine.py, line 10)",
    }
    assert found.errors == expected
    np.testing.assert_array_equal(found.data["value"], [0, np.nan, np.nan, np.nan, 4, 5])
    single = write_function(tmp_path, CRASHES, "[1]")
    assert sweep(single, tmp_path / "single", workers=2).errors == {"a = 1": died.format("EXIT(3)")}


@pytest.mark.slow
def test_a_trial_that_crashes_or_hangs_does_not_end_the_pricing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crashed = price(write_function(tmp_path, CRASHES, "[1, 0]"), workers=2)
    assert "its worker process died (EXIT(3))" in crashed.errors[0]
    monkeypatch.setattr("foretrain.experiments.sweep.pricing._PROBE_SECONDS", 1.5)
    hanging = "import time\n\ndef own(a: int):\n    time.sleep(1000)\n"
    found = price(write_function(tmp_path, hanging), workers=2)
    assert found.at_least
    assert found.seconds == 1.5 * 4 / 2
    assert found.bytes_per_worker == 0


@pytest.mark.slow
def test_memory_is_that_of_the_points(tmp_path: Path) -> None:
    """Not of this process, and from the log once points are finished."""
    large = "import numpy as np\n\ndef own(a: int):\n    return np.ones(20_000_000).sum()\n"
    spec = write_function(tmp_path, large, "[0, 1]")
    tried = price(spec, workers=2).bytes_per_worker
    assert 1.6e8 < tried < 6e8
    sweep(spec, workers=2)
    assert price(spec, workers=2).bytes_per_worker == pytest.approx(tried, rel=0.3)


def test_an_error_that_says_nothing_is_told_as_such(tmp_path: Path) -> None:
    spec = write_function(tmp_path, "def own(a: int):\n    raise MemoryError\n", "[0]")
    assert sweep(spec, workers=1).errors == {"a = 0": "MemoryError: an error without words (mine.py, line 2)"}


@pytest.mark.slow
def test_what_is_printed_stays_out_of_the_answer(tmp_path: Path) -> None:
    spec = write_function(tmp_path, "def own(a: int):\n    print('from inside')\n    return a\n")
    command = [sys.executable, "-m", "foretrain.cli.main", "sweep", str(spec), "--workers", "2"]
    run = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert "from inside" not in run.stdout
    assert run.stderr.count("from inside") == 4


def test_long_errors_and_many_warnings_are_cut(tmp_path: Path) -> None:
    """Every point has room for the longest in the store."""
    code = (
        "import warnings\n\nclass Odd(Exception):\n    def __str__(self):\n        raise ValueError\n\n"
        "def own(a: int):\n    if a == 0:\n        raise ValueError('x' * 10**6)\n    if a == 1:\n        raise Odd\n"
        "    for number in range(100):\n        warnings.warn(f'{number} ' + 'y' * 10**4)\n    return a\n"
    )
    found = sweep(write_function(tmp_path, code, "[0, 1, 2]"), workers=1)
    assert found.errors["a = 0"] == f"ValueError: {'x' * 500}… (mine.py, line 9)"
    assert found.errors["a = 1"] == "Odd: an error without words (mine.py, line 11)"
    assert len(found.warnings["a = 2"]) < 5 * 520


def test_an_error_names_the_line_of_the_users_file(tmp_path: Path) -> None:
    code = "import numpy as np\n\ndef own(a: int):\n    return np.linalg.inv(np.zeros((2, 2)))\n"
    found = sweep(write_function(tmp_path, code, "[0]"), workers=1)
    assert found.errors == {"a = 0": "LinAlgError: Singular matrix (mine.py, line 4)"}


def test_a_function_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    code = (
        "import threading\n\nLOCK = threading.Lock()\n\ndef own(a: int):\n    with LOCK:\n        return a\n"
    )
    spec = write_function(tmp_path, code)
    with pytest.raises(InputError, match=r"mine.py:own"):
        sweep(spec, workers=2)
    assert sweep(spec, workers=1).done == 4


@pytest.mark.parametrize("default", ["(1, 2)", "float('nan')", "object()", "[3]"])
def test_defaults_that_a_file_cannot_say_are_left_to_the_function(default: str, tmp_path: Path) -> None:
    code = f"def own(a: int, b={default}):\n    return float(b is own.__defaults__[0])\n"
    spec = write_function(tmp_path, code, "[0]")
    assert sweep(spec, workers=1).data["value"].values.tolist() == [1.0]
    assert sweep(spec, workers=1).computed == 0


def test_arrays_of_any_length(tmp_path: Path) -> None:
    answer = "{'x': np.arange(a), 'y': np.zeros(0), 'z': ['t'] * a}"
    code = f"import numpy as np\n\ndef own(a: int):\n    return {answer}\n"
    data = sweep(write_function(tmp_path, code, "[0, 2]"), workers=1).data
    assert data["x"].isel(a=1).values.tolist() == [0, 1]
    assert data["y"].shape == (2, 0)
    assert data["z"].values.tolist() == [["", ""], ["t", "t"]]
