"""Traces and ranks that are exact where that is affordable: by structure, on the parameters, or on the states."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from foretrain.empirical.global_ntk import global_ntk
from foretrain.empirical.global_ntk.parameter_shares import trace_shares

DOUBLE = torch.float64
LAYERS = {
    "rnn": lambda: nn.RNN(2, 4, batch_first=True),
    "gru": lambda: nn.GRU(2, 4, batch_first=True),
    "gru without biases": lambda: nn.GRU(2, 4, bias=False, batch_first=True),
    "lstm": lambda: nn.LSTM(2, 4, batch_first=True),
    "both directions": lambda: nn.GRU(2, 4, bidirectional=True, batch_first=True),
    "stacked": lambda: nn.LSTM(2, 4, num_layers=2, bidirectional=True, batch_first=True),
}


def inputs(samples: int, steps: int) -> torch.Tensor:
    return torch.randn(samples, steps, 2, dtype=DOUBLE, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", LAYERS)
def test_the_trace_of_recurrent_layers_takes_one_sweep_for_a_state_of_all_samples(name: str) -> None:
    torch.manual_seed(1)
    kernel = global_ntk(LAYERS[name]().to(DOUBLE), inputs(3, 5))
    found = kernel.trace()
    assert found == pytest.approx(float(kernel.dense().trace()), rel=1e-10)
    assert (found.method, found.standard_error, found.products) == ("exact", 0.0, kernel.size // 3)


def test_the_trace_is_that_of_the_chosen_states() -> None:
    torch.manual_seed(1)
    lstm = nn.LSTM(2, 4, batch_first=True).to(DOUBLE)
    for states in ("cell", ("hidden", "cell")):
        kernel = global_ntk(lstm, inputs(3, 5), states=states)
        assert kernel.trace() == pytest.approx(float(kernel.dense().trace()), rel=1e-10)
        assert kernel.trace().products == kernel.size // 3


def test_the_trace_counts_only_chosen_parameters() -> None:
    torch.manual_seed(1)
    gru = nn.GRU(2, 4, batch_first=True).to(DOUBLE)
    kernel = global_ntk(gru, inputs(3, 5), parameters=["weight_ih_l0", "bias_hh_l0"])
    assert kernel.trace() == pytest.approx(float(kernel.dense().trace()), rel=1e-10)


def test_weights_that_are_used_twice_are_traced_by_products() -> None:
    torch.manual_seed(1)
    gru = nn.GRU(4, 4, num_layers=2, batch_first=True).to(DOUBLE)
    gru.weight_hh_l1 = gru.weight_hh_l0
    x = torch.randn(3, 5, 4, dtype=DOUBLE)
    kernel = global_ntk(gru, x)
    assert kernel.trace_by_structure(1e30) is None
    assert kernel.trace() == pytest.approx(float(kernel.dense().trace()), rel=1e-10)


def test_shares_of_the_trace_are_exact_by_structure() -> None:
    torch.manual_seed(1)
    gru = nn.GRU(2, 4, batch_first=True).to(DOUBLE)
    kernel = global_ntk(gru, inputs(20, 10))
    shares = trace_shares(kernel)
    assert kernel.size > 256
    assert not shares.standard_errors.any()
    for name, share in zip(shares.names, shares.values):
        alone = global_ntk(gru, inputs(20, 10), parameters=[name]).trace()
        assert share == pytest.approx(alone / kernel.trace(), rel=1e-10)


def test_fewer_parameters_than_states_give_exact_ranks() -> None:
    torch.manual_seed(1)
    kernel = global_ntk(nn.GRU(2, 4, batch_first=True).to(DOUBLE), inputs(20, 10))
    dense = kernel.dense()
    rank, norm = kernel.effective_rank(), kernel.frobenius_norm()
    assert (rank.products, norm.products) == (96, 96)
    assert (rank.method, norm.method) == ("exact", "exact")
    assert rank == pytest.approx(float(dense.trace() ** 2 / dense.square().sum()), rel=1e-10)
    assert norm == pytest.approx(float(dense.norm()), rel=1e-10)
    values = torch.linalg.eigvalsh(dense).clamp_min(0) / dense.trace()
    entropy = float(torch.exp(-torch.special.xlogy(values, values).sum()))
    assert kernel.effective_rank(kind="entropy") == pytest.approx(entropy, rel=1e-8)


def test_models_without_such_structure_are_exact_by_their_states_or_parameters() -> None:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 3)).to(DOUBLE)
    kernel = global_ntk(model, inputs(60, 1)[:, 0], states=["0", "1"])
    dense, found = kernel.dense(), kernel.trace()
    assert kernel.size > 256
    assert (found.method, found.products) == ("exact", kernel.J.domain.size)
    assert found == pytest.approx(float(dense.trace()), rel=1e-10)


def test_what_is_not_affordable_is_estimated_unless_it_is_asked_for() -> None:
    torch.manual_seed(1)
    kernel = global_ntk(nn.GRU(2, 40, batch_first=True).to(DOUBLE), inputs(4, 20))
    assert kernel.trace_by_structure(1e6) is None
    estimated, exact = kernel.trace(method="xnystrace"), kernel.trace(method="exact")
    assert estimated.standard_error > 0
    assert abs(estimated - exact) < 5 * estimated.standard_error


def test_modes_and_parts_are_labelled_by_axes_and_parameters() -> None:
    torch.manual_seed(1)
    kernel = global_ntk(nn.GRU(2, 4, batch_first=True).to(DOUBLE), inputs(3, 5))
    modes = kernel.top_modes(2)
    states = modes.to_dataset()["vector"]
    assert states.dims == ("mode", "batch", "time", "unit")
    torch.testing.assert_close(torch.as_tensor(states.values), modes.vectors)
    directions = kernel.J.top_modes(1).to_dataset()
    assert directions["vector_weight_hh_l0"].dims[1:] == ("weight_hh_l0_axis_0", "weight_hh_l0_axis_1")
    assert directions["left"].dims == ("mode", "left_batch", "left_time", "left_unit")
    falls = kernel.loss_decrease(torch.ones(3, 5, 4, dtype=DOUBLE))
    for result, values in ((falls, falls.by_parameter.values()), (trace_shares(kernel), None)):
        (panel,) = result.answer().figures[0].panels
        assert set(panel.y.ticks.values()) == set(falls.by_parameter)
        assert values is None or panel.marks[0].values == pytest.approx(list(values))
