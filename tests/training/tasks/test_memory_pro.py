from __future__ import annotations

import math

import pytest
import torch

from foretrain.support.errors import InputError
from foretrain.training.tasks.memory_pro import MemoryPro, Recurrent


def test_a_trial_written_out_by_hand() -> None:
    task = MemoryPro(stimulus=2, memory=1, response=2)
    theta = torch.tensor([math.pi / 3])
    c, s = 0.5, math.sqrt(3) / 2
    x = torch.tensor([[[c, s, 1], [c, s, 1], [0, 0, 1], [0, 0, 0], [0, 0, 0]]])
    y = torch.tensor([[[0, 0, 1], [0, 0, 1], [0, 0, 1], [c, s, 0], [c, s, 0]]])
    torch.testing.assert_close(task.inputs(theta), x)
    torch.testing.assert_close(task.targets(theta), y)


def test_targets_of_even_angles_have_three_known_modes() -> None:
    task, count = MemoryPro(), 20
    y = task.targets(task.angles(count), torch.float64)
    values = torch.linalg.svdvals(y.reshape(-1, 3))
    torch.testing.assert_close(values, torch.tensor([60 * count, 15 * count, 15 * count]).double().sqrt())


def test_noise_has_the_variance_asked_for_and_leaves_targets_alone() -> None:
    task, quiet = MemoryPro(noise_variance=3.2), MemoryPro()
    angles = task.angles(400, seed=1)
    noise = task.inputs(angles, seed=2) - quiet.inputs(angles)
    # the standard error of a variance from n normal draws is sqrt(2 / n) of it
    assert abs(float(noise.var()) / 3.2 - 1) < 4 * math.sqrt(2 / noise.numel())
    assert torch.equal(task.targets(angles), quiet.targets(angles))


def test_the_same_seed_gives_the_same_batch() -> None:
    task = MemoryPro(noise_variance=0.1)
    first, again, other = (task.batch(5, seed) for seed in (3, 3, 4))
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[1], other[1])


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(InputError, match="stimulus is 0"):
        MemoryPro(stimulus=0)
    with pytest.raises(InputError, match="noise_variance"):
        MemoryPro(noise_variance=-1)
    with pytest.raises(InputError, match="at least one angle"):
        MemoryPro().angles(0)
    with pytest.raises(InputError, match="unknown cell"):
        Recurrent(3, 4, 3, "elman")  # type: ignore[arg-type]


@pytest.mark.parametrize(("cell", "gates"), [("gru", 3), ("rnn", 1), ("lstm", 4)])
def test_every_gate_has_the_variance_of_its_rule(cell: str, gates: int) -> None:
    units, gain = 120, 1.7
    model = Recurrent(3, units, 3, cell, gain=gain, seed=5)  # type: ignore[arg-type]
    for gate in model.recurrent.weight_hh_l0.detach().split(units):
        expected = gain**2 / units
        assert abs(float(gate.var()) / expected - 1) < 4 * math.sqrt(2 / gate.numel())
    assert model.recurrent.weight_hh_l0.shape == (gates * units, units)
    assert all(float(p.detach().abs().sum()) == 0 for p in model.recurrent.parameters() if p.dim() == 1)
    assert model(torch.zeros(2, 7, 3)).shape == (2, 7, 3)


def test_angles_are_one_number_for_every_trial() -> None:
    task = MemoryPro(2, 1, 2)
    for numbers in ([0.0, 1.0], [0, 1], torch.tensor([0, 1])):
        torch.testing.assert_close(task.inputs(numbers), task.inputs(torch.tensor([0.0, 1.0])))  # type: ignore[arg-type]
    for made in (task.inputs, task.targets):
        with pytest.raises(InputError, match=r"angles .*\(2, 2\)"):
            made(torch.zeros(2, 2))


def test_half_steps_are_refused() -> None:
    with pytest.raises(InputError, match=r"stimulus is 5\.5"):
        MemoryPro(5.5, 1, 1)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"memory is -1"):
        MemoryPro(5, -1, 1)
