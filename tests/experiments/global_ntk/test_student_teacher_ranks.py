"""Ranks of students: measurements against brute force, trends on made-up ranks, and a run that goes on."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from foretrain.empirical.global_ntk import GlobalNTK, global_ntk
from foretrain.experiments.global_ntk import student_teacher_ranks as experiment
from foretrain.experiments.global_ntk import student_teacher_trends as trends
from foretrain.experiments.parts import Parts
from foretrain.experiments.registry import Scale
from foretrain.support.seeds import spawn
from foretrain.training.tasks.student_teacher import StudentTeacher

SEED = spawn(5, 1)[0]
TINY = replace(
    experiment.PLANS[Scale.QUICK],
    sweeps={
        "recurrent": experiment._Sweep((0.5, 1.0, 4.0), (2, 4), (0.5, 1.0, 4.0), (4,)),
        "input": experiment._Sweep((1.0,), (2, 4), (1.0,), (2, 4)),
    },
    seeds=2,
    steps=4,
    measured=3,
    batch=5,
    units=6,
    trial=7,
)


def student_kernel(trainable: str = "recurrent") -> GlobalNTK:
    task = StudentTeacher(n_in=3, units=4, steps=5, input_rank=2, trainable=trainable, seed=1)  # type: ignore[arg-type]
    return global_ntk(task.student(1.4), task.inputs(3, seed=2))


def participation(matrix: np.ndarray) -> float:
    return float(np.trace(matrix) ** 2 / np.sum(matrix**2))


@pytest.mark.parametrize("trainable", ["recurrent", "input"])
def test_ranks_of_both_definitions_by_brute_force(trainable: str) -> None:
    kernel = student_kernel(trainable)
    A = kernel.dense().numpy().reshape(15, 4, 15, 4)
    reduced = {
        ("temporal", "traced"): np.einsum("aubu->ab", A),
        ("spatial", "traced"): np.einsum("aiaj->ij", A),
        ("temporal", "pairs"): A.sum(axis=(1, 3)),
        ("spatial", "pairs"): A.sum(axis=(0, 2)),
    }
    for view in ("temporal", "spatial"):
        traced = experiment._traced(kernel, view, TINY, SEED)
        pairs = experiment._over_pairs(kernel, view, TINY, SEED)
        assert traced[0] == pytest.approx(participation(reduced[view, "traced"]), rel=1e-9)
        assert pairs[0] == pytest.approx(participation(reduced[view, "pairs"]), rel=1e-9)
        assert abs(traced[0] / pairs[0] - 1) > 0.01  # the definitions are not the same


def test_modes_hold_their_share_of_the_true_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = student_kernel()
    A = kernel.dense().numpy().reshape(15, 4, 15, 4)
    monkeypatch.setattr(experiment, "_ROWS_PER_PLACE", 2000)
    found = experiment._modes(kernel, SEED)
    for count, matrix in zip(found, (np.einsum("aubu->ab", A), np.einsum("aiaj->ij", A))):
        shares = np.cumsum(np.linalg.eigvalsh(matrix)[::-1]) / np.trace(matrix)
        assert count == np.flatnonzero(shares >= 0.95)[0] + 1
    assert experiment._holding(torch.zeros(3, 3)) == 0


def test_growth_is_that_of_a_gradient_through_time() -> None:
    task = StudentTeacher(n_in=3, units=4, steps=5, input_rank=2, seed=1)
    student, x = task.student(1.4), task.inputs(3, seed=2)
    found = experiment._growth(global_ntk(student, x), SEED)
    W, W_in, _ = (matrix.detach() for matrix in student.matrices.values())
    from foretrain.operators.vectors import random_signs

    signs = random_signs(3, 4, SEED, dtype=torch.float64, device=torch.device("cpu"))
    first = torch.tanh(x[:, 0] @ W_in.t()).requires_grad_()
    h = first
    for t in range(1, 5):
        h = torch.tanh(h @ W.t() + x[:, t] @ W_in.t())
    slope = torch.autograd.grad((h * signs).sum(), first)[0]
    assert found == pytest.approx(float(slope.norm() / signs.norm()), rel=1e-10)


def test_one_sided_tests_over_seeds() -> None:
    values = np.array([0.8, 0.9, 0.85])
    found = trends.below(values)
    assert found.mean == pytest.approx(0.85)
    assert found.error == pytest.approx(0.05 / np.sqrt(3))
    assert not found.is_below  # t = 5.2, and 6.96 is needed with two degrees of freedom
    assert trends.below(values - 0.2).is_below
    assert not trends.below(np.ones(3)).is_below


def test_a_crossing_lies_on_the_line_between_points() -> None:
    x = np.array([0.0, 1.0, 3.0])
    assert trends._crossing(x, np.array([1.0, 0.8, 0.4]), 0.5) == pytest.approx(2.5)
    assert np.isnan(trends._crossing(x, np.ones(3), 0.5))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("students") / "parts"


@pytest.fixture(scope="module")
def data(kept: Path) -> xr.Dataset:
    return experiment.student_teacher_ranks(TINY, 0, Parts(kept)).data


@pytest.mark.slow
def test_a_second_run_goes_on_from_the_finished_students(
    data: xr.Dataset, kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experiment, "_part", lambda *_: pytest.fail("computed again"))
    again = experiment.student_teacher_ranks(TINY, 0, Parts(kept))
    xr.testing.assert_equal(again.data, data)
    assert again.figure is not None
    again.plot()


@pytest.mark.slow
def test_what_was_measured_and_trained(data: xr.Dataset) -> None:
    gains = trends.gain_sweep(data)
    assert gains.gain.values.tolist() == [0.5, 1.0, 4.0]
    assert bool(gains["rank"].notnull().all())
    assert bool(trends.gain_sweep(data, 2)["rank"].sel(moment="initial").notnull().all())
    assert bool(trends.gain_sweep(data, 2)["rank"].sel(moment="trained").isnull().all())
    assert trends.input_sweep(data)["rank"].notnull().all()
    assert (
        gains.growth.sel(moment="initial", gain=4.0).mean()
        > gains.growth.sel(moment="initial", gain=0.5).mean()
    )


@pytest.mark.slow
def test_trends_follow_the_ranks(data: xr.Dataset) -> None:
    """Ranks made up: a peak in time, a fall in space, growth with the inputs; then the same rank everywhere."""
    noise = 1 + 0.001 * data.seed
    peak = xr.DataArray([1.0, 9.0, 2.0], {"gain": data.gain}) * data.input_rank
    fall = xr.DataArray([6.0, 5.0, 1.0], {"gain": data.gain})
    ranks = xr.concat([peak, fall], xr.Variable("view", ["temporal", "spatial"])) * noise
    kinds = ("train W, temporal", "train W, spatial", "train W_in, temporal")
    for values, expected in ((ranks, True), (noise * xr.ones_like(ranks), False)):
        made = data.assign(rank=values.broadcast_like(data["rank"]).transpose(*data["rank"].dims))
        rows = [
            row for row in trends.table(made) if row.quantity.startswith(kinds) and row.agrees is not None
        ]
        assert [row.agrees for row in rows] == [expected] * 16
        assert "W_in reads the inputs" in rows[0].note


@pytest.mark.statistical
def test_published_trends_hold_at_initialisation() -> None:
    recurrent = experiment._Sweep((0.0, 1.25, 3.0), (16,), (), ())
    inputs = experiment._Sweep((1.0,), (1, 4, 16), (), ())
    plan = replace(experiment.PLANS[Scale.QUICK], sweeps={"recurrent": recurrent, "input": inputs}, steps=1)
    rows = experiment.student_teacher_ranks(plan, 1, Parts()).table
    tested = [row for row in rows if "at initialisation" in row.quantity and row.agrees is not None]
    assert len(tested) == 8
    assert all(row.agrees for row in tested)
