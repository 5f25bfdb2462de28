"""Tasks of working memory by loops written out, and the leaky network beside its equation."""

from __future__ import annotations

import pytest
import torch

from foretrain.support.errors import InputError
from foretrain.training.tasks import FiltersAndDelays, FlipFlop, LeakyNetwork, MatchToSample


def test_flip_flops_hold_the_last_pulse() -> None:
    x, y = FlipFlop(bits=2, steps=40, rate=0.2).batch(50, seed=3)
    assert set(x.unique().tolist()) == {-1.0, 0.0, 1.0}
    assert float((x != 0).float().mean()) == pytest.approx(0.2, abs=3 * (0.2 * 0.8 / x.numel()) ** 0.5)
    for trial in range(3):
        held = [0.0, 0.0]
        for step in range(40):
            held = [float(new) if new != 0 else old for new, old in zip(x[trial, step], held)]
            assert y[trial, step].tolist() == held
    again = FlipFlop(bits=2, steps=40, rate=0.2).batch(50, seed=3)
    assert torch.equal(x, again[0])
    assert torch.equal(y, again[1])


def test_match_to_sample_asks_whether_two_signs_agree() -> None:
    task = MatchToSample(sample=2, delay=3, test=1, response=2)
    x, y = task.batch(20, seed=0)
    assert x.shape == y.shape == (20, task.steps, 2)
    first, second = x[:, 0, 0], x[:, 5, 0]
    assert torch.equal(y[:, 6:, 0], (first * second)[:, None].expand(20, 2))
    assert not x[:, 2:5, 0].any()
    assert not y[:, :6, 0].any()
    assert torch.equal(x[..., 1], y[..., 1])
    assert x[0, :, 1].tolist() == [1, 1, 1, 1, 1, 1, 0, 0]
    pairs = {
        (float(a), float(b)): int(((first == a) & (second == b)).sum()) for a in (-1, 1) for b in (-1, 1)
    }
    assert set(pairs.values()) == {5}


def test_filters_and_delays_are_convolutions() -> None:
    task = FiltersAndDelays(forgetting=(3.0,), delays=(0, 4), steps=12)
    x, y = task.batch(5, seed=1, dtype=torch.float64)
    running = torch.zeros(5, dtype=torch.float64)
    size = (
        sum(float(torch.exp(torch.tensor(-2 * age / 3.0, dtype=torch.float64))) for age in range(12)) ** 0.5
    )
    for step in range(12):
        running = running * torch.exp(torch.tensor(-1 / 3.0, dtype=torch.float64)) + x[:, step, 0]
        torch.testing.assert_close(y[:, step, 0], running / size)
        assert torch.equal(y[:, step, 1], x[:, step, 0])
        torch.testing.assert_close(
            y[:, step, 2], x[:, step - 4, 0] if step >= 4 else torch.zeros_like(running)
        )


def test_the_leaky_network_is_its_equation() -> None:
    model, x = LeakyNetwork(2, 4, 3, leak=0.25, gain=1.5, seed=2), torch.randn(3, 2, 2)
    w, u, b = model.recurrent.weight, model.input.weight, model.input.bias
    first = 0.25 * torch.tanh(x[:, 0] @ u.T + b)
    second = 0.75 * first + 0.25 * torch.tanh(first @ w.T + x[:, 1] @ u.T + b)
    torch.testing.assert_close(model(x), model.readout(torch.stack([first, second], 1)))
    with pytest.raises(InputError, match="leak"):
        LeakyNetwork(2, 4, 3, leak=0.0)


@pytest.mark.parametrize("task", [FlipFlop(), MatchToSample(), FiltersAndDelays()])
def test_a_batch_needs_trials(task: FlipFlop | MatchToSample | FiltersAndDelays) -> None:
    with pytest.raises(InputError, match="count"):
        task.batch(0, seed=0)
