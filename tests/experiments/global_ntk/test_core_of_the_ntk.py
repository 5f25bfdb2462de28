"""The core of the NTK: views in time against dense matrices, targets, and a small run that is taken up again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from foretrain.empirical.global_ntk import global_ntk
from foretrain.experiments import Scale
from foretrain.experiments.global_ntk import core_measurements as measurements
from foretrain.experiments.global_ntk import core_of_the_ntk as experiment
from foretrain.experiments.global_ntk.core_of_the_ntk import _tail_ratio
from foretrain.experiments.parts import Parts
from foretrain.training.tasks.memory_pro import MemoryPro

PLAN = experiment.Plan(6, 4, (3, 2, 3), 1e-2, (0, 2, 5), 3)
TASK = MemoryPro(*PLAN.periods)
ANGLES = TASK.angles(PLAN.samples)
X = TASK.inputs(ANGLES)
SEED = np.random.SeedSequence(1)


def _kernel(outputs: int = 3):  # type: ignore[no-untyped-def]
    return global_ntk(measurements.network(PLAN.units, outputs, SEED), X)


def _by_pairs(matrix: torch.Tensor) -> torch.Tensor:
    """Axes (places, units) on both sides."""
    places = PLAN.samples * TASK.steps
    return matrix.double().reshape(places, PLAN.units, places, PLAN.units)


def test_only_weights_of_the_recurrent_layer_count() -> None:
    assert set(_kernel().dynamics.parameters) == {"recurrent.weight_ih_l0", "recurrent.weight_hh_l0"}
    everything = global_ntk(measurements.network(PLAN.units, 3, SEED, learning=""), X)
    assert len(everything.dynamics.parameters) == 4


def test_views_are_partial_traces_of_dense_matrices() -> None:
    kernel = _kernel()
    found = measurements.views(kernel, seed=0)
    rows = kernel.site_rows().double()
    expected = {
        "NTK": torch.einsum("aubu->ab", _by_pairs(kernel.dense())) / PLAN.units,
        "core": rows @ rows.t(),
        "K": torch.einsum("aubu->ab", _by_pairs(kernel.K.dense())) / PLAN.units,
    }
    for view, matrix in expected.items():
        values = torch.linalg.svdvals(matrix).numpy()
        here = found.singular_value.sel(view=view).values
        np.testing.assert_allclose(here, values, atol=2e-6 * values[0])
        mode = found["mode"].sel(shown_view=view, number=1).values.ravel()
        np.testing.assert_allclose(matrix.numpy() @ mode, values[0] * mode, atol=1e-4 * values[0])


def test_the_view_of_the_propagator_is_a_partial_trace_too() -> None:
    kernel = _kernel()
    blocks = measurements.propagator_blocks(kernel.P, torch.eye(PLAN.units)) * PLAN.units
    dense = torch.einsum("aubu->ab", _by_pairs(kernel.P.dense())) / PLAN.units
    whole = torch.block_diag(*blocks)
    torch.testing.assert_close(whole, dense, atol=1e-6, rtol=0)
    torch.testing.assert_close(whole.diagonal(), torch.ones(len(whole)).double(), atol=1e-6, rtol=0)
    core = {"core": measurements.core_view(kernel)}
    found = measurements._described(core, blocks / PLAN.units, kernel).singular_value.sel(view="P")
    np.testing.assert_allclose(PLAN.units * found, torch.linalg.svdvals(dense).numpy(), atol=1e-6)


def test_sampled_blocks_of_the_propagator_are_within_their_errors() -> None:
    kernel = _kernel()
    exact = measurements.propagator_blocks(kernel.P, torch.eye(PLAN.units)) * PLAN.units
    draws = torch.stack([measurements.sampled_propagator_blocks(kernel.P, 50, seed) for seed in range(40)])
    spread = draws.std(0)
    later = torch.ones(TASK.steps, TASK.steps).tril(-1).bool()
    assert float((draws[:, :, ~later] - exact[:, ~later]).abs().max()) < 1e-6
    z = ((draws.mean(0) - exact) / (spread / 40**0.5))[:, later]
    assert bool((spread[:, later] > 0).all())
    assert 0.7 < float(z.square().mean().sqrt()) < 1.4  # samples share signs: fewer are independent


def test_spectra_alone_are_those_of_the_whole_experiment() -> None:
    result = experiment.core_spectra(PLAN, 0)
    assert set(result.data.view.values) == {"NTK", "core", "P"}
    assert {row.quantity[:2] for row in result.table} == {"3C", "3D"}
    assert result.figure is not None
    assert result.figure() is not None


def test_pair_views_expand_and_average() -> None:
    kernel = _kernel()
    found = measurements.pair_views(kernel)
    dense = _by_pairs(kernel.dense()).sum((1, 3)) / PLAN.units
    values = torch.linalg.svdvals(dense).numpy()
    np.testing.assert_allclose(found.singular_value.sel(view="NTK").values, values, atol=2e-6 * values[0])
    trace = measurements.views(kernel, seed=0).singular_value.sel(view="NTK").values
    assert np.abs(trace - values).max() > 1e-2 * values[0]  # another matrix
    propagator = _by_pairs(kernel.P.dense()).sum((1, 3)) / PLAN.units
    np.testing.assert_allclose(
        found.singular_value.sel(view="P").values, torch.linalg.svdvals(propagator).numpy(), atol=1e-5
    )


def test_the_direct_sum_is_the_kernel_and_the_proxy_is_not() -> None:
    kernel = _kernel()
    found = measurements.likeness(kernel, seed=0)
    dense, proxy = kernel.dense().double(), kernel.concatenated_core.dense().double()
    expected = float((dense * proxy).sum() / (dense.norm() * proxy.norm()))
    cosine = found.cosine.sel(operator="proxy").item()
    assert cosine == pytest.approx(expected, abs=1e-5)
    assert cosine < 0.99
    assert found.cosine.sel(operator="direct sum").item() == pytest.approx(1, abs=1e-6)
    flat = float(dense.trace() / (dense.norm() * len(dense) ** 0.5))
    assert found.cosine.sel(operator="identity").item() == pytest.approx(flat, abs=1e-5)


def test_modes_needed_by_hand() -> None:
    values = np.array([1.0, 6.0, 3.0])
    assert measurements.modes_needed(values, 0.6) == 1
    assert measurements.modes_needed(values, 0.61) == 2
    assert measurements.modes_needed(values, 0.95) == 3
    assert measurements.modes_needed(values, 0.95, power=2) == 2  # 36 + 9 of 46
    assert measurements.modes_needed(np.ones(100)) == 95


def test_tails_are_compared_relative_to_the_first_value() -> None:
    core = 0.8 ** np.arange(60)
    slower = 7 * 0.8 ** np.maximum(np.arange(60) - 2, 0)
    assert _tail_ratio(slower, core) == pytest.approx(0.8**-2)
    assert np.isnan(_tail_ratio(slower, np.eye(60)[0]))


def test_targets_have_one_length_and_live_where_they_should() -> None:
    core = measurements.core_view(_kernel(outputs=1))
    found = measurements.targets(TASK, ANGLES, core)
    lengths = [float(target.norm()) for target in found.values()]
    np.testing.assert_allclose(lengths, lengths[0])
    for name in ("response, angle", "response, constant"):
        assert not found[name][:, : TASK.periods["response"].start].any()
    mode = found["aligned"].flatten()
    values = torch.linalg.eigvalsh(core)
    torch.testing.assert_close(core @ mode, values[-2] * mode, atol=1e-6 * float(values[-1]), rtol=0)


def test_short_descents_follow_the_frozen_kernel() -> None:
    model = measurements.network(PLAN.units, 1, SEED)
    kernel = measurements.output_kernel(model, X)
    states = model(X)[..., 0].flatten()
    weights = [value for value in model.parameters() if value.requires_grad]
    rows = [torch.autograd.grad(state, weights, retain_graph=True) for state in states]
    jacobian = torch.stack([torch.cat([part.flatten() for part in row]) for row in rows]).double()
    np.testing.assert_allclose(kernel, (jacobian @ jacobian.t()).numpy(), atol=1e-5 * kernel.max())
    target = 0.01 * measurements.targets(TASK, ANGLES, measurements.core_view(_kernel(1)))["aligned"]
    eta, foretold = measurements.frozen_losses(kernel, target.numpy(), 4)
    assert eta * np.linalg.eigvalsh(kernel)[-1] == pytest.approx(1)
    losses = measurements.learned(model, X, target, eta, 4)
    assert losses[0] == 1
    assert losses[4] < 0.9
    np.testing.assert_allclose(losses, foretold, atol=5e-3)


class _Counting(Parts):
    computed = 0

    def get(self, name, compute):  # type: ignore[no-untyped-def]
        def counted():  # type: ignore[no-untyped-def]
            self.computed += 1
            return compute()

        return super().get(name, counted)


def test_a_small_run_is_taken_up_again_and_draws(tmp_path: Path) -> None:
    first = _Counting(tmp_path / "parts")
    result = experiment.core_of_the_ntk(PLAN, 0, first)
    assert first.computed == 1 + 3 + 2 + 3
    first.close()
    again = _Counting(tmp_path / "parts")
    second = experiment.core_of_the_ntk(PLAN, 0, again)
    assert again.computed == 0
    assert [repr(row) for row in second.table] == [repr(row) for row in result.table]
    loss = result.data.loss.mean("output").values
    assert loss[-1] < loss[0]
    assert result.data.loss.sizes["step"] == PLAN.checkpoints[-1] + 1
    told = {row.quantity: row for row in result.table}
    assert told["3B: 1 - cosine of NTK_S with the direct sum, at most"].agrees
    assert result.figure is not None
    result.plot()


@pytest.mark.statistical
def test_quick_run_agrees() -> None:
    assert experiment.core_of_the_ntk(experiment.PLANS[Scale.QUICK], 0, Parts()).agrees
