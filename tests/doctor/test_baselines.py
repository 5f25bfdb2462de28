"""Simple learners against brute force, and answers scored as people count them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, mse_loss

from foretrain.doctor.baselines import (
    Judge,
    Measure,
    fit_baselines,
    fit_readout,
    measure_for,
    readout_features,
)


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scores(x: Tensor, y: Tensor, measure: Measure, split: int = 80, **options: object) -> dict[str, float]:
    known, wanted = (measure.targets(part, torch.zeros(1)) for part in (y[:split], y[split:]))
    _, fitted = fit_baselines((x[:split], known), (x[split:], wanted), measure, **options)  # type: ignore[arg-type]
    return {one.name: one.score for one in fitted}


def test_a_linear_target_is_explained_by_the_linear_model() -> None:
    x = drawn(120, 3)
    found = scores(x, x @ torch.tensor([[1.0], [-2.0], [0.5]]), Measure("numbers"))
    assert found["a constant"] == pytest.approx(0.0, abs=1e-9)
    assert found["a linear model"] > 0.999
    assert found["nearest neighbours"] < found["a linear model"]


def test_left_out_answers_are_those_of_fits_without_the_sample() -> None:
    """The shortcut by leverages against one fit for each sample, at the ridge that was chosen for all."""
    from foretrain.doctor.baselines import Ridge, sample_kernel

    x, columns = drawn(25, 4).double(), drawn(25, 2, seed=1).double()
    own = sample_kernel(x).own
    ridge = Ridge.of(sample_kernel(x), columns.split(1, dim=1))
    expected = []
    mean = columns.mean(0)  # the shortcut keeps the mean of all samples
    for place in range(len(x)):
        kept = [number for number in range(len(x)) if number != place]
        regularised = own[kept][:, kept] + ridge.ridge * torch.eye(len(kept))
        weights = torch.linalg.solve(regularised, (columns - mean)[kept])
        expected.append(own[[place]][:, kept] @ weights + mean)
    torch.testing.assert_close(ridge.left_out(columns), torch.cat(expected))


def test_neighbours_follow_what_no_line_can() -> None:
    x = drawn(400, 2)
    y = ((x[:, 0] > 0) ^ (x[:, 1] > 0)).long()
    found = scores(x, y, Measure("labels"), split=300)
    assert found["nearest neighbours"] > 0.85
    assert found["a linear model"] < 0.7


def test_tokens_are_compared_and_not_measured() -> None:
    x = torch.randint(9, (400, 5), generator=torch.Generator().manual_seed(0))
    y = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1])[x[:, 2]]
    assert scores(x, y, Measure("labels"), split=300)["a linear model"] == 1.0


def test_what_comes_later_is_hidden_from_the_baselines_of_causal_networks() -> None:
    x = torch.randint(5, (200, 8), generator=torch.Generator().manual_seed(0))
    y = x.roll(-1, 1)  # the next token, which is in the inputs of the next position
    open_eyes = scores(x, y, Measure("labels", 2), positions=8)["a linear model"]
    causal = scores(x, y, Measure("labels", 2), positions=8, causal=True)["a linear model"]
    assert open_eyes > 0.9
    assert causal < 0.4


def test_a_readout_by_position_sees_that_position_alone() -> None:
    features = drawn(100, 6, 4)
    y = (features[..., 0] > 0).long()
    measure = Measure("labels", 2)
    judge = Judge.of(measure, y[:80], y[80:])
    assert fit_readout(features[:80], y[:80], features[80:], judge, positions=6).score > 0.9
    later = features.roll(1, 1)
    assert fit_readout(later[:80], y[:80], later[80:], judge, positions=6).score < 0.7


@pytest.mark.parametrize(
    ("outputs", "y", "kind", "axis"),
    [
        (torch.zeros(4, 3), torch.tensor([0, 1, 2, 0]), "labels", 1),
        (torch.zeros(4, 3, 7), torch.zeros(4, 7, dtype=torch.long), "labels", 1),
        (torch.zeros(4, 7, 3), torch.zeros(4, 7, dtype=torch.long), "labels", 2),
        (torch.zeros(4, 1), torch.tensor([[0.0], [1.0], [1.0], [0.0]]), "sides", 1),
        (torch.zeros(4, 2), torch.tensor([[0.2, 0.8], [0.5, 0.5], [1.0, 0.0], [0.1, 0.9]]), "labels", 1),
        (torch.zeros(4, 2), drawn(4, 2), "numbers", 1),
    ],
)
def test_how_answers_are_scored_follows_from_their_shapes(
    outputs: Tensor, y: Tensor, kind: str, axis: int
) -> None:
    measure = measure_for(outputs, y, cross_entropy if kind == "labels" else mse_loss)
    assert measure is not None
    assert (measure.kind, measure.axis) == (kind, axis)


def test_where_shapes_leave_it_open_the_loss_decides_which_axis_has_the_classes() -> None:
    outputs, y = torch.zeros(4, 3, 3), torch.randint(3, (4, 3), generator=torch.Generator().manual_seed(1))
    by_loss = {1: cross_entropy, 2: lambda o, t: cross_entropy(o.flatten(0, 1), t.flatten())}
    for axis, loss in by_loss.items():
        measure = measure_for(outputs, y, loss)
        assert measure is not None
        assert measure.axis == axis


def test_targets_of_unlike_shape_are_left_to_the_loss() -> None:
    assert measure_for(torch.zeros(4, 5), drawn(4, 3), mse_loss) is None
    assert measure_for(torch.zeros(4, 5), None, mse_loss) is None


def test_rare_classes_count_as_much_as_others_where_answers_are_balanced() -> None:
    wanted = torch.tensor([0] * 8 + [1] * 2)[:, None]
    judge = Judge.of(Measure("labels", balanced=True), wanted, wanted)
    assert judge.scores(torch.zeros_like(wanted)).mean() == pytest.approx(0.5)
    assert judge.scores(wanted).mean() == pytest.approx(1.0)


def test_what_is_ignored_or_unread_does_not_count() -> None:
    measure = Measure("labels", ignored=(0,), unread=(1,))
    wanted = measure.targets(torch.tensor([[0, 2, 1], [1, 2, 1]]), torch.zeros(2, 3, 3))
    assert wanted.tolist() == [[-1, -1, 1], [1, -1, 1]]
    judge = Judge.of(measure, wanted, wanted)
    assert np.array_equal(judge.scores(torch.ones_like(wanted)), [1.0, 1.0])


def test_outputs_are_read_by_the_threshold_that_suits_the_training_samples() -> None:
    y = torch.tensor([0.0, 0.0, 1.0, 1.0])[:, None]
    outputs = torch.tensor([7.0, 8.0, 9.0, 10.0])[:, None]
    judge = Judge.of(Measure("sides"), y.double(), y.double())
    assert judge.scores(judge.read(outputs, (outputs, y.double()))).mean() == 1.0


def test_readout_features_are_what_the_last_layer_is_given() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2), nn.Softmax(1))
    x = drawn(4, 3)
    features = readout_features(model, lambda: model(x))
    assert features is not None
    torch.testing.assert_close(features, model[:2](x).detach())
