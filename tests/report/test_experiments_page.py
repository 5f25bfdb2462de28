"""The picture and the page of a run of several experiments."""

from __future__ import annotations

from pathlib import Path

import pytest

from foretrain.experiments import Record, Run, Scale, run_many
from foretrain.experiments.runs import Difference
from foretrain.report.experiments_page import write_experiments_page
from foretrain.support.errors import InputError


def test_the_picture_counts_rows_and_names_failures() -> None:
    wrong = tuple(Difference("x", 1.0, 2.0, "", explained) for explained in (True, False, False))
    records = (
        Record("one", rows=5, agree=2, differences=wrong, seconds=3.0),
        Record("two", error="it broke", seconds=1.0),
    )
    counts, times = Run(records, Scale.QUICK, 0).plot().axes
    widths = [[bar.get_width() for bar in container] for container in counts.containers]
    assert widths == [[2, 0], [1, 0], [2, 0]]
    assert [text.get_text() for text in counts.texts] == ["failed"]
    assert [bar.get_width() for bar in times.containers[0]] == [3.0, 1.0]


def test_the_page_of_a_run_that_is_kept(tmp_path: Path) -> None:
    run = run_many(["parameter-count"], keep=tmp_path / "kept", seed=1)
    place = write_experiments_page(run)
    assert place == tmp_path / "kept" / "index.html"
    page = place.read_text(encoding="utf-8")
    assert "scale quick, seed 1" in page
    assert run.verdict in page
    assert 'src="parameter-count/figure.png"' in page
    assert 'href="parameter-count/data.zarr"' in page


def test_a_run_that_is_not_kept_has_no_page() -> None:
    with pytest.raises(InputError, match="keep="):
        write_experiments_page(Run((), Scale.QUICK, 0))
