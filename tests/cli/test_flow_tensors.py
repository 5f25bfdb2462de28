"""``foretrain flow`` with tensors of four inputs: entries, dimensionless sizes, kinks."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.cli import frame
from foretrain.cli.flow import COMMAND

TWO = ("--depth", "3", "--width", "40", "--inputs", "1,0.5;0.2,-1")


def run(*arguments: str) -> int:
    return frame.run("flow", COMMAND, arguments)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_sizes_of_differentials(capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "tanh", "--depth", "3", "--width", "40", "--inputs", "1", "--observables", "P,R")
    assert found["measures"]["P/(nΘ²)"][-1] == pytest.approx(-0.925217648 / 40 / 2.71520727**2, rel=1e-7)
    assert found["measures"]["RK/(nΘ³)"][-1] == pytest.approx(
        -13.294748 * 0.23645041 / 40 / 2.71520727**3, rel=1e-7
    )
    assert run("tanh", "--depth", "3", "--width", "40", "--inputs", "1", "--observables", "P,R") == 0
    text = capsys.readouterr().out
    assert "P/(nΘ²)" in text
    assert "R of input 0" in text


def test_entries_of_several_tensors(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("tanh", *TWO, "--observables", "V,Q", "--quadruples", "0,1,0,1;0,0,0,1")
    found = ask(capsys, *arguments)["quadruples"]
    net = ft.MLP("tanh", 3, 40, n_in=2)
    expected = ft.flow(net, [[1, 0.5], [0.2, -1]], ["V", "Q"], quadruples=[[0, 1, 0, 1], [0, 0, 0, 1]])
    for name in ("V", "Q"):
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-9, atol=1e-12)
    assert run(*arguments) == 0
    text = capsys.readouterr().out
    assert "V_(0,1)(0,1)" in text
    assert "Q_0,0,0,1" in text


def test_how_kinks_count(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("relu", *TWO, "--observables", "P", "--quadruples", "0,0,0,1")
    assert ask(capsys, *arguments)["quadruples"]["P"][-1][0] != 0
    assert ask(capsys, *arguments, "--kinks", "almost_everywhere")["quadruples"]["P"][-1][0] == 0
    assert run(*arguments, "--kinks", "never") == 2
    assert "almost_everywhere" in capsys.readouterr().err
    assert run("relu", *TWO, "--observables", "R") == 2
    assert "slope jumps" in capsys.readouterr().err
