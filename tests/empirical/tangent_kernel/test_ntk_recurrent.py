"""Recurrent layers, cells in loops, and packed sequences of unequal lengths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from brute_force import Case, assert_equal, brute_force, check, normal, ready, slow_parameters
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from foretrain.empirical.tangent_kernel import ntk


class Reader(nn.Module):
    """A recurrent layer, with one number read off all its results."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer = layer
        width = (layer.proj_size or layer.hidden_size) * (2 if layer.bidirectional else 1)
        self.last = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x)[0])


LAYERS: dict[str, Callable[..., nn.RNNBase]] = {
    "RNN": lambda **o: nn.RNN(2, 3, **o),
    "RNN relu": lambda **o: nn.RNN(2, 3, nonlinearity="relu", **o),
    "GRU": lambda **o: nn.GRU(2, 3, **o),
    "LSTM": lambda **o: nn.LSTM(2, 3, **o),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two layers": {"num_layers": 2},
    "both directions": {"bidirectional": True},
    "both directions, two layers": {"bidirectional": True, "num_layers": 2},
    "no bias": {"bias": False},
}


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("layer", LAYERS)
def test_recurrent_layers(layer: str, options: str) -> None:
    make = LAYERS[layer]
    check(Case(lambda: Reader(make(batch_first=True, **OPTIONS[options])), normal(4, 3, 2)))


@pytest.mark.parametrize("layer", LAYERS)
def test_samples_on_the_second_axis(layer: str) -> None:
    check(Case(lambda: Reader(LAYERS[layer](num_layers=2)), normal(3, 4, 2), axis=1))


@pytest.mark.parametrize("both", [False, True])
def test_projected_lstm(both: bool) -> None:
    check(
        Case(
            lambda: Reader(nn.LSTM(2, 4, proj_size=2, num_layers=2, batch_first=True, bidirectional=both)),
            normal(4, 3, 2),
        )
    )


@pytest.mark.parametrize("both", [False, True])
def test_layers_that_torch_fuses_in_single_precision(both: bool) -> None:
    x = normal(4, 3, 2)
    model = ready(lambda: Reader(nn.LSTM(2, 3, num_layers=2, batch_first=True, bidirectional=both)))
    expected = brute_force(model, x)
    kernel = ntk(model.float(), x.float(), batch_size=3)
    assert_equal(kernel.values, expected, 1e-5)
    assert not slow_parameters(kernel)


@pytest.mark.parametrize("length", [1, 4])
def test_lengths_that_look_like_other_sizes(length: int) -> None:
    check(Case(lambda: Reader(nn.GRU(4, 4, batch_first=True)), normal(4, length, 4)))


def test_last_states_and_given_first_states() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.last = nn.LSTM(2, 3, batch_first=True), nn.Linear(6, 2)

        def forward(self, x: Tensor, first: Tensor) -> Tensor:
            _, (hidden, cell) = self.layer(x, (first[None], first.cos()[None]))
            return self.last(torch.cat([hidden[-1], cell[-1]], -1))

    check(Case(Encoder, (normal(4, 3, 2), normal(4, 3))))


def test_learned_first_state() -> None:
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.first = nn.GRU(2, 3, batch_first=True), nn.Parameter(torch.randn(1, 1, 3))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x, self.first.expand(-1, len(x), -1).contiguous())[1][-1]

    check(Case(Encoder, normal(4, 3, 2)))


class Loop(nn.Module):
    """A cell run by hand over the sequence."""

    def __init__(self, cell: nn.RNNCellBase) -> None:
        super().__init__()
        self.cell, self.last = cell, nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.last(state[0] if isinstance(state, tuple) else state)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("cell", [nn.RNNCell, nn.GRUCell, nn.LSTMCell])
def test_cells_in_loops(cell: Callable[..., nn.RNNCellBase], bias: bool) -> None:
    check(Case(lambda: Loop(cell(2, 3, bias=bias)), normal(4, 3, 2)))


class Packed(nn.Module):
    """Sequences of unequal lengths, packed inside the model."""

    def __init__(self, layer: nn.RNNBase) -> None:
        super().__init__()
        self.layer, self.last = layer, nn.Linear(3, 2)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.layer(packed)[0], batch_first=True, total_length=x.shape[1])
        return self.last(states[..., :3].sum(1))


@pytest.mark.parametrize("layer", LAYERS)
def test_packed_sequences_of_equal_lengths(layer: str) -> None:
    x = normal(4, 4, 2), torch.full((4,), 3)
    check(Case(lambda: Packed(LAYERS[layer](batch_first=True)), x))


@pytest.mark.slow(after=5)
@pytest.mark.parametrize("lengths", [(4, 2, 3, 1), (1, 2, 3, 4), (4, 4, 1, 2)])
@pytest.mark.parametrize("layer", LAYERS)
def test_packed_sequences_are_exact(layer: str, lengths: tuple[int, ...]) -> None:
    make = LAYERS[layer]
    names = tuple(name for name, _ in make().named_parameters(prefix="layer"))
    x = normal(4, 4, 2), torch.tensor(lengths)
    check(Case(lambda: Packed(make(batch_first=True)), x, slow=names))


def test_packed_sequences_in_both_directions() -> None:
    def make() -> nn.Module:
        return Packed(nn.GRU(2, 3, batch_first=True, bidirectional=True, num_layers=2))

    names = tuple(name for name, _ in make().named_parameters() if name.startswith("layer"))
    check(Case(make, (normal(5, 4, 2), torch.tensor([2, 4, 1, 3, 4])), slow=names))


@pytest.mark.parametrize("layer", ["GRU", "LSTM"])
def test_both_directions_read_at_the_last_position(layer: str) -> None:
    # The backward direction has made one step there, so that its other steps get no gradient.
    class Classifier(Reader):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x)[:, -1]

    make = LAYERS[layer]
    check(Case(lambda: Classifier(make(batch_first=True, bidirectional=True)), normal(4, 3, 2)))
