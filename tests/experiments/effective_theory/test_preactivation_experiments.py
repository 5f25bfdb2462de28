"""Experiments on the theory of preactivations: numbers of the sources, agreement, and whether errors are noticed."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foretrain.compare.comparison import Comparison
from foretrain.compare.initial import compare_initial
from foretrain.experiments import Result, get
from foretrain.experiments.effective_theory import criticality, fluctuations, tensor_statistics
from foretrain.experiments.effective_theory.criticality import AnglePlan, _first_order
from foretrain.experiments.effective_theory.fluctuations import ResidualPlan
from foretrain.experiments.effective_theory.tensor_statistics import LayerPlan
from foretrain.experiments.effective_theory.width_limits import infinite_width
from foretrain.support.store import load, save

TINY: dict[str, Any] = {
    "depth-laws": criticality.DepthPlan(300),
    "angle-flow": AnglePlan(300, (2, 3), {8: 300, 16: 300, 32: 300}),
    "residual-fluctuations": ResidualPlan({"relu": (0.6,)}, {8: 200, 16: 200, 32: 200}, "conditional"),
    "layer-statistics": LayerPlan(("tanh",), 600, "conditional"),
}
NAMES = tuple(TINY)


def tiny_run(name: str, monkeypatch: pytest.MonkeyPatch, seed: int = 0) -> Result:
    """So few draws that only the mechanics and the computed rows can be tested."""
    if name == "residual-fluctuations":
        monkeypatch.setattr(fluctuations, "_VERTEX_COUPLINGS", np.array([-0.5, 0.3, 0.6]))
    return get(name).run(seed=seed, plan=TINY[name])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", NAMES)
def test_tables_are_plain_data_is_stored_and_pictures_draw(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    result = tiny_run(name, monkeypatch)
    assert all(type(row.agrees) in (bool, type(None)) for row in result.table)
    assert all(type(row.expected) is float and type(row.here) is float for row in result.table)
    sampled = [
        row for row in result.table if row.standard_error or "rms z" in row.quantity or "|z|" in row.quantity
    ]
    assert bool(sampled) == (name != "depth-laws")
    assert all(row.agrees for row in result.table if row not in sampled and not row.disputed)
    assert result.figure is not None
    result.plot()
    save(result.data, tmp_path / "data.zarr")
    assert set(load(tmp_path / "data.zarr").data_vars) == set(result.data.data_vars)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["angle-flow", "layer-statistics"])
def test_seeds_decide_the_networks(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first, again, other = (tiny_run(name, monkeypatch, seed).data.z.values for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_leading_coefficient_is_freed_of_logarithms() -> None:
    layer = np.arange(100.0, 1001.0)
    assert criticality.leading_coefficient(
        layer, 0.7 - 3 * np.log(layer) / layer + 5 / layer
    ) == pytest.approx(0.7)


def test_a_wrong_coefficient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """(5.143) as printed has 1.083333 for tanh: the recursion refutes it, as the table says for both functions."""
    limits = {name: dict(values) for name, values in criticality._LIMITS.items()}
    limits["tanh"]["tuned G1 l"] = 1.083333
    monkeypatch.setattr(criticality, "_LIMITS", limits)
    result = tiny_run("depth-laws", monkeypatch)
    refuted = [row.quantity for row in result.table if row.agrees is False]
    printed = [f"{name}: tuned G1 l, as printed (5.143)" for name in ("tanh", "sin")]
    assert refuted == ["tanh: tuned G1 l", *printed]
    assert "26 of 27" in result.verdict


def test_infinite_width_of_a_quadratic() -> None:
    widths = [10, 20, 40, 80]
    inverse = 1 / np.array(widths)
    values = np.stack([2 + 3 * inverse - 40 * inverse**2, -inverse], axis=1)
    limit, error = infinite_width(widths, values, np.full((4, 2), 0.1))
    np.testing.assert_allclose(limit, [2, 0], atol=1e-12)
    assert (error > 0.1).all()


def test_first_order_of_the_angle_starts_at_layer_three() -> None:
    """Layer 2 is exact at any width; deeper, finite width keeps signals further apart."""
    angle, slope = _first_order([2, 3, 10])
    assert angle[[0, 2]] == pytest.approx([1.24685022, 0.545613197])
    assert slope[0] == 0
    assert 0 < slope[1] < slope[2]


@pytest.mark.slow
def test_networks_refute_the_printed_residual_vertex(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = fluctuations._relative_vertex
    plan = dataclasses.replace(TINY["residual-fluctuations"], draws={32: 10_000, 64: 30_000, 128: 20_000})
    monkeypatch.setitem(TINY, "residual-fluctuations", plan)
    monkeypatch.setattr(
        fluctuations, "_relative_vertex", lambda name, gamma, method: exact(name, gamma, "book")
    )
    assert not tiny_run("residual-fluctuations", monkeypatch).agrees


def test_wrong_recursions_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    def scaled(*arguments: Any, **options: Any) -> Comparison:
        found = compare_initial(*arguments, **options)
        return dataclasses.replace(found, theory=1.1 * found.theory)

    monkeypatch.setattr(tensor_statistics, "compare_initial", scaled)
    result = tiny_run("layer-statistics", monkeypatch)
    assert not result.agrees
    assert "do not agree" in result.verdict


def test_entries_that_do_not_fluctuate_are_compared_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    """G1 of one ReLU input is zero in every network."""
    monkeypatch.setitem(TINY, "layer-statistics", LayerPlan(("relu",), 600, "conditional"))
    rows = {row.quantity: row for row in tiny_run("layer-statistics", monkeypatch).table}
    row = rows["relu: G1_00 at layer 5"]
    assert [row.expected, row.here] == pytest.approx([0, 0], abs=1e-12)
    assert row.standard_error is None
    assert row.agrees is True


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.statistical
def test_quick_scale_agrees(name: str) -> None:
    result = get(name).run("quick", seed=0)
    assert [row for row in result.table if row.agrees is False and not row.disputed] == []


@pytest.mark.statistical
def test_the_shift_of_the_angle_is_of_first_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """At layer 3 theory to order 1/n is short of the measured angle by order 1/n² only."""
    monkeypatch.setitem(TINY, "angle-flow", AnglePlan(200, (2, 3), {24: 20_000, 48: 20_000, 96: 20_000}))
    data = tiny_run("angle-flow", monkeypatch).data.sel(measured_layer=3)
    predicted = data.theory + data.slope / data.width
    score = (data.measured - predicted) / data.standard_error
    assert abs(float(score.sel(width=96))) < 3.5
    assert float(((data.measured - data.theory) / data.standard_error).sel(width=24)) > 8
