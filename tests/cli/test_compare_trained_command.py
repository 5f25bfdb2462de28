from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.cli import compare as command
from foretrain.cli.compare import COMMAND
from foretrain.cli.frame import run
from foretrain.compare.trained import comparison
from foretrain.theory.prediction.bayes import bayes_prediction

QUICK = ("--trained", "--depth", "2", "--width", "16", "--draws", "100")


def call(*arguments: str) -> int:
    return run("compare", COMMAND, arguments)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert call(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_the_built_in_example_as_tables_and_as_a_picture(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "trained.png"
    assert call("tanh", *QUICK, "--plot", str(picture)) == 0
    text = capsys.readouterr().out
    for part in (
        "trained to the end",
        "mean of output 0 at 1",
        "covariance at 0 1",
        "tanh: the prediction agrees",
    ):
        assert part in text
    assert picture.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.slow
def test_a_data_file_is_trained_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x, tests = np.array([[1.0, 0.5], [-0.4, 1.0]]), np.array([[0.3, 0.2], [0.8, -1.0], [1.0, 1.0]])
    y = np.array([[0.5, -0.2], [1.0, 0.3]])
    path = tmp_path / "data.npz"
    np.savez(path, x=x, y=y, x_test=tests)
    options = ("--learner", "bayes", "--noise", "0.2", "--c-b", "0.1", "--c-w", "1.2", "--scales", "1,2,3")
    found = ask(capsys, "tanh", *QUICK, "--data", str(path), *options, "--save", str(tmp_path / "out"))
    (document,) = found["comparisons"]
    mlp = ft.MLP("tanh", depth=2, width=16, n_out=2, C_b=0.1, C_W=1.2)
    expected = bayes_prediction(mlp, x, y, tests, noise=0.2).mean.values.ravel()
    theory = [row["theory"] for row in document["entries"] if row["observable"] == "mean"]
    np.testing.assert_allclose(theory, expected, rtol=1e-9)
    assert document["widths"] == [16, 32, 48]
    assert document["learner"] == "bayes"
    assert ft.load(tmp_path / "out" / "data.zarr").attrs["noise"] == 0.2


@pytest.mark.slow
def test_two_activations_at_a_finite_time(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, "tanh", "sin", *QUICK, "--time", "4", "--eta", "0.1", "--save", str(tmp_path / "out"))
    assert [part["activation"] for part in found["comparisons"]] == ["tanh", "sin"]
    assert all(part["steps"] == [4, 4, 4] for part in found["comparisons"])
    assert ft.load(tmp_path / "out" / "data.zarr").sizes["activation"] == 2


def test_a_disagreement_ends_with_one(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = comparison.values_of
    monkeypatch.setattr(comparison, "values_of", lambda *arguments: right(*arguments) + 0.3)
    assert call("tanh", *QUICK) == 1
    assert "does NOT agree" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("tanh", "--time", "3"), "--time is for trained networks: add --trained"),
        (
            ("tanh", *QUICK, "--observables", "K"),
            "--observables is for networks at initialisation: leave out",
        ),
        (("tanh", *QUICK, "--learner", "svm"), "unknown --learner 'svm'"),
        (("tanh", *QUICK, "--eta", "50"), "give a smaller --eta"),
        (("tanh", *QUICK, "--draws", "3"), "at least 40"),
        (("tanh", "--regime", "finite"), "--regime is for trained networks: add --trained"),
        (
            ("tanh", *QUICK, "--inputs", "1"),
            "--inputs is for networks at initialisation: leave out --trained",
        ),
        (("tanh", *QUICK, "--regime", "final"), "unknown --regime 'final'"),
        (("tanh", *QUICK, "--regime", "finite", "--time", "3"), "--time is for infinite width: leave it out"),
        (("tanh", *QUICK, "--regime", "finite", "--loss", "squared_error"), "--loss is for infinite width"),
        (("tanh", *QUICK, "--regime", "finite", "--noise", "1"), "use --learner bayes, or leave it out"),
        (("tanh", *QUICK, "--regime", "finite", "--scales", "1,2"), "give at least 3 different positive"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(*arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_a_file_without_test_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.savez(tmp_path / "data.npz", x=np.eye(2), y=np.ones(2))
    assert call("tanh", *QUICK, "--data", str(tmp_path / "data.npz")) == 2
    assert "no array 'x_test'" in capsys.readouterr().err


FINITE = ("--trained", "--regime", "finite", "--depth", "2", "--width", "16", "--draws", "800")


@pytest.mark.slow
def test_the_order_of_one_over_the_width(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, folder = tmp_path / "finite.png", tmp_path / "out"
    options = (*FINITE, "--scales", "1,2,4", "--save", str(folder), "--plot", str(picture))
    assert call("sin", *options) == 0
    text = capsys.readouterr().out
    for part in (
        "networks trained",
        "n = 64",
        "interaction of output 0 at 1",
        "ntk_change: n times",
        "sin: the order 1/n",
    ):
        assert part in text
    assert picture.read_bytes()[:4] == b"\x89PNG"
    (found,) = json.loads((folder / "answer.json").read_text())["comparisons"]
    assert (found["regime"], found["widths"]) == ("finite", [16, 32, 64])
    mlp = ft.MLP.critical("sin", depth=2, width=64)
    data = (command._TRAIN, command._TARGETS, command._TESTS)
    expected = ft.predict(mlp, *data, regime="finite", eta=found["eta"])
    theory = [row["theory"] for row in found["entries"] if row["observable"] == "mean"]
    shift = 64 * (expected.mean - expected.infinite_mean).values.ravel()
    np.testing.assert_allclose(theory, shift, rtol=1e-6)
    np.testing.assert_allclose(
        sum(np.array(term).ravel() for term in found["scaled_terms"].values()), shift, rtol=1e-6
    )
    assert set(ft.load(folder).observable.values) == {"ntk_variance", "interaction", "mean", "ntk_change"}


@pytest.mark.slow
def test_posteriors_to_order_one_over_the_width(capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--draws", "110000", "--learner", "bayes", "--noise", "0.1")
    (found,) = ask(capsys, "tanh", *FINITE, *options)["comparisons"]
    assert found["learner"] == "bayes"
    assert {row["observable"] for row in found["entries"]} == {"log_evidence", "mean", "covariance", "wiring"}
    assert found["steps"] == [None, None, None]


def test_numbered_classes_have_an_output_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.random.default_rng(0).normal(size=(5, 3))
    path = tmp_path / "classes.npz"
    np.savez(path, x=x[:3], y=np.array([0, 2, 1]), x_test=x[3:])
    options = ("--data", str(path), "--loss", "cross-entropy", "--time", "3")
    (found,) = ask(capsys, "tanh", *QUICK, *options)["comparisons"]
    assert {row["output"] for row in found["entries"] if row["observable"] == "mean"} == {0, 1, 2}
