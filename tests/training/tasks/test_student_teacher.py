from __future__ import annotations

import math

import pytest
import torch

from foretrain.support.errors import InputError
from foretrain.training.tasks.student_teacher import StudentTeacher, VanillaNetwork

SMALL = {"n_in": 5, "units": 7, "n_out": 2, "steps": 6, "input_rank": 3}


def small(**options: object) -> StudentTeacher:
    return StudentTeacher(**{**SMALL, **options})  # type: ignore[arg-type]


def by_hand(model: VanillaNetwork, x: torch.Tensor) -> torch.Tensor:
    W, W_in, W_out = model.matrices.values()
    h, outputs = x.new_zeros(len(x), len(W)), []
    for t in range(x.shape[1]):
        h = torch.tanh(h @ W.t() + x[:, t] @ W_in.t())
        outputs.append(h @ W_out.t())
    return torch.stack(outputs, 1)


def test_networks_compute_what_is_written() -> None:
    task = small()
    x, y = task.batch(4, seed=1)
    torch.testing.assert_close(y, by_hand(task.teacher, x))
    student = task.student(1.7)
    torch.testing.assert_close(student(x), by_hand(student, x))
    assert y.shape == (4, 6, 2)


@pytest.mark.parametrize("rank", [1, 4, 16])
def test_inputs_have_their_rank_and_the_same_power(rank: int) -> None:
    x = StudentTeacher(input_rank=rank, power=2.5).inputs(200, seed=3).reshape(-1, 16)
    values = torch.linalg.svdvals(x)
    assert int((values > 1e-10 * values[0]).sum()) == rank
    # |x|² is power / rank times a chi-squared of this rank: relative variance 2 / rank
    assert abs(float(x.square().sum(1).mean()) / 2.5 - 1) < 4 * math.sqrt(2 / rank / len(x))


def test_all_batches_lie_in_one_subspace() -> None:
    task = small()
    both = torch.cat([task.inputs(3, seed=seed).reshape(-1, 5) for seed in (0, 1)])
    assert int(torch.linalg.matrix_rank(both)) == 3
    outside = both - both @ task.subspace @ task.subspace.t()
    assert float(outside.abs().max()) < 1e-12


def test_recurrent_weights_are_orthogonal_times_the_gain() -> None:
    task = StudentTeacher(teacher_gain=0.9)
    for model, gain in ((task.teacher, 0.9), (task.student(1.5), 1.5)):
        W = model.matrices["recurrent"].detach()
        torch.testing.assert_close(W @ W.t(), gain**2 * torch.eye(64, dtype=torch.float64))


def test_other_draws_have_the_variances_of_their_rules() -> None:
    task = StudentTeacher(n_in=60, units=80, n_out=40, draw="normal", trainable="all")
    expected = {"recurrent": 1.3**2 / 80, "input": 2 / 140, "readout": 2 / 120}
    for name, matrix in task.student(1.3).matrices.items():
        # the standard error of a variance from n normal draws is sqrt(2 / n) of it
        assert abs(float(matrix.detach().var()) / expected[name] - 1) < 4 * math.sqrt(2 / matrix.numel())


@pytest.mark.parametrize("trainable", ["recurrent", "input"])
def test_untrained_weights_are_those_of_the_teacher(trainable: str) -> None:
    task = small(trainable=trainable)
    student, teacher = task.student(1.0).matrices, task.teacher.matrices
    for name in teacher:
        assert student[name].requires_grad == (name == trainable)
        assert torch.equal(student[name], teacher[name]) == (name != trainable)
        assert not teacher[name].requires_grad
    other = small(trainable=trainable, own_untrained=True).student(1.0).matrices
    assert not any(torch.equal(other[name], teacher[name]) for name in teacher)


def test_the_gain_multiplies_the_trained_matrix_alone() -> None:
    task = small(trainable="input")
    one, two = task.student(1.0).matrices, task.student(2.0).matrices
    torch.testing.assert_close(two["input"], 2 * one["input"])
    assert torch.equal(one["recurrent"], two["recurrent"])


def test_biases_are_there_only_if_asked_for() -> None:
    assert not any("bias" in name for name, _ in small().teacher.named_parameters())
    student = small(bias=True, trainable="all").student()
    biases = {name: value for name, value in student.named_parameters() if "bias" in name}
    assert len(biases) == 3
    assert all(value.requires_grad and not value.any() for value in biases.values())
    assert not small(bias=True).student().readout.bias.requires_grad


def test_gradients_through_time_explode_for_large_gains_and_need_double_precision() -> None:
    slopes = {}
    for dtype in (torch.float32, torch.float64):
        task = StudentTeacher(dtype=dtype, seed=2)
        x, y = (part.to(dtype) for part in StudentTeacher(seed=2).batch(8, seed=1))
        for gain in (0.5, 3.0):
            student = task.student(gain)
            student.load_state_dict(StudentTeacher(seed=2).student(gain).state_dict())
            (student(x) - y).square().mean().backward()
            found = student.matrices["recurrent"].grad
            assert found is not None
            slopes[gain, dtype] = found.double()
    lengths = {key: float(value.norm()) for key, value in slopes.items()}
    assert lengths[3.0, torch.float64] > 100 * lengths[0.5, torch.float64]
    apart = {
        gain: float((slopes[gain, torch.float32] - slopes[gain, torch.float64]).norm())
        / lengths[gain, torch.float64]
        for gain in (0.5, 3.0)
    }
    assert apart[0.5] < 1e-5
    assert apart[3.0] > 1e3 * apart[0.5]


def test_seeds_fix_everything() -> None:
    first, again, other = (small(seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.batch(3, seed=5)[1], again.batch(3, seed=5)[1])
    assert torch.equal(first.student().matrices["recurrent"], again.student().matrices["recurrent"])
    assert not torch.equal(first.teacher.matrices["input"], other.teacher.matrices["input"])
    assert not torch.equal(first.inputs(3, seed=5), first.inputs(3, seed=6))


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"units": 0}, "units is 0"),
        ({"input_rank": 6}, "input_rank is 6"),
        ({"power": 0}, "power is 0"),
        ({"teacher_gain": -1}, "teacher_gain is -1"),
        ({"trainable": "readout"}, "trained weights"),
        ({"draw": "uniform"}, "recurrent weights"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        small(**options)


def test_bad_arguments_of_methods() -> None:
    with pytest.raises(InputError, match="gain is nan"):
        small().student(float("nan"))
    with pytest.raises(InputError, match="at least one sample"):
        small().batch(0, seed=0)
