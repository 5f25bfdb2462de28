"""``foretrain predict`` as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import foretrain as ft
from foretrain.cli import frame
from foretrain.cli.main import main
from foretrain.cli.predict import COMMAND

X = 1.3 * np.array([(1, 0.2, -0.5), (-0.4, 1.1, 0.3), (0.1, -0.6, 1.2), (0.8, 0.7, 0.1), (-0.9, 0.3, 0.8)])
Y = np.array([(1, -0.5), (-0.7, 0.8), (0.4, 1.2)])
RELU = ("relu", "--depth", "4", "--c-b", "0", "--c-w", "2", "--lambda-b", "0.125", "--lambda-w", "0.2")


def run(*arguments: str) -> int:
    return frame.run("predict", COMMAND, arguments)


def ask(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def regression(tmp_path: Path) -> str:
    path = tmp_path / "data.npz"
    np.savez(path, x=X[:3], y=Y, x_test=X[3:], y_test=np.array([(0.3, 0.1), (-0.2, 1.0)]))
    return str(path)


@pytest.fixture
def classes(tmp_path: Path) -> str:
    path = tmp_path / "classes.npz"
    x = np.random.default_rng(0).normal(size=(45, 4))
    np.savez(path, x=x[:30], y=x[:30, :3].argmax(1), x_test=x[30:], y_test=x[30:, :3].argmax(1))
    return str(path)


def test_numbers_of_the_reference(regression: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, *RELU, "--data", regression)
    np.testing.assert_allclose(
        found["mean"], [(0.361214520, 0.057187634), (-0.162508699, 0.711956267)], atol=2e-9
    )
    np.testing.assert_allclose(found["variance"], [0.3015211667, 0.5274799546], atol=2e-10)
    assert found["lambda_W"] == [0.2] * 4
    loss = found["test_loss"]
    assert loss["mean"] == pytest.approx(loss["bias"] + loss["variance"])
    bayes = ask(capsys, *RELU, "--data", regression, "--learner", "bayes", "--noise", "0.1")
    expected = ft.predict(
        ft.MLP("relu", 4, 100, n_out=2, C_W=2.0), X[:3], Y, X[3:], learner="bayes", noise=0.1
    )
    np.testing.assert_allclose(bayes["mean"], expected.mean, atol=1e-10)
    assert bayes["log_evidence"] == pytest.approx(expected.to_dataset().attrs["log_evidence"])


def test_the_example_needs_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, folder = tmp_path / "curve.png", tmp_path / "saved"
    assert run("tanh", "--plot", str(picture), "--save", str(folder)) == 0
    text = capsys.readouterr().out
    assert "6 points of sin(1.6 x)" in text
    assert "at the end of training" in text
    assert "± spread" in text
    assert "bias" in text
    assert picture.stat().st_size > 10_000
    saved = ft.load(folder / "data.zarr")
    assert isinstance(saved, xr.Dataset)
    assert {"mean", "covariance", "x", "x_test", "y", "y_test"} <= set(saved)


def test_steps_with_momentum(regression: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, *RELU, "--data", regression, "--time", "30", "--eta", "0.2", "--momentum", "0.8")
    relu = ft.MLP("relu", 4, 100, n_out=2, C_W=2.0, lambda_b=0.125, lambda_W=0.2)
    expected = ft.predict(relu, X[:3], Y, X[3:], time=30, eta=0.2, momentum=0.8)
    np.testing.assert_allclose(found["mean"], expected.mean, atol=1e-10)


def test_steps_flow_and_skip_connections(capsys: pytest.CaptureFixture[str]) -> None:
    early = ask(capsys, "erf", "--algorithm", "flow", "--time", "0.5", "--gamma", "0.4", "--depth", "4")
    assert "flow time 0.5" in early["statement"]
    assert early["gamma"] == [0, 0.4, 0.4, 0]
    steps = ask(capsys, "erf", "--time", "3")
    assert "after 3 steps" in steps["statement"]
    newton, end = (ask(capsys, "erf", *extra) for extra in (("--algorithm", "newton"), ()))
    assert newton["mean"] == end["mean"]


def test_classes_are_learned_by_the_cross_entropy(
    classes: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = ask(capsys, "relu", "--data", classes)
    assert found["loss"] == "cross_entropy"
    assert found["label_smoothing"] == 0.1
    chances = np.array(found["probabilities"])
    assert chances.shape == (15, 3)
    np.testing.assert_allclose(chances.sum(axis=1), 1)
    assert found["accuracy"] > 0.6  # one in three by chance
    picture = tmp_path / "classes.png"
    assert run("relu", "--data", classes, "--loss", "Cross-Entropy", "--plot", str(picture)) == 0
    text = capsys.readouterr().out
    assert "Labels are smoothed" in text
    assert "most probable class" in text
    hot = ask(capsys, "relu", "--data", classes, "--one-hot")
    assert hot["loss"] == "squared_error"
    assert np.shape(hot["mean"]) == (15, 3)


@pytest.mark.parametrize("kind", [bool, np.float64, np.uint8])
def test_classes_however_they_are_saved(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: Any
) -> None:
    path, x = tmp_path / "two.npz", np.random.default_rng(0).normal(size=(30, 4))
    labels = (x[:, 0] > 0).astype(int)
    found = []
    for saved in (labels, labels.astype(kind)):
        given = saved if kind is not np.float64 else labels  # a float y is no class, but a float y_test is
        np.savez(path, x=x[:20], y=given[:20], x_test=x[20:], y_test=saved[20:])
        found.append(ask(capsys, "relu", "--data", str(path)))
    assert found[0] == found[1]
    assert found[0]["accuracy"] > 0.5


@pytest.mark.parametrize(
    ("y", "y_test", "message"),
    [
        ([0, 1, 2], [0.5, 1.0], "y_test does not"),
        ([0, 1, 2_000_000_000], [0, 1], "without gaps"),
        ([0, 1, 2], [-1, 1], "no classes"),
    ],
)
def test_what_is_no_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], y: list[int], y_test: list[float], message: str
) -> None:
    path = tmp_path / "classes.npz"
    np.savez(path, x=X[:3], y=y, x_test=X[3:], y_test=y_test)
    assert run("relu", "--data", str(path)) == 2
    told = capsys.readouterr().err
    assert message in told
    assert told.count("\n") == 1


def test_names_may_be_spelt_with_either_stroke(capsys: pytest.CaptureFixture[str]) -> None:
    found = [ask(capsys, "relu", "--algorithm", name, "--eta", "3") for name in ("two-step", "two_step")]
    assert found[0] == found[1]


def test_without_test_inputs_some_samples_are_held_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.random.default_rng(1).normal(size=(12, 2, 2))
    np.savez(tmp_path / "few.npz", x=x, y=x[:, 0, 0])
    found = ask(capsys, "relu", "--data", str(tmp_path / "few.npz"))
    assert np.shape(found["mean"]) == (2, 1)
    assert "every fifth" in found["data"]
    np.savez(tmp_path / "one.npz", x=x[:2], y=x[:2, 0, 0])
    assert run("relu", "--data", str(tmp_path / "one.npz")) == 2
    assert "inputs to predict" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("tanh", "--noise", "1"),
            "use --learner bayes, which is training of the output layer with a penalty, or stop early with --time.",
        ),
        (
            ("tanh", "--learner", "bayes", "--time", "3"),
            "leave --algorithm, --eta, --time and --momentum out, or use --learner gradient_descent.",
        ),
        (("tanh", "--loss", "cross_entropy"), "example has no classes"),
        (("tanh", "--one-hot"), "example has no classes"),
        (("tanh", "--algorithm", "adam"), "unknown --algorithm"),
        (("sigmoid",), "critical"),
        (("tanh", "--width", "10,20,30"), "--width lists 3 layers but depth 3 has 2 hidden layers"),
        (("tanh", "--width", "wide"), "--width is 'wide': give whole numbers"),
        (
            ("tanh", "--time", "2.5"),
            "--time is 2.5: steps are whole numbers; for continuous time use --algorithm flow",
        ),
        (("tanh", "--regime", "finite", "--algorithm", "newton"), "use --algorithm two_step"),
        (
            ("tanh", "--algorithm", "flow", "--momentum", "0.9"),
            "--momentum is for --algorithm gradient_descent",
        ),
        (
            ("tanh", "--tolerance", "1e-8"),
            "--tolerance is of integrals, of training at finite width",
        ),
        (("tanh", "--regime", "finite", "--tolerance", "2"), "--tolerance is 2.0: give a number"),
        (("tanh", "--data", "CLASSES", "--loss", "squared-error"), "add --one-hot"),
        (("tanh", "--data", "CLASSES", "--learner", "bayes"), "add --one-hot"),
        (("tanh", "--data", "CLASSES", "--one-hot", "--loss", "cross-entropy"), "for squared errors"),
        (("tanh", "--data", "NUMBERS", "--one-hot"), "holds no classes"),
        (("tanh", "--data", "NUMBERS", "--loss", "cross_entropy"), "holds no classes"),
        (("tanh", "--data", "NEGATIVE"), "no classes 0, 1"),
        (("tanh", "--data", "missing.npz"), "not a file"),
    ],
)
def test_bad_input_is_one_sentence(
    arguments: tuple[str, ...],
    message: str,
    classes: str,
    regression: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    negative = tmp_path / "negative.npz"
    np.savez(negative, x=X, y=np.array([-1, 0, 1, 0, 1]))
    files = {"CLASSES": classes, "NUMBERS": regression, "NEGATIVE": str(negative)}
    assert run(*(files.get(word, word) for word in arguments)) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert message in told.err
    assert len(told.err.strip().splitlines()) == 1


def test_finite_width_tells_its_parts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "few.npz"
    np.savez(path, x=X[:2], y=Y[:2, :1], x_test=X[3:])
    arguments = ("sin", "--data", str(path), "--depth", "2", "--width", "300", "--regime", "finite")
    found = ask(capsys, *arguments)
    parts = np.sum(list(found["terms"].values()), axis=0)
    np.testing.assert_allclose(found["mean"], found["infinite_mean"] + parts, atol=1e-12)
    assert 0 < found["terms_over_mean"] < 0.1
    sampled = ask(capsys, *arguments, "--draws", "40", "--seed", "3")
    assert np.shape(sampled["standard_error"]) == (2, 1)
    assert sampled["mean"] == ask(capsys, *arguments, "--draws", "40", "--seed", "3")["mean"]
    assert run(*arguments, "--learner", "bayes") == 0
    text = capsys.readouterr().out
    assert "at most: wiring" in text
    assert "Log evidence of the training targets: " in text


@pytest.mark.filterwarnings("ignore:the corrections of order")
def test_the_option_that_a_warning_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "near.npz"
    near = np.concatenate([X[:2], X[:1] + 1e-2])
    np.savez(path, x=near, y=np.array([1.0, -0.7, 1.01]), x_test=X[3:])
    arguments = ("sin", "--data", str(path), "--depth", "2", "--width", "100000", "--regime", "finite")
    assert run(*arguments, "--tolerance", "1e-5") == 0
    assert "or lower --tolerance." in " ".join(capsys.readouterr().err.split())
    assert run(*arguments) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_hidden_layers_may_differ_in_width(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("sin", "--depth", "3", "--width", "40,80", "--regime", "finite")
    found = ask(capsys, *arguments)
    assert found["hidden_widths"] == [40, 80]
    other = ask(capsys, *arguments, "--width", "80,40")
    assert found["infinite_mean"] == other["infinite_mean"]
    assert found["mean"] != other["mean"]


@pytest.mark.slow
@pytest.mark.parametrize("learner", ["gradient_descent", "bayes"])
def test_finite_width_is_beside_infinite_width(
    learner: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "finite.png"
    arguments = ("erf", "--depth", "2", "--width", "300", "--regime", "finite", "--learner", learner)
    assert run(*arguments, "--plot", str(picture)) == 0
    text = capsys.readouterr().out
    assert "infinite width" in text
    assert "3 points of sin(1.6 x)" in text
    assert picture.exists()


def test_the_command_is_offered(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["predict", "relu", "--learner", "bayes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["statement"] == "Bayesian inference at infinite width"
