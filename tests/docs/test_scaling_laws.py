"""The fitted costs that the page on scaling shows."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from bench import scaling
from bench.laws import Law, laws
from bench.scaling import (
    CLUSTER,
    INTERNET,
    Fit,
    Fleet,
    conditions,
    duration,
    fit,
    fits_of,
    fitted_table,
    large_table,
    latest,
    seconds_on,
    work,
)

SIZES = (100, 200, 400, 800)


def law(powers: tuple[int, ...], **more: Any) -> Law:
    return Law("job", "N", "inputs", SIZES, powers, lambda size: lambda: None, lambda size: 8 * size, **more)


def test_constants_of_a_known_law_are_found() -> None:
    sizes = np.array(SIZES, dtype=float)
    found = fit(law((1, 2)), 3e-4 * sizes + 2e-7 * sizes**2)
    assert found.constants == pytest.approx([3e-4, 2e-7])
    assert found.worst < 1e-12
    assert found.at(1e6) == pytest.approx(300 + 2e5)
    assert 1 < found.exponent < found.last < 2


def test_constants_are_never_negative_and_a_wrong_power_is_seen() -> None:
    sizes = np.array(SIZES, dtype=float)
    found = fit(law((0, 1)), 1e-6 * sizes**2)
    assert min(found.constants) >= 0
    assert found.exponent == pytest.approx(2)
    assert found.error == pytest.approx(0, abs=1e-9)
    assert found.worst > 0.3


def test_exponents_have_the_error_of_a_straight_line() -> None:
    sizes, source = np.array(SIZES, dtype=float), np.random.default_rng(0)
    fits = [fit(law((1,)), sizes * np.exp(0.1 * source.standard_normal(4))) for _ in range(400)]
    scores = [(found.exponent - 1) / found.error for found in fits]
    assert np.median(np.abs(scores)) == pytest.approx(0.816, rel=0.15)  # of Student's t with two degrees


def test_time_on_a_fleet_is_that_of_work_or_of_transport() -> None:
    found = fit(law((1,)), np.array(SIZES, dtype=float))
    assert seconds_on(law((1,)), found, 1e6, CLUSTER) == pytest.approx(1e3)
    heavy = law((1,), moved=lambda size: 1e8 * size)
    assert seconds_on(heavy, found, 1e6, CLUSTER) == pytest.approx(1e14 / CLUSTER.bandwidth)
    alone = law((1,), divides=False)
    assert seconds_on(alone, found, 1e6, CLUSTER) == pytest.approx(1e6)
    assert [duration(seconds) for seconds in (5e-4, 30, 7200, 1e5, 1e9)] == [
        "5e+02 µs",
        "30 s",
        "2 h",
        "1.2 days",
        "32 years",
    ]


def test_beyond_a_strip_the_linear_part_is_paid_for_every_strip() -> None:
    whole, found = law((1, 2)), fit(law((1, 2)), 3e-4 * np.array(SIZES) + 2e-7 * np.array(SIZES) ** 2.0)
    strips = law((1, 2), strip=1000)
    assert work(strips, found, 500) == work(whole, found, 500) == found.at(500)
    # 100 strips of 1000 rows; those above the diagonal pass half of the square once more
    again = sum(3e-4 * 1000 * (100 - strip) for strip in range(100))
    assert work(strips, found, 1e5) - found.at(1e5) == pytest.approx(again, rel=0.02)
    assert seconds_on(strips, found, 1e5, CLUSTER) == pytest.approx(work(strips, found, 1e5) / 1e3)


@pytest.mark.parametrize(
    ("more", "size", "fleet", "says"),
    [
        ({"divides": False}, 1e6, CLUSTER, "on one machine; 8 MB"),
        ({"divides": False}, 1e12, CLUSTER, "does not fit: 8 TB in one machine"),
        ({"divides": False}, 1e8, INTERNET, "does not fit: 800 MB in one machine"),
        ({"divides": False, "held": lambda size: 10.0}, 1e8, INTERNET, "on one machine; 800 MB"),
        ({"held": lambda size: size**2}, 1e6, CLUSTER, "does not fit: 1 TB in one machine"),
        ({}, 1e8, INTERNET, "; 800 MB"),
        ({}, 1e15, INTERNET, "does not fit: 8 PB in all"),
    ],
)
def test_what_does_not_fit_has_no_time(more: dict[str, Any], size: float, fleet: Fleet, says: str) -> None:
    found = fit(law((1,)), np.array(SIZES, dtype=float))
    assert scaling._cell(law((1,), **more), found, size, fleet).endswith(says)


def test_laws_can_be_made_at_their_smallest_size() -> None:
    cheap = (
        "averages of all pairs",
        "trace, float32",
        "one product with the NTK",
        "escape time",
        "not recorded",
    )
    for each in laws():
        assert len(each.sizes) >= 3
        assert sorted(each.sizes) == list(each.sizes)
        assert each.result(1e3) > 0
        assert each.bytes_moved(1e3) > 0
        if any(words in each.name for words in cheap):
            assert callable(each.make(each.sizes[0]))


def test_names_tell_laws_apart() -> None:
    names = [each.name for each in laws()]
    assert len(set(names)) == len(names)
    assert {each.size for each in laws()} >= {"N", "C", "P", "T", "L"}


def test_some_laws_are_measured_beside_what_was_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *_ = laws()
    kept: dict[str, Any] = {"fits": [asdict(fit(one, np.ones(len(one.sizes)))) for one in (first, second)]}
    monkeypatch.setattr(scaling, "latest", lambda: kept)
    monkeypatch.setattr(scaling, "core_seconds", lambda job: 2.0)
    monkeypatch.setattr(scaling.records, "path_of", lambda kind, date: tmp_path / "scaling-2031-05-06.json")
    record = scaling.measure([second])
    assert [found.seconds[0] for found in fits_of(record)] == [1.0, 2.0]
    assert scaling.records.read(tmp_path / "scaling-2031-05-06.json")["fits"] == record["fits"]


def test_the_record_holds_every_law_and_both_tables_show_it() -> None:
    record = latest()
    names = [found.name for found in fits_of(record)]
    assert names == [each.name for each in laws()]
    for table in (fitted_table(record), large_table(record)):
        assert all(name in table for name in names)
        assert {line.count(" | ") for line in table.splitlines()[2:]} == {table.splitlines()[0].count(" | ")}
    assert "load of the machine" in conditions(record)
    assert all(isinstance(found, Fit) and found.date.startswith("20") for found in fits_of(record))
    assert record["versions"]["foretrain"]
