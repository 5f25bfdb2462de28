from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.cli.frame import run
from foretrain.cli.ntk import COMMAND
from foretrain.empirical import alignment, regression
from foretrain.empirical.stored_kernel.reading import StoredKernel

MODEL = """
import torch

def make():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).double()

def embed():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(9, 4), torch.nn.Flatten(), torch.nn.Linear(8, 2)).double()
"""
SAMPLES, TESTS = 30, 7


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, Path]:
    (tmp_path / "model.py").write_text(MODEL)
    random = np.random.default_rng(0)
    x, x_test = random.normal(size=(SAMPLES, 4)), random.normal(size=(TESTS, 4))
    y, y_test = (np.argmax(part[:, :3], axis=1) for part in (x, x_test))
    np.savez(tmp_path / "data.npz", x=x, y=y, x_test=x_test, y_test=y_test)
    return f"{tmp_path / 'model.py'}:make", tmp_path / "data.npz"


def call(model: str, data: Path, *arguments: str) -> int:
    return run("ntk", COMMAND, [model, str(data), *arguments])


def ask(capsys: pytest.CaptureFixture[str], files: tuple[str, Path], *arguments: str) -> Any:
    assert call(*files, *arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def model_and_data(files: tuple[str, Path]) -> tuple[torch.nn.Module, dict[str, Any]]:
    scope: dict[str, Any] = {}
    exec(MODEL, scope)
    with np.load(files[1]) as data:
        return scope["make"](), {name: data[name] for name in data.files}


def test_in_memory(files: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    found = ask(capsys, files)
    model, data = model_and_data(files)
    kernel = ft.ntk(model, torch.from_numpy(data["x"]))
    exact = kernel.spectrum()
    assert found["eigenvalues"] == pytest.approx(exact.eigenvalues[:10], rel=1e-10)
    assert found["trace"] == pytest.approx(exact.trace)
    assert found["effective_rank"] == pytest.approx(exact.effective_rank)
    assert found["entropy_rank"] == pytest.approx(exact.entropy_rank, rel=1e-6)
    assert (found["store"], found["samples"], found["size"]) == (None, SAMPLES, 3 * SAMPLES)
    assert found["alignment"]["plain"] == pytest.approx(alignment(kernel, data["y"]).alignment)
    layers = ft.ntk(model, torch.from_numpy(data["x"]), by="layer")
    part = float(torch.einsum("nnaa->", layers["0"])) / exact.trace
    assert found["layer_shares"] == pytest.approx({"0": part, "2": 1 - part})
    assert set(found["routes"]) == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_on_disk_with_a_fit(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "k.zarr"
    options = ("-o", str(store), "--workers", "1", "--batch-size", "8", "--ridge", "0.1", "--test")
    found, memory = ask(capsys, files, *options), ask(capsys, files, "--ridge", "0.1", "--test")
    assert (found["store"], memory["store"]) == (str(store), None)
    for name in ("eigenvalues", "trace", "effective_rank", "layer_shares"):
        assert found[name] == pytest.approx(memory[name], rel=1e-9)
    assert found["readings"] > 0
    kernel = StoredKernel(store)
    model, data = model_and_data(files)
    x, x_test = torch.from_numpy(data["x"]), torch.from_numpy(data["x_test"])
    assert np.asarray(kernel) == pytest.approx(np.asarray(ft.ntk(model, x)), rel=1e-12, abs=1e-13)
    assert StoredKernel(tmp_path / "k-test.zarr").samples == (TESTS, SAMPLES)
    exact = regression(ft.ntk(model, x), data["y"], 0.1, ft.ntk(model, x_test, x))
    assert found["regression"]["residual"] == pytest.approx(exact.residual, rel=1e-6)
    assert memory["regression"]["residual"] == pytest.approx(exact.residual, rel=1e-9)
    assert found["regression"]["tolerance"] == 1e-8
    wrong = float(np.mean(np.argmax(exact.predictions, axis=1) != data["y_test"]))
    assert found["regression"]["test_error"] == memory["regression"]["test_error"] == wrong


def test_a_finished_store_is_only_read_again(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "k.zarr"
    options = ("-o", str(store), "--workers", "1", "--batch-size", "8", "--trace")
    ask(capsys, files, *options)
    before = {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()}
    again = ask(capsys, files, *options)
    assert {path: path.stat().st_mtime_ns for path in store.rglob("*") if path.is_file()} == before
    assert again["traced"]
    assert call(*files, "-o", str(store), "--workers", "1") == 2  # all outputs are another kernel
    assert "traceback" not in capsys.readouterr().err.lower()


@pytest.mark.slow
def test_people_get_tables_and_pictures(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert (
        call(*files, "--top", "3", "--plot", str(tmp_path / "k.png"), "--save", str(tmp_path / "answer")) == 0
    )
    text = capsys.readouterr().out
    for part in (
        "Effective rank",
        "entropy rank",
        "share of the trace",
        "energy of y",
        "Alignment with the targets",
        "4 by gram",
    ):
        assert part in text
    assert (tmp_path / "k.png").stat().st_size > 10_000
    assert ft.load(tmp_path / "answer")["eigenvalue"].sizes == {"mode": 3}


def test_chosen_outputs_take_their_targets(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    model, data = model_and_data(files)
    y = np.random.default_rng(1).normal(size=(SAMPLES, 3))
    np.savez(files[1], x=data["x"], y=y)
    found = ask(capsys, files, "--outputs", "2,0")
    kernel = ft.ntk(model, torch.from_numpy(data["x"]), outputs=[2, 0])
    assert found["alignment"]["plain"] == pytest.approx(alignment(kernel, y[:, [2, 0]]).alignment)


def test_targets_that_do_not_fit_do_not_spoil_the_kernel(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    _, data = model_and_data(files)
    np.savez(files[1], x=data["x"], y=np.ones((SAMPLES, 5)))
    found = ask(capsys, files)
    assert found["alignment"] is None
    assert "No alignment with the targets" in found["note"]
    assert call(*files, "--ridge", "1") == 2
    assert "--ridge needs targets" in capsys.readouterr().err


def test_whole_numbers_are_tokens_for_embeddings(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = np.random.default_rng(0).integers(0, 9, size=(12, 2))
    np.savez(files[1], x=tokens, y=np.arange(12) % 2)
    found = ask(capsys, (files[0].replace("make", "embed"), files[1]))
    assert set(found["layer_shares"]) == {"0", "2"}


def test_precision_and_layers(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "k.zarr"
    found = ask(capsys, files, "-o", str(store), "--workers", "1", "--dtype", "float32", "--by", "layer")
    kernel = StoredKernel(store)
    assert (found["dtype"], kernel.entry_type, kernel.labels) == ("float32", "float32", ("0", "2"))
    in_memory = ask(capsys, files, "--by", "layer")
    assert found["trace"] == pytest.approx(in_memory["trace"], rel=1e-5)
    assert found["layer_shares"] == pytest.approx(in_memory["layer_shares"], rel=1e-5)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--outputs", "a"), "whole numbers separated by commas"),
        (("--outputs", "-1"), "different numbers from 0 on"),
        (("--outputs", "1,1"), "different numbers from 0 on"),
        (("--outputs", "0", "--trace"), "leave one out"),
        (("--by", "unit"), "choose layer or parameter"),
        (("--dtype", "half"), "choose float32 or float64"),
        (("--workers", "2"), "add -o out.zarr"),
        (("--memory", "much", "-o", "k.zarr"), "is not a size"),
        (("--engine", "spark", "-o", "unused.zarr"), "is not known"),
        (("--top", "0"), "--help"),
    ],
)
def test_bad_options_end_with_two_and_one_sentence(
    files: tuple[str, Path],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    options: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert call(*files, *options) == 2
    message = capsys.readouterr().err
    assert said in message
    assert len(message.splitlines()) == 1


def test_missing_test_inputs_are_named(files: tuple[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    _, data = model_and_data(files)
    np.savez(files[1], x=data["x"], y=data["y"])
    assert call(*files, "--test") == 2
    assert "has no x_test" in capsys.readouterr().err


def test_too_large_for_memory_points_to_the_disk(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "40kB")
    assert call(*files) == 2
    assert "give -o out.zarr" in capsys.readouterr().err


OWN = """
import torch

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 3).double()

    def forward(self, x):
        return torch.tanh(self.inner(x))

def make():
    return Own()
"""


def test_a_class_of_the_users_own_is_resumed_until_it_changes(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "k.zarr"
    options = ("-o", str(store), "--workers", "1")
    (tmp_path / "model.py").write_text(OWN)
    first, again = ask(capsys, files, *options), ask(capsys, files, *options)
    assert first["eigenvalues"] == again["eigenvalues"]
    (tmp_path / "model.py").write_text(OWN.replace("tanh", "sin"))
    assert call(*files, *options) == 2
    said = capsys.readouterr().err
    assert "other outputs or gradients" in said
    assert "--anew" in said
    assert call(*files, *options, "--anew") == 0


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--trace",), "(--outputs, --trace, --by, --dtype"),
        (("--batch-size", "3"), "--batch-size"),
        (("--ridge", "-1"), "ridge is -1.0"),
        (("--memory", "0MB"), "--memory is '0MB'"),
        (("--memory", "6MB", "--workers", "2", "--anew"), "--workers 1"),
    ],
)
def test_refusals_speak_of_options(
    arguments: tuple[str, ...],
    said: str,
    files: tuple[str, Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    store = tmp_path / "store=" / "k.zarr"
    assert call(*files, "-o", str(store), "--workers", "1") == 0
    assert call(*files, "-o", str(store), *arguments) == 2
    found = capsys.readouterr().err
    assert said in found
    assert "store=" not in found.replace(str(store), "")


def test_what_cannot_be_is_refused_before_the_work(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "k.zarr"
    assert call(*files, "-o", str(store), "--save", str(store)) == 2
    assert "another folder" in capsys.readouterr().err
    assert call(*files, "-o", str(store), "--ridge", "nan") == 2
    np.savez(files[1], x=np.ones((5, 7)), y=np.ones(5))
    assert call(*files, "-o", str(store)) == 2
    assert "(7,)" in capsys.readouterr().err
    assert not store.exists()


def test_a_damaged_tile_is_computed_again_with_a_word(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = tmp_path / "k.zarr"
    options = ("-o", str(store), "--workers", "1", "--trace")
    before = ask(capsys, files, *options)
    (store / "kernel" / "0.0").write_bytes(bytes((store / "kernel" / "0.0").stat().st_size))
    assert call(*files, *options, "--json") == 0
    found = capsys.readouterr()
    assert "1 tiles of" in found.err
    assert json.loads(found.out)["eigenvalues"] == before["eigenvalues"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--outputs", "9"), "--outputs must be numbers from 0 to 2"),
        (("--ridge", "-1"), "--ridge is -1"),
    ],
)
def test_messages_speak_of_options(
    files: tuple[str, Path], capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    assert run("ntk", COMMAND, [files[0], str(files[1]), *arguments]) == 2
    assert said in capsys.readouterr().err
