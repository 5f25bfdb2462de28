from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.cli import main as cli
from foretrain.cli.frame import run
from foretrain.cli.global_ntk import COMMAND

MODEL = """
import torch

class Reading(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.rnn = kind(2, 4, batch_first=True)
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.head(self.rnn(x)[0])

def make():
    torch.manual_seed(0)
    return Reading(torch.nn.GRU).double()

def long():
    torch.manual_seed(0)
    return Reading(torch.nn.LSTM).double()

def time_first():
    torch.manual_seed(0)
    return torch.nn.RNN(2, 4).double()

def hidden_time_first():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.RNN(2, 4)).double()

def loop():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.head = torch.nn.Linear(6, 4), torch.nn.Linear(4, 3)
        def forward(self, x):
            state, states = x.new_zeros(len(x), 4), []
            for now in x.unbind(1):
                state = torch.tanh(self.cell(torch.cat([state, now], 1)))
                states.append(state)
            states = torch.stack(states, 1)
            return self.head(states), states
    torch.manual_seed(0)
    return Model().double()

def tokens():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = torch.nn.Embedding(5, 2)
            self.rnn = torch.nn.RNN(2, 4, batch_first=True)
        def forward(self, x):
            return self.rnn(self.embed(x))[0]
    torch.manual_seed(0)
    return Model().double()
"""
SAMPLES, STEPS = 6, 5


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, Path]:
    (tmp_path / "model.py").write_text(MODEL)
    random = np.random.default_rng(0)
    x, y = random.normal(size=(SAMPLES, STEPS, 2)), random.normal(size=(SAMPLES, STEPS, 3))
    np.savez(tmp_path / "data.npz", x=x, y=y)
    np.savez(tmp_path / "alone.npz", x=x)
    np.savez(tmp_path / "ends.npz", x=x, y=y[:, -1])
    mask = (random.random((SAMPLES, STEPS)) < 0.7).astype(float)
    np.savez(tmp_path / "masked.npz", x=x, y=y, mask=mask)
    np.savez(tmp_path / "wrong.npz", x=x, y=y, mask=mask.T)
    np.savez(tmp_path / "labels.npz", x=x, y=np.arange(SAMPLES))
    np.savez(tmp_path / "tokens.npz", x=random.integers(0, 5, size=(SAMPLES, STEPS)))
    return f"{tmp_path / 'model.py'}:", tmp_path / "data.npz"


def call(files: tuple[str, Path], name: str, *arguments: str, data: str = "data.npz") -> int:
    return run("global", COMMAND, [files[0] + name, str(files[1].with_name(data)), *arguments])


def ask(
    capsys: pytest.CaptureFixture[str],
    files: tuple[str, Path],
    name: str,
    *arguments: str,
    data: str = "data.npz",
) -> Any:
    assert call(files, name, *arguments, "--json", data=data) == 0
    return json.loads(capsys.readouterr().out)


def made(name: str) -> torch.nn.Module:
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    model: torch.nn.Module = scope[name]()
    return model


def test_all_of_a_model_with_a_readout(files: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, files, "make", "--modes", "3")
    model = made("make")
    with np.load(files[1]) as data:
        x, y = torch.from_numpy(data["x"]), data["y"]
    kernel = ft.global_ntk(model, x)
    values = torch.linalg.eigvalsh(kernel.dense()).flip(0).numpy()
    assert found["trace"]["value"] == pytest.approx(values.sum())
    assert found["effective_rank"]["value"] == pytest.approx(values.sum() ** 2 / np.square(values).sum())
    assert found["eigenvalues"] == pytest.approx(values[:3], rel=1e-6)
    assert found["samples"] == {"count": SAMPLES, "used": list(range(SAMPLES))}
    view = found["states"]["states"]
    assert view["axes"] == {"batch": SAMPLES, "time": STEPS, "unit": 4}
    temporal = (
        torch.linalg.eigvalsh(kernel.partial_trace(over="unit", normalize=True, method="exact").dense())
        .flip(0)
        .numpy()
    )
    assert view["temporal_shares"][:3] == pytest.approx(temporal[:3] / temporal.sum(), rel=1e-6)
    assert np.shape(view["temporal_modes"]) == (3, SAMPLES, STEPS)
    exact = kernel.alignment(y, model.head.weight)  # type: ignore[union-attr]
    assert view["alignment"]["rayleigh"] == pytest.approx(exact.rayleigh)
    loss = 0.5 * (model(x) - torch.from_numpy(y)).square().sum()
    loss.backward()  # type: ignore[no-untyped-call]
    gradient = model.rnn.weight_hh_l0.grad  # type: ignore[union-attr]
    assert view["loss_decrease"]["rnn.weight_hh_l0"] == pytest.approx(float(gradient.square().sum()))  # type: ignore[union-attr, operator]
    assert "head" in view["readout"]
    assert sum(share["value"] for share in found["trace_shares"].values()) == pytest.approx(1)


