"""The experiments on quadratic models and effective kernels: their tables, their pictures, the same seed twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foretrain.experiments.effective_theory import nearly_kernel_methods as kernels
from foretrain.experiments.effective_theory.nearly_kernel_methods import PLANS, quadratic_models
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Result, Scale


@pytest.fixture(scope="module")
def models() -> Result:
    return quadratic_models(PLANS["quadratic_models"][Scale.QUICK], 0)


@pytest.mark.slow
def test_the_closed_form_is_right_to_first_order_and_one_printed_formula_is_not(models: Result) -> None:
    wrong = [row for row in models.table if row.agrees is False]
    assert [row.quantity.split(",")[0] for row in wrong] == [
        "symmetric trained kernel (11.142) against (11.132)"
    ]
    assert wrong[0].here == pytest.approx(2.0, rel=0.01)
    assert wrong[0].note
    halvings = [row.here for row in models.table if "error falls per halving" in row.quantity]
    assert len(halvings) == 8
    assert halvings == pytest.approx([4.0] * 8, rel=0.02)


@pytest.mark.slow
def test_the_fit_of_the_line_goes_through_its_samples(models: Result) -> None:
    data = models.data
    places = [int(np.argmin(np.abs(data.x.values - value))) for value in data["sample"].values[[0, 3, 6]]]
    fits = data.line_formula.isel(x=places).values
    assert fits == pytest.approx(np.broadcast_to(data.line_y.values[[0, 3, 6]], fits.shape), abs=1e-8)
    assert "2.00" in models.verdict


@pytest.mark.slow
def test_the_noise_follows_the_seed(models: Result) -> None:
    again, other = (quadratic_models(PLANS["quadratic_models"][Scale.QUICK], seed) for seed in (0, 1))
    assert again.data.equals(models.data)
    assert not other.data.line_y.equals(models.data.line_y)


@pytest.mark.slow
def test_the_pictures_have_all_panels(models: Result) -> None:
    assert models.figure is not None
    assert len(models.plot().axes) == 6


@pytest.mark.slow
def test_effective_kernels_of_tiny_networks_and_their_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "_SIZE", 0.1)
    plan = kernels.EffectivePlan({2: (8, 16, 32), 3: (8, 16, 32)}, 3, 16, 3)
    found = kernels.effective_kernel(plan, 0, Parts(tmp_path / "kept", {"seed": 0}))
    assert len(list((tmp_path / "kept").glob("*.zarr"))) == 3 * 3 + 4
    again = kernels.effective_kernel(plan, 0, Parts(tmp_path / "kept", {"seed": 0}))
    assert again.data.equals(found.data)
    assert len(found.table) == 3 * 4 + 3
    cautious = [row for row in found.table if row.note.startswith("No blind test")]
    assert len(cautious) == 3 * 3
    wrong = sum(row.agrees is False for row in found.table)
    assert ("as expected, so" in found.verdict) == (wrong == 0)
    assert wrong == 0 or f"{wrong} of 15 powers are NOT as expected" in found.verdict
    assert not any(row.note.startswith("No blind test") for row in kernels._width_rows(found.data, ""))
    sized = [row for row in found.table if "targets' size" in row.quantity]
    assert all(row.agrees for row in sized), sized
    assert (found.data.left_second < found.data.change).all()
    assert found.figure is not None
    assert len(found.plot().axes) == 4


@pytest.mark.statistical
def test_effective_kernels_agree_to_the_next_order() -> None:
    found = kernels.effective_kernel(kernels.PLANS["effective_kernel"][Scale.QUICK], 0, Parts())
    tested = [
        row
        for row in found.table
        if "dNTK and ddNTKs leave" in row.quantity or "odd part that" in row.quantity
    ]
    assert len(tested) == 6
    assert all(row.agrees for row in tested), tested
