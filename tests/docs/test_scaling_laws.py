"""The fitted costs that the page on scaling shows."""

import numpy as np
import pytest
from bench.scaling import Law, fit, fitted_table, large_table, latest, laws


def law(powers: tuple[int, ...]) -> Law:
    return Law("job", "inputs", (100, 200, 400, 800), powers, lambda size: lambda: None, float, float)


def test_constants_of_a_known_law_are_found() -> None:
    sizes = np.array(law((1, 2)).sizes, dtype=float)
    found = fit(law((1, 2)), 3e-4 * sizes + 2e-7 * sizes**2)
    assert found.constants == pytest.approx([3e-4, 2e-7])
    assert found.worst < 1e-12
    assert found.at(1e6) == pytest.approx(300 + 2e5)
    assert 1 < found.exponent < 2


def test_constants_are_never_negative_and_a_wrong_power_is_seen() -> None:
    sizes = np.array(law((0, 1)).sizes, dtype=float)
    found = fit(law((0, 1)), 1e-6 * sizes**2)
    assert min(found.constants) >= 0
    assert found.exponent == pytest.approx(2)
    assert found.worst > 0.3


def test_the_record_holds_every_law_and_both_tables_show_it() -> None:
    record = latest()
    names = [entry["name"] for entry in record["fits"]]
    assert names == [each.name for each in laws()]
    for table in (fitted_table(record), large_table(record)):
        assert all(name in table for name in names)
    assert record["date"].startswith("20")
    assert record["versions"]["foretrain"]