def test_members_samples_and_parameters(files: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--states", "hidden,cell", "--samples", "3", "--parameters", "rnn.weight_ih*,rnn.bias_ih*")
    found = ask(capsys, files, "long", *options, "--seed", "5")
    assert list(found["states"]) == ["hidden", "cell"]
    assert set(found["trace_shares"]) == {"rnn.weight_ih_l0", "rnn.bias_ih_l0"}
    used = found["samples"]["used"]
    assert len(used) == 3
    assert used == sorted(set(used))
    assert found["samples"]["count"] == SAMPLES
    with np.load(files[1]) as data:
        x = torch.from_numpy(data["x"][used])
    kernel = ft.global_ntk(made("long"), x, ("hidden", "cell"), parameters=["rnn.weight_ih*", "rnn.bias_ih*"])
    assert found["trace"]["value"] == pytest.approx(float(kernel.dense().diagonal().sum()))
    assert ask(capsys, files, "long", *options, "--seed", "5")["samples"]["used"] == used


def test_without_targets_and_time_first(files: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, files, "time_first", data="alone.npz")
    view = found["states"]["states"]
    assert view["axes"] == {"batch": SAMPLES, "time": STEPS, "unit": 4}
    assert "alignment" not in view
    assert found["notes"] == []
    assert call(files, "hidden_time_first") == 2
    assert "batch_first" in capsys.readouterr().err


def test_targets_of_samples_and_labels(files: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, files, "make", data="ends.npz")
    assert (
        len(found["states"]["states"]["alignment"]["rayleigh"]) == 4
    )  # the mean over samples, and three deviations
    labels = ask(capsys, files, "make", data="labels.npz")
    assert "alignment" not in labels["states"]["states"]
    assert "No alignment" in labels["notes"][0]


def test_tokens(files: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, files, "tokens", "--parameters", "rnn.*", data="tokens.npz")
    assert found["size"] == SAMPLES * STEPS * 4


@pytest.mark.slow
def test_people_get_tables_pictures_and_stores(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    options = ("--samples", "4", "--plot", str(tmp_path / "g.png"), "--save", str(tmp_path / "answer"))
    assert call(files, "make", *options) == 0
    text = capsys.readouterr().out
    for part in (
        "4 of 6 samples (seed 0)",
        "Effective rank",
        "in time",
        "share of the loss decrease",
        "Speed",
    ):
        assert part in text
    assert (tmp_path / "g.png").stat().st_size > 10_000
    stored = ft.load(tmp_path / "answer")
    assert stored["temporal_mode"].dims == ("mode", "batch", "time")
    assert len(stored.attrs["samples"]) == 4


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--states", "hiden"), "hiden"),
        (("--states", "hidden,,cell"), "--states is 'hidden,,cell': give names separated by commas"),
        (("--parameters", "nothing.*"), "nothing"),
        (("--accuracy", "-1"), "accuracy"),
    ],
)
def test_bad_input(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    assert call(files, "make", *arguments) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1


def test_the_command_is_called_global(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["global", "--help"]) == 0
    assert "foretrain global model.py:make data.npz" in capsys.readouterr().out


def test_states_of_a_loop_its_readout_and_a_mask(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--states", "output.1", "--readout", "head", "--components", "target")
    found = ask(capsys, files, "loop", *options, data="masked.npz")
    model = made("loop")
    with np.load(files[1].with_name("masked.npz")) as data:
        x, y, mask = torch.from_numpy(data["x"]), data["y"], data["mask"]
    kernel = ft.global_ntk(model, x, [("", 1)])
    view = next(iter(found["states"].values()))
    assert view["axes"] == {"batch": SAMPLES, "time": STEPS, "unit": 4} or list(view["axes"].values()) == [
        SAMPLES,
        STEPS,
        4,
    ]
    exact = kernel.alignment(y, model.head, components="target", mask=mask)
    assert view["alignment"]["rayleigh"] == pytest.approx(exact.rayleigh)
    loss = 0.5 * (torch.from_numpy(mask)[..., None] * (model(x)[0] - torch.from_numpy(y)).square()).sum()
    gradient = torch.autograd.grad(loss, model.cell.weight)[0]  # type: ignore[union-attr, arg-type]
    assert view["loss_decrease"]["cell.weight"] == pytest.approx(float(gradient.square().sum()))
    assert (
        ask(capsys, files, "make", data="masked.npz")["states"]["states"]["alignment"]["modes"][0] == "mean 1"
    )
    assert call(files, "make", data="wrong.npz") == 2
    assert "mask in" in capsys.readouterr().err
    assert call(files, "loop", "--readout", "haed") == 2
    assert "did you mean 'head'" in capsys.readouterr().err
