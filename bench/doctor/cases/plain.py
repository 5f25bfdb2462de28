"""Plain healthy setups of architectures that no repaired fault shows."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, healthy
from bench.doctor.networks import GPT, BagClassifier, SequenceClassifier, StateSpace, mlp, token_cross_entropy


@healthy("plain", "linear", least=0.3)
def linear_regression() -> Patient:
    x, y = data.diabetes()
    model = nn.Linear(10, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@healthy("plain", "MLP")
def parity_of_three_bits() -> Patient:
    x, y = data.parity()
    model = mlp([8, 64, 2])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@healthy("plain", "LSTM", least=0.4)
def next_characters_by_lstm() -> Patient:
    class CharacterModel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(14, 16)
            self.lstm = nn.LSTM(16, 48, batch_first=True)
            self.fc = nn.Linear(48, 14)

        def forward(self, x: Tensor) -> Tensor:
            return self.fc(self.lstm(self.embedding(x))[0])

    x, y = data.text()
    model = CharacterModel()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": token_cross_entropy, "optimizer": optimizer, "batch_size": 32}


@healthy("plain", "CNN 1d")
def waves_by_convolution() -> Patient:
    class WaveNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = nn.Conv1d(1, 16, 5), nn.Conv1d(16, 16, 5, dilation=2)
            self.fc = nn.Linear(16 * 12, 1)

        def forward(self, x: Tensor) -> Tensor:
            h = F.gelu(self.conv1(x.transpose(1, 2)))
            return self.fc(F.gelu(self.conv2(h)).flatten(1))

    x, y = data.waves()
    model = WaveNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@healthy("plain", "EmbeddingBag")
def topics_of_bags() -> Patient:
    x, y = data.bags()
    model = BagClassifier(60, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


def score_of_sorted_half(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """Accuracy beyond chance of the sorted tokens."""
    return (8 * float((model(x)[:, 5:].argmax(2) == y[:, 5:]).float().mean()) - 1) / 7


@healthy("plain", "GPT", score=score_of_sorted_half)
def sorting_by_decoder() -> Patient:
    x, y = data.sorting()
    model = GPT(8, 11)
    joined = torch.cat([x, y], 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def sorted_half(logits: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(logits[:, 5:].flatten(0, 1), targets[:, 5:].flatten())

    return (
        model,
        joined[:, :-1].contiguous(),
        joined[:, 1:].contiguous(),
        {
            "loss": sorted_half,
            "optimizer": optimizer,
            "batch_size": 64,
        },
    )


@healthy("plain", "state space")
def waves_by_state_space() -> Patient:
    x, y = data.waves()
    model = StateSpace(1, 1, torch.linspace(0.3, 0.98, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@healthy("plain", "LSTM")
def majority_by_bidirectional_lstm() -> Patient:
    x, y = data.majority(vocabulary=3)
    model = SequenceClassifier(3, 3, cell=nn.LSTM)
    model.rnn = nn.LSTM(16, 24, batch_first=True, bidirectional=True)
    model.fc = nn.Linear(48, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}
