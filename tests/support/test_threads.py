"""Work on all cores: order, and work inside work, which must not wait for the threads it runs on."""

from __future__ import annotations

from foretrain.support.threads import over_cores


def test_results_come_in_the_order_of_the_parts() -> None:
    assert over_cores(lambda n: n * n, range(20)) == [n * n for n in range(20)]


def test_work_inside_work_comes_to_an_end() -> None:
    def inner(n: int) -> int:
        return sum(over_cores(lambda m: n * m, range(10)))

    assert over_cores(inner, range(20)) == [45 * n for n in range(20)]
