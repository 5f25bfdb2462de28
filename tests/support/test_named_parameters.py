"""What cannot be used is said of the argument that held it, by the name that the argument has in Python."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import Linear, Sequential, Tanh

import foretrain as ft
from foretrain import experiments
from foretrain.support.errors import ForetrainError, InputError

M = ft.MLP.critical("tanh", depth=3, width=10)
X = np.random.default_rng(0).standard_normal((6, 4))
Y = X[:, 0]


def network() -> tuple[Sequential, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(20, 4)
    return Sequential(Linear(4, 8), Tanh(), Linear(8, 1)), x, x[:, :1]


NET, x, y = network()


def predict(**options: Any) -> Any:
    return ft.predict(M, X, Y, X, **options)


def escape(**options: Any) -> Any:
    return ft.saddle.escape_time("tanh", **{"scales": [0.1, 0.1], "width": 64, "threshold": 0.3} | options)


def vanished() -> Any:
    return ft.flow(ft.MLP("relu", depth=80, width=10, C_W=1e-9, C_b=0), X, ["K", "V"])


CASES: list[tuple[str, Callable[[], Any]]] = [
    ("widths", lambda: ft.compare(M, X, widths=[0])),
    ("scales", lambda: escape(scales=[-1, 0.1])),
    ("method", lambda: escape(method="foo")),
    ("time", lambda: escape(time="foo")),
    ("mlp", lambda: ft.flow(3, X)),  # type: ignore[arg-type]
    ("kinks", lambda: ft.flow(M, X, kinks="foo")),  # type: ignore[arg-type]
    ("observables", lambda: ft.flow(M, X, ["Z"])),
    ("observables", lambda: ft.flow(M, X, [])),
    ("C_W", vanished),
    ("K", lambda: ft.susceptibility("tanh", -1)),
    ("Y_train", lambda: ft.predict(M, X, Y[:3], X)),
    ("Y_train", lambda: ft.predict(M, X, Y[:3], X, learner="bayes", regime="finite")),
    ("Y_train", lambda: ft.predict(M, X, np.full(6, np.nan), X)),
    ("noise", lambda: predict(noise=1)),
    ("noisy_labels", lambda: predict(noisy_labels=True)),
    ("regime", lambda: predict(regime="foo")),
    ("learner", lambda: predict(learner="foo")),
    ("algorithm", lambda: predict(algorithm="foo")),
    ("loss", lambda: predict(loss="foo")),
    ("draws", lambda: predict(draws=0)),
    ("draws", lambda: predict(draws=-5)),
    ("draws", lambda: predict(draws=-5, learner="bayes", regime="finite")),
    ("seed", lambda: predict(seed=-1)),
    ("outputs", lambda: ft.ntk(NET, x, outputs="foo")),  # type: ignore[arg-type]
    ("by", lambda: ft.ntk(NET, x, by="foo")),  # type: ignore[arg-type]
    ("x", lambda: ft.ntk(NET, x * float("nan"))),
    ("x", lambda: ft.ntk(NET, x[:, :2])),
    ("y", lambda: ft.ntk(NET, x).regression(y[:3])),
    ("y", lambda: ft.ntk(NET, x).alignment(y[:3])),
    ("states", lambda: ft.global_ntk(NET, x, states="foo")),
    ("parameters", lambda: ft.global_ntk(NET, x, parameters="zzz*")),
    ("rates", lambda: ft.ntk(NET, x, rates={"zzz*": 1.0})),
    ("loss", lambda: ft.plateau(NET, x, y, lr=0.1, loss="foo")),
    ("y", lambda: ft.plateau(NET, x, y[:3], lr=0.1)),
    ("loss", lambda: ft.doctor(NET, x, y, loss="foo")),
    ("checks", lambda: ft.doctor(NET, x, y, checks=["foo"])),
    ("y", lambda: ft.doctor(NET, x, None)),
    ("activation", lambda: ft.activation("foo")),
    ("activation", lambda: ft.MLP("foo", depth=3, width=10)),
    ("slope", lambda: ft.activation("leaky_relu", slope="a")),  # type: ignore[arg-type]
    ("slope", lambda: ft.activation("tanh", slope=1)),
    ("name", lambda: experiments.get("foo")),
    ("data", lambda: ft.save(3, "nowhere.zarr")),  # type: ignore[arg-type]
    ("path", lambda: ft.load("nope")),
]


@pytest.mark.parametrize(("parameter", "call"), CASES)
def test_errors_name_the_argument_at_fault(parameter: str, call: Callable[[], Any]) -> None:
    with pytest.raises(ForetrainError) as caught:
        call()
    assert caught.value.parameter == parameter
    assert parameter in str(caught.value)


def test_an_unknown_observable_of_a_recorder_is_one_of_observables(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        ft.training.Recorder(tmp_path, NET, ["foo"])
    assert caught.value.parameter == "observables"


@pytest.mark.parametrize(
    "message",
    [
        "`the kernel` is not a real array.",
        "run the same `ntk(..., store=)|command` again.",
        "`give fewer|give none below 0`.",
        "install it with `pip install scikit-learn`.",
    ],
)
def test_marks_that_hold_other_words_name_no_parameter(message: str) -> None:
    assert InputError(message).parameters == ()


def test_a_parameter_may_be_spelt_otherwise_on_the_command_line() -> None:
    assert InputError("leave out `slope|--set slope`.").parameters == ("slope",)
