"""States over time that do not carry what is asked for."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bench.doctor import data
from bench.doctor.case import Patient, pair
from bench.doctor.networks import ElmanLoop, SequenceClassifier, SeriesRegressor, StateSpace

_FORGETS = (
    r"forget",
    r"memory",
    r"remember",
    r"states?[^.]*(hold|lose|lost|carry|keep|fade|forget)",
    r"delay",
    r"over time",
    r"vanish",
    r"long sequence",
    r"recurren",
    r"gates?\b",
)
_AXES = (
    r"batch_first",
    r"\b(axis|axes)\b",
    r"\bmix",
    r"other samples",
    r"(over|across) (the )?(batch|samples)",
    r"transpos",
)


def shut(model: SequenceClassifier, bias: float) -> None:
    """Set the forget gate's biases of an LSTM."""
    width = model.rnn.hidden_size
    with torch.no_grad():
        for name in ("bias_ih_l0", "bias_hh_l0"):
            getattr(model.rnn, name)[width : 2 * width] = bias


@pair("recurrent", "LSTM", "Forget gates are shut by biases of -5.", *_FORGETS)
def forget_gates_shut(broken: bool) -> Patient:
    x, y = data.recall(length=10, vocabulary=4)
    model = SequenceClassifier(4, 4, cell=nn.LSTM)
    shut(model, -5.0 if broken else 1.0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class FirstStep(SeriesRegressor):
    """Reads the output of the first step."""

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.rnn(x)
        return self.fc(out[:, 0])


@pair(
    "recurrent",
    "GRU",
    "The first step is read instead of the last.",
    r"first (step|output|state|time)",
    r"last step",
    *_FORGETS,
    r"do(es)? not (depend|see|use)",
    r"time step",
)
def first_step_is_read(broken: bool) -> Patient:
    x, y = data.adding(length=9)
    model = (FirstStep if broken else SeriesRegressor)(2, width=40)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class BatchSecond(SequenceClassifier):
    """Forgets batch_first."""

    def __init__(self, vocabulary: int, classes: int) -> None:
        super().__init__(vocabulary, classes)
        self.rnn = nn.GRU(16, 32)


@pair("recurrent", "GRU", "Without batch_first the layer runs over samples instead of time.", *_AXES)
def runs_over_samples(broken: bool) -> Patient:
    x, y = data.recall(length=8)
    model = (BatchSecond if broken else SequenceClassifier)(6, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


class ForgetfulLoop(ElmanLoop):
    """Makes a new state at every step."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(x)
        for t in range(x.shape[1]):
            h = torch.zeros(len(x), self.width)
            h = self.step(x[:, t], h)
        return self.fc(h)


@pair(
    "recurrent",
    "RNN loop",
    "The state is made anew at every step.",
    *_FORGETS,
    r"unused",
    r"not used",
    r"no gradient",
    r"do(es)? not (depend|see|use)",
)
def state_made_anew(broken: bool) -> Patient:
    x, y = data.recall(length=6, vocabulary=4)
    model = (ForgetfulLoop if broken else ElmanLoop)(8, 4, tokens=4)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}


@pair("recurrent", "RNN", "The answer lies 60 steps back, too far for a tanh network.", *_FORGETS)
def answer_sixty_steps_back(broken: bool) -> Patient:
    x, y = data.recall(600, length=60 if broken else 6, vocabulary=4)
    model = SequenceClassifier(4, 4, cell=nn.RNN)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 32}


@pair("recurrent", "RNN loop", "The adding problem over 80 steps in a tanh network.", *_FORGETS)
def adding_over_eighty_steps(broken: bool) -> Patient:
    x, y = data.adding(600, length=80 if broken else 8)
    model = ElmanLoop(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 32}


@pair(
    "recurrent",
    "state space",
    "Every mode of the state decays by 0.1 a step, and cannot learn another decay.",
    *_FORGETS,
    r"decay",
)
def modes_that_decay_at_once(broken: bool) -> Patient:
    x, y = data.adding(length=16)
    decay = torch.full((32,), 0.1) if broken else torch.linspace(0.7, 1.0, 32)
    model = StateSpace(2, 1, decay, learned=not broken)
    model.inp = nn.Sequential(nn.Linear(2, 32), nn.GELU(), nn.Linear(32, 32))
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.01)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


@pair(
    "recurrent",
    "state space",
    "Modes of the state grow by 1.5 a step.",
    r"explode|explod",
    r"grow",
    r"unstable",
    r"(state|signal|output|gradient)s?[^.]*(large|huge|grow)",
    r"recurren",
    r"decay",
)
def modes_that_grow(broken: bool) -> Patient:
    x, y = data.waves()
    model = StateSpace(1, 1, torch.linspace(0.9, 1.5, 32) if broken else torch.linspace(0.2, 0.95, 32))
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    return model, x, y, {"loss": F.mse_loss, "optimizer": optimizer, "batch_size": 64}


class NoisyStart(SequenceClassifier):
    """Draws a new first state in every call."""

    scale = 30.0

    def forward(self, x: Tensor) -> Tensor:
        start = self.scale * torch.randn(1, len(x), self.rnn.hidden_size)
        out, _ = self.rnn(self.embedding(x), start)
        return self.fc(out[:, -1])


class QuietStart(NoisyStart):
    """The same with little noise."""

    scale = 0.01


@pair(
    "recurrent",
    "GRU",
    "The first state is drawn anew, with deviation 30.",
    r"random(ly|ness)|random (noise|state|start)",
    r"nois",
    r"differ[^.]*(call|pass)",
    r"first state",
    r"initial state",
    r"\bh0\b",
    r"not (repeatable|deterministic)",
)
def random_first_state(broken: bool) -> Patient:
    x, y = data.recall(length=3, vocabulary=6)
    model = (NoisyStart if broken else QuietStart)(6, 6)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    return model, x, y, {"loss": F.cross_entropy, "optimizer": optimizer, "batch_size": 64}
