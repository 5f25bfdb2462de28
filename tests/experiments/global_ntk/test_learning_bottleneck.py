"""The learning bottleneck: what is watched is what it says, by brute force, and the table judges both ways."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import xarray as xr

from foretrain.experiments import Scale
from foretrain.experiments.global_ntk import learning_bottleneck as experiment
from foretrain.experiments.global_ntk.learning_bottleneck import Sizes, Training
from foretrain.experiments.parts import Parts
from foretrain.training.tasks.memory_pro import MemoryPro, Recurrent

TASK = MemoryPro(2, 1, 2)
SIZES = Sizes(units=24, batch=4, inputs=8, angles=4, records=4, amplitude=0.9, periods=(2, 1, 2))


def states_jacobian(model: Recurrent, x: torch.Tensor) -> torch.Tensor:
    """d h / d theta of all states, row by row: (places, units, parameters)."""
    states, _ = model.recurrent(x)
    parameters = list(model.recurrent.parameters())
    rows = [
        torch.cat([part.flatten() for part in torch.autograd.grad(one, parameters, retain_graph=True)])
        for one in states.flatten()
    ]
    return torch.stack(rows).view(-1, states.shape[-1], len(rows[0]))


def test_cosines_and_rank_are_those_of_the_written_out_kernel() -> None:
    model = Recurrent(3, 4, 3, seed=1, dtype=torch.float64)
    watch = experiment._Watch.of(TASK, 3, seed=0)
    found = watch.alignment(model)
    J = states_jacobian(model, watch.quiet.x)
    kernel = torch.einsum("aup,bvp->aubv", J, J)
    y = watch.quiet.y.flatten(0, 1).numpy()[:, [2, 0, 1]]  # fixation, cos, sin: orthogonal for even angles
    left, right = y / np.linalg.norm(y, axis=0), np.eye(3)[[2, 0, 1]]
    back = right @ model.readout.weight.detach().numpy()
    temporal = torch.einsum("aubu->ab", kernel).numpy()
    all_pairs = kernel.sum((1, 3)).numpy()
    for mode in range(3):
        u = np.einsum("a,u->au", left[:, mode], back[mode])
        Au = np.einsum("aubv,bv->au", kernel.numpy(), u)
        through = (u * Au).sum() / np.linalg.norm(u) / np.linalg.norm(Au)
        expected = [through]
        for matrix in (temporal, all_pairs):
            image = matrix @ left[:, mode]
            expected.append(left[:, mode] @ image / np.linalg.norm(image))
        np.testing.assert_allclose(found["cosine"][:, mode], expected, rtol=1e-6, atol=1e-9)
    assert float(found["rank"]) == pytest.approx(np.trace(temporal) ** 2 / (temporal**2).sum(), rel=1e-8)


def test_the_loss_is_split_among_modes() -> None:
    watch = experiment._Watch.of(MemoryPro(noise_variance=0.5), 4, seed=0)
    model = Recurrent(3, 5, 3, seed=0)
    for parameter in model.readout.parameters():
        torch.nn.init.zeros_(parameter)
    silent = watch.losses(model)
    np.testing.assert_allclose(silent["unlearned"], 1)
    assert float(silent["loss"]) == pytest.approx(1 / 3)  # one channel of three is on at every step
    model.readout.bias.data[2] = 1.0  # the fixation is right until the response, then wrong
    fixed = watch.losses(model)
    np.testing.assert_allclose(fixed["unlearned"], [0, 1, 1], atol=1e-12)
    assert float(fixed["loss"]) == pytest.approx(experiment.PLATEAU + 1 / 9)


def test_schedules_reach_both_ends() -> None:
    recorded, sampled = experiment._schedules(500, 8)
    assert recorded == {0, 1, 8, 63, 167, 333, 500}
    assert recorded <= sampled
    assert max(np.diff(sorted(sampled))) <= 6


def test_networks_differ_in_the_candidate_only() -> None:
    first, _ = experiment._network(SIZES, Training(0, "SGD", 0.1, 1, 0.0), 3)
    second, start = experiment._network(SIZES, Training(5, "SGD", 0.1, 1, 0.0), 3)
    changed = (first.recurrent.weight_hh_l0 != second.recurrent.weight_hh_l0).any(1)
    assert not bool(changed[:48].any())
    assert bool(changed[48:].all())
    assert torch.equal(first.readout.weight, second.readout.weight)
    assert float(np.max(start["planted_radius"][1])) < 1
    assert start["stable_points"] >= 1


def test_one_step_of_each_optimizer_changes_the_loss() -> None:
    for optimizer in ("SGD", "Shampoo"):
        found = experiment.train(SIZES, Training(0, optimizer, 0.05, 2, 0.1), seed=0)
        assert found.output.shape == (4, 5, 3)
        assert found.cosine.dims == ("record", "kind", "mode")
        assert found.step.values.tolist() == [0, 1, 2]
        assert float(found.loss[-1]) < float(found.loss[0])


@pytest.mark.slow
def test_a_run_is_kept_in_parts_and_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = experiment.Plan(SIZES, 2, 0.1, {"SGD": 0.01, "Shampoo": 0.01})
    first = experiment.learning_bottleneck(plan, 0, Parts(tmp_path / "parts"))

    def never(*_: object) -> xr.Dataset:
        raise AssertionError("a finished part was computed again")

    monkeypatch.setattr(experiment, "train", never)
    again = experiment.learning_bottleneck(plan, 0, Parts(tmp_path / "parts"))
    xr.testing.assert_equal(first.data, again.data)
    assert again.verdict == first.verdict
    assert first.figure is not None
    first.plot()


def as_published() -> xr.Dataset:
    """Numbers like those of the source: network 1 stays with SGD, Shampoo leaves at step 750, network 2 learns."""
    step, runs = np.arange(0, 1001, 50), list(experiment.PLANS[Scale.QUICK].trainings())
    left = np.ones((4, len(step), 3))
    left[:, 5:, 0] = 0.01
    left[1, step >= 750, 1:] = 0.05
    left[2:, step >= 200, 1:] = 0.02
    cosine = np.full((4, 2, 3, 3), 0.3)
    cosine[:2, :, :, 2] = 1e-4
    return xr.Dataset(
        {
            "loss": (("run", "step"), np.full((4, len(step)), experiment.PLATEAU * 1.01)),
            "unlearned": (("run", "step", "mode"), left),
            "cosine": (("run", "record", "kind", "mode"), cosine),
            "rank": (("run", "record"), np.ones((4, 2))),
            "planted_radius": (("run", "point"), np.full((4, 5), 0.95)),
            "stable_points": ("run", [1, 1, 7, 7]),
        },
        {"run": runs, "step": step, "mode": [1, 2, 3], "kind": ["readout", "temporal", "all_pairs"]},
        {"units": 64, "noise_variance": 3.2, "rate_SGD": 1e-3, "rate_Shampoo": 1e-3},
    )


def test_the_table_agrees_with_what_was_published() -> None:
    data = as_published()
    assert experiment.escape(data, "network 1, Shampoo") == 750
    assert experiment.escape(data, "network 1, SGD") == np.inf
    assert experiment.escape(data, "network 2, SGD") == 200
    assert {row.agrees for row in experiment._table(data)} == {True, None}
    assert "from step 750 on" in experiment._verdict(data)


@pytest.mark.parametrize(
    ("name", "run", "value", "told"),
    [
        ("unlearned", 0, 0.5, "network 1, SGD: share of mode 2 left"),
        ("unlearned", 1, 0.9, "network 1, Shampoo: share of mode 3 left"),
        ("unlearned", 2, 0.9, "network 2, SGD: share of mode 2 left"),
        ("cosine", 0, 0.2, "network 1, SGD: largest cosine of mode 3, through the readout"),
        ("loss", 0, 0.05, "network 1, SGD: last loss over 1/9, its plateau"),
        ("planted_radius", 2, 1.01, "network 2: stable fixed points planted"),
    ],
)
def test_the_table_tells_when_a_claim_fails(name: str, run: int, value: float, told: str) -> None:
    data = as_published()
    data[name].values[run] = value
    assert told in [row.quantity for row in experiment._table(data) if row.agrees is False]
