"""Records: what is kept is what is read, the newest one is found, and a file is never half-written."""

import math
from pathlib import Path

import pytest
from bench.harness import records

from foretrain.support.errors import FileError


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    content = {"ratio": 2.5, "name": "⟨σσ⟩", "none": None, "nested": {"times": [1.0, 2.0]}}
    target = records.path_of("bench", "2031-05-06T10:00:00+00:00", tmp_path)
    assert target.name == "bench-2031-05-06.json"
    assert records.read(records.keep(content, target)) == content
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_numbers_that_are_not_finite_become_words_that_float_reads(tmp_path: Path) -> None:
    target = records.keep({"errors": [math.inf, math.nan, 1.0]}, tmp_path / "bench-2031-05-06.json")
    inf, nan, one = (float(value) for value in records.read(target)["errors"])
    assert inf == math.inf
    assert math.isnan(nan)
    assert one == 1.0


def test_a_record_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    target = records.keep({"runs": []}, tmp_path / "bench-2031-05-06.json")
    with pytest.raises(TypeError):
        records.keep({"runs": object()}, target)
    assert records.read(target) == {"runs": []}


def test_the_newest_of_a_kind_is_found(tmp_path: Path) -> None:
    for kind, date in (("bench", "2031-05-06"), ("bench", "2030-12-31"), ("scaling", "2032-01-01")):
        records.keep({"is": f"{kind} {date}"}, records.path_of(kind, date, tmp_path))
    (tmp_path / "bench-notes.json").write_text("{}")
    assert records.latest("bench", "make bench", tmp_path)["is"] == "bench 2031-05-06"


def test_without_a_record_the_command_is_told(tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"run make bench\."):
        records.latest("bench", "make bench", tmp_path)


@pytest.mark.parametrize("text", ['{"runs": [', "[1, 2]"])
def test_what_is_no_record_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bench-2031-05-06.json"
    path.write_text(text)
    with pytest.raises(FileError, match="is no record"):
        records.read(path)


def test_facts_of_the_machine_name_what_a_reader_needs() -> None:
    facts = records.machine_facts()
    assert facts["cores"] >= 1
    assert facts["processor"]
    assert set(facts["versions"]) == {"foretrain", "numpy", "scipy", "torch"}
    assert facts["date"].endswith("+00:00")
