"""Tensors of random networks, the six-point vertex and nearly-Gaussian laws: tables, pictures, and false theory."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrain.compare.comparison import Comparison
from foretrain.compare.initial import compare_initial
from foretrain.experiments import Result, get
from foretrain.experiments.effective_theory import fluctuations, foundations, tensor_statistics
from foretrain.experiments.effective_theory.tensor_statistics import Plan
from foretrain.experiments.effective_theory.width_limits import WidthPlan
from foretrain.gaussian.action import QuarticAction
from foretrain.support.store import load, save
from foretrain.theory.architecture import MLP
from foretrain.theory.recursions.six_point import metric_cumulants

# So few draws that only mechanics and computed rows can be tested.
TINY: dict[str, Any] = {
    "ntk-statistics": Plan({"relu": ("Theta", "H1", "D", "F", "A", "B")}, 3, 16, 500, 400),
    "dntk-statistics": Plan({"tanh": ("P", "Q", "R", "S", "T", "U")}, 2, 16, 500, 400),
    "six-point-vertex": WidthPlan({8: 4000, 16: 4000, 32: 4000}),
    "nearly-gaussian": foundations.GaussianPlan(100_000),
}
NAMES = tuple(TINY)


def tiny_run(name: str, seed: int) -> Result:
    return get(name).run(seed=seed, plan=TINY[name])


@pytest.fixture(autouse=True)
def few_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foundations, "_PAIRS", ((0, 0), (0, 1)))
    monkeypatch.setattr(foundations, "_FOURS", ((0, 0, 0, 0), (0, 0, 1, 1)))


def sampled(result: Result) -> list[Any]:
    return [row for row in result.table if row.standard_error or "z" in row.quantity.split()]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_tables_are_plain_data_is_stored_and_pictures_draw(name: str, tmp_path: Path) -> None:
    result = tiny_run(name, 1)
    assert all(type(row.agrees) in (bool, type(None)) for row in result.table)
    computed = [row for row in result.table if row.agrees is not None and not row.standard_error]
    assert all(row.agrees for row in computed if "z" not in row.quantity.replace("|", "").split()), computed
    assert result.figure is not None
    result.plot()
    save(result.data, tmp_path / "data.zarr")
    assert set(load(tmp_path / "data.zarr").data_vars) == set(result.data.data_vars)


def test_seeds_decide_the_networks(monkeypatch: pytest.MonkeyPatch) -> None:
    only = fluctuations._cases()[:1]
    monkeypatch.setattr(fluctuations, "_cases", lambda: only)
    first, again, other = (tiny_run("six-point-vertex", seed).data.limit.values for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.slow
def test_wrong_tensors_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(*arguments: Any, **options: Any) -> Comparison:
        found = compare_initial(*arguments, **options)
        return dataclasses.replace(found, theory=1.5 * found.theory)

    monkeypatch.setattr(tensor_statistics, "compare_initial", scaled)
    result = tiny_run("ntk-statistics", 0)
    assert not result.agrees
    assert "do NOT all agree" in result.verdict


def test_a_wrong_depth_law_is_noticed() -> None:
    deep = tensor_statistics.ratios(tensor_statistics.ntk_laws, ("tanh",), 400)
    assert all(row.agrees for row in tensor_statistics.law_rows(deep))
    wrong = deep.assign(coefficient=1.1 * deep.coefficient)
    assert not any(row.agrees for row in tensor_statistics.law_rows(wrong))


def test_sampled_metrics_have_exact_cumulants() -> None:
    """ReLU at width 8: mean 1, and variance and third cumulant in closed form."""
    mlp = MLP("relu", 3, 8, n_in=1, C_W=2.0)
    metrics = fluctuations.sampled_metrics(mlp, 200_000, seed=0)
    assert metrics.mean(axis=1) == pytest.approx([1, 1], abs=5 * math.sqrt(5 / 8 / 200_000) * 2)
    second = 8 * metrics.var(axis=1)
    assert second == pytest.approx(metric_cumulants(mlp, 1.0)[1:, 0], rel=0.05)


def test_third_cumulant_is_unbiased() -> None:
    """The mean over all samples of three from {0, 0, 1, ..} with replacement is the cumulant p (1 - p)(1 - 2p)."""
    p, total = 0.25, 0.0
    for number in range(8):
        sample = np.array([number >> bit & 1 for bit in range(3)], dtype=float)
        weight = p ** sample.sum() * (1 - p) ** (3 - sample.sum())
        total += weight * float(fluctuations._third_cumulant(sample))
    assert total == pytest.approx(p * (1 - p) * (1 - 2 * p))


def test_partition_ratio_against_direct_integration() -> None:
    from scipy.integrate import quad

    for g in (0.05, 0.7, 3.0):
        direct = quad(lambda z, g=g: math.exp(-(z**2) / 2 - g * z**4 / 24), -12, 12, epsabs=1e-13)[0]
        assert foundations.partition_ratio(g) == pytest.approx(direct / math.sqrt(2 * math.pi), rel=1e-9)


@pytest.mark.slow
def test_first_order_that_is_wrong_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = QuarticAction.two_point
    monkeypatch.setattr(QuarticAction, "two_point", lambda self: self.K + 0.9 * (exact(self) - self.K))
    wrong = [row.quantity for row in tiny_run("nearly-gaussian", 0).table if row.agrees is False]
    assert "two-point: power of g that first order leaves" in wrong


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.statistical
def test_quick_scale_agrees(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    result = get(name).run("quick", seed=0)
    assert result.agrees, result.verdict
