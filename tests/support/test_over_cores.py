"""Work on all cores: results in order, and torch's own threads given back whatever happens."""

from __future__ import annotations

import pytest
import torch
from threadpoolctl import threadpool_info, threadpool_limits

from foretrain.support.threads import (
    PARTS_AT_ONCE,
    core_count,
    one_thread_of_blas,
    over_cores,
    thread_count,
    torch_over_cores,
)


def test_results_come_in_the_order_of_the_parts() -> None:
    parts = range(2 * PARTS_AT_ONCE + 3)
    expected = [part**2 for part in parts]
    assert over_cores(lambda part: part**2, parts) == expected
    assert torch_over_cores(lambda part: part**2, parts, "squares") == expected
    assert torch_over_cores(lambda part: part**2, parts, "squares", uses_blas=True) == expected
    assert torch_over_cores(lambda part: part**2, range(0), "squares") == []


def test_torch_has_one_thread_inside_and_its_own_number_afterwards() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert torch_over_cores(lambda _: torch.get_num_threads(), range(1), "threads") == [1]
        assert torch.get_num_threads() == 2
        with pytest.raises(ZeroDivisionError):
            torch_over_cores(lambda part: 1 / part, range(3), "failures")
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_products_of_numpy_have_one_thread_inside_and_their_own_number_afterwards() -> None:
    def threads() -> set[int]:
        return {library["num_threads"] for library in threadpool_info() if library["user_api"] == "blas"}

    with threadpool_limits(2, user_api="blas"):
        before = threads()
        with one_thread_of_blas():
            assert threads() == {1}
        assert threads() == before != {1}


@pytest.mark.parametrize("stated", ["", "0", "many", "1", "1,2", "9999"])
def test_the_variable_for_threads_lessens_them(stated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", stated)
    assert thread_count() == (1 if stated.startswith("1") else core_count())


def test_work_inside_work_comes_to_an_end() -> None:
    def inner(n: int) -> int:
        return sum(over_cores(lambda m: n * m, range(10)))

    assert over_cores(inner, range(20)) == [45 * n for n in range(20)]
