from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from stored_models import content, copied, inputs, kinds, leftovers, lose, network, records, stored, values
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.stored_kernel import computation
from foretrain.empirical.stored_kernel.tasks import Worker
from foretrain.empirical.tangent_kernel.kernel import ntk
from foretrain.empirical.tangent_kernel.planning import GraphChangedError
from foretrain.support.errors import FileError, InputError, NotEnoughMemoryError, NotSupportedError


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("by", [None, "layer", "parameter"])
@pytest.mark.parametrize("outputs", ["full", "trace", [2, 0]])
@pytest.mark.parametrize("second", [False, True])
def test_the_store_holds_the_kernel(by: Any, outputs: Any, second: bool, tmp_path: Path) -> None:
    model, x, x2 = network(), inputs(23), inputs(9, seed=2) if second else None
    stored(tmp_path / "k.zarr", model, x, x2, outputs, by, side=5, workers=1)
    expected = ntk(model, x, x2, outputs, by=by)
    found = values(tmp_path / "k.zarr")
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, np.asarray(expected), rtol=1e-13, atol=1e-13)
    loaded = ft.load(tmp_path / "k.zarr")
    assert loaded.dims == expected.dims
    for name in set(loaded.dims) & {"layer", "parameter", "output_1", "output_2"}:
        assert loaded.indexes[name].equals(expected.to_xarray().indexes[name])
    assert leftovers(tmp_path / "k.zarr") == ([] if by is None else [by])


def test_a_symmetric_store_is_symmetric_to_the_bit(tmp_path: Path) -> None:
    stored(tmp_path / "k.zarr", network(), inputs(23), side=5, workers=1)
    found = values(tmp_path / "k.zarr")
    assert np.array_equal(found, found.transpose(1, 0, 3, 2))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("outputs", ["full", "trace"])
def test_who_computes_a_tile_and_when_makes_no_difference(outputs: str, tmp_path: Path) -> None:
    model, x = network(64), inputs(70)
    stored(tmp_path / "one.zarr", model, x, None, outputs, side=9, workers=1)
    reference = content(tmp_path / "one.zarr")
    narrow = records(tmp_path / "one.zarr")["0-0"]["squares"]
    others: dict[str, dict[str, Any]] = {
        "two": {"workers": 2},
        "threads": {"workers": 2, "engine": "threads"},
        "little": {"workers": 1, "memory": 150_000 if outputs == "full" else 100_000},
    }
    for name, options in others.items():
        stored(tmp_path / f"{name}.zarr", model, x, None, outputs, side=9, **options)
        assert content(tmp_path / f"{name}.zarr") == reference, name
        assert records(tmp_path / f"{name}.zarr")["0-0"]["squares"] == narrow


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("outputs", ["full", "trace"])
@pytest.mark.parametrize("kind", ["convolutions", "normed", "words", "recurrent"])
def test_models_of_many_kinds(kind: str, outputs: str, dtype: torch.dtype, tmp_path: Path) -> None:
    model, x = kinds()[kind]
    model, x = model.to(dtype), x.to(dtype) if x.is_floating_point() else x
    stored(tmp_path / "one.zarr", model, x, None, outputs, side=8, workers=1)
    stored(tmp_path / "two.zarr", model, x, None, outputs, side=8, workers=2)
    assert content(tmp_path / "one.zarr") == content(tmp_path / "two.zarr")
    expected = np.asarray(ntk(model, x, outputs=outputs))
    tolerance = 1e-12 if dtype == torch.float64 else 2e-6
    np.testing.assert_allclose(
        values(tmp_path / "two.zarr"), expected, rtol=0, atol=tolerance * np.abs(expected).max()
    )


def test_tiles_are_not_computed_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = network(), inputs(23)
    path = tmp_path / "k.zarr"
    stored(path, model, x, side=5, workers=1)
    whole, before = content(path), {tile: record["seconds"] for tile, record in records(path).items()}
    lose(path, "1-3", "2-2")
    (path / "kernel" / "1.3.0.0").unlink()
    stored(path, model, x, workers=2)
    after = {tile: record["seconds"] for tile, record in records(path).items()}
    assert content(path) == whole
    assert {tile for tile in after if after[tile] != before[tile]} == {"1-3", "2-2"}
    monkeypatch.setattr(computation, "_Computation", None)
    stored(path, model, x)  # a finished one is opened without any work


def test_factors_of_a_chunk_are_computed_once_where_they_fit(tmp_path: Path) -> None:
    stored(tmp_path / "k.zarr", network(), inputs(40), side=5, workers=1)
    assert sum(record["chunk_samples"] for record in records(tmp_path / "k.zarr").values()) == 40


def test_little_memory_means_more_passes_not_more_memory(tmp_path: Path) -> None:
    stored(tmp_path / "k.zarr", network(), inputs(40), outputs="trace", side=5, workers=1, memory="14kB")
    passes = sum(record["chunk_samples"] for record in records(tmp_path / "k.zarr").values()) / 40
    assert 1.5 < passes < 8


def test_records_say_trace_squares_and_layers(tmp_path: Path) -> None:
    for by in (None, "layer", "parameter"):
        path = tmp_path / f"{by}.zarr"
        model, x = network(), inputs(23)
        stored(path, model, x, by=by, side=5, workers=1)
        kernel = ntk(model, x, by="layer")
        found = records(path)
        total = np.asarray(kernel.total())
        traces = {
            layer: float(np.einsum("nncc->", np.asarray(kernel[layer]))) for layer in kernel.labels or ()
        }
        diagonal = [record for tile, record in found.items() if tile[0] == tile[2]]
        squares = sum((1 if t[0] == t[2] else 2) * record["squares"] for t, record in found.items())
        assert sum(record["diagonal"] for record in diagonal) == pytest.approx(
            sum(traces.values()), rel=1e-12
        )
        assert squares == pytest.approx(float(np.sum(total**2)), rel=1e-12)
        for layer, expected in traces.items():
            assert sum(r["layers"][layer] for r in diagonal) == pytest.approx(expected, rel=1e-12)


def test_single_precision_and_frozen_parameters_and_rates(tmp_path: Path) -> None:
    model, x = network().float(), inputs(17).float()
    options = {"parameters": "0.*", "rates": {"0.weight": 0.5, "0.bias": 2.0}}
    stored(tmp_path / "k.zarr", model, x, side=5, workers=1, **options)
    found = values(tmp_path / "k.zarr")
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, np.asarray(ntk(model, x, **options)), rtol=1e-5, atol=1e-6)


def scaled(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
    return torch.tanh(x @ parameters["w"]) * parameters["scale"]


def test_a_function_of_parameters(tmp_path: Path) -> None:
    torch.manual_seed(0)
    parameters = {
        "w": torch.randn(4, 3, dtype=torch.float64, requires_grad=True),
        "scale": torch.randn(3, dtype=torch.float64, requires_grad=True),
    }
    stored(tmp_path / "k.zarr", scaled, inputs(12), side=5, workers=2, parameters=parameters)
    expected = ntk(scaled, inputs(12), parameters=parameters)
    np.testing.assert_allclose(values(tmp_path / "k.zarr"), np.asarray(expected), rtol=1e-13, atol=1e-13)


def test_models_that_only_this_script_knows_reach_the_workers(tmp_path: Path) -> None:
    class Local(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = network()

        def forward(self, a: Tensor, b: Tensor) -> dict[str, Tensor]:
            return {"sum": self.inner(a + b), "other": a}

    model, x = Local(), (inputs(12), inputs(12, seed=3))
    picked = {"output": lambda result: result["sum"][:, :2]}
    stored(tmp_path / "k.zarr", model, x, side=5, workers=2, **picked)
    np.testing.assert_allclose(
        values(tmp_path / "k.zarr"), np.asarray(ntk(model, x, **picked)), rtol=1e-13, atol=1e-13
    )


class Branching(nn.Module):
    """Uses another product of the same weight for batches with a large first input: its graph depends on samples."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 8).double(), nn.Linear(8, 2).double()

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.first(x))
        if x[:, 0].max() > 5:
            chosen = x[:, :1] > 5
            hidden = torch.where(chosen, torch.tanh(self.first(x.flip(1))), hidden)
        return self.second(hidden)


def test_graphs_that_change_from_chunk_to_chunk(tmp_path: Path) -> None:
    model, x = Branching(), inputs(30)
    x[17, 0] = 7.0
    expected = np.asarray(ntk(model, x))
    for workers in (1, 2):
        path = tmp_path / f"{workers}.zarr"
        stored(path, model, x, side=5, workers=workers)
        assert leftovers(path) == [".aside.json"]
        np.testing.assert_allclose(values(path), expected, rtol=1e-12, atol=1e-12)
    assert content(tmp_path / "1.zarr") == content(tmp_path / "2.zarr")


def test_a_graph_that_changes_at_random_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Worker, "take_all", _find_another_graph)
    with pytest.raises(NotSupportedError, match="graph changes"):
        stored(tmp_path / "k.zarr", network(), inputs(30), side=5, workers=1)


def _find_another_graph(worker: Worker) -> None:
    raise GraphChangedError(unreadable=["0.weight"])


def test_a_store_is_not_resumed_with_too_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    stored(path, network(), inputs(30), side=15, workers=1)
    lose(path, "0-0")
    with pytest.raises(NotEnoughMemoryError, match="15 x 15"):
        stored(path, network(), inputs(30), workers=1, memory="10kB")
    assert len(records(path)) == 2


def test_threads_are_given_back(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        for options in ({"workers": 1}, {"workers": 2, "engine": "threads"}):
            stored(tmp_path / f"{len(options)}.zarr", network(), inputs(12), side=5, **options)
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_what_changed_is_named(tmp_path: Path) -> None:
    model, x, path = network(), inputs(12), tmp_path / "k.zarr"
    stored(path, model, x, side=5, workers=1)
    before = content(path)
    with torch.no_grad():
        model[0].bias[0] += 1e-12
    with pytest.raises(FileError, match=r"\(parameters or buffers"):
        stored(path, model, x)
    with pytest.raises(FileError, match=r"\(the inputs"):
        stored(path, network(), inputs(12, seed=5))
    with pytest.raises(FileError, match=r"\(the inputs"):
        stored(path, network(), x, x)
    with pytest.raises(FileError, match=r"\(outputs=, .* are others\)"):
        stored(path, network(), x, outputs="trace")
    with pytest.raises(FileError, match=r"\(outputs=, .* are others\)"):
        stored(path, network(), x, rates=2.0)
    with pytest.raises(FileError, match=r"\(outputs=, .* are others\)"):
        stored(path, network().eval(), x)
    other = nn.Sequential(*network()[:1], nn.ReLU(), *network()[2:])
    with pytest.raises(FileError, match=r"\(the model .*store=.*overwrite"):
        stored(path, other, x)
    assert content(path) == before
    stored(path, model, x, overwrite=True, workers=1)
    assert content(path).keys() != before.keys()  # another cut: all in one tile
    np.testing.assert_allclose(values(path), np.asarray(ntk(model, x)), rtol=1e-13)


def test_the_cut_and_the_threads_stay(tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    stored(path, network(), inputs(12), side=5, workers=1, threads=1)
    with pytest.raises(FileError, match="5 x 5"):
        stored(path, network(), inputs(12), side=6)
    with pytest.raises(FileError, match="1 threads"):
        stored(path, network(), inputs(12), threads=2)


def test_only_stored_kernels_are_overwritten(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("dear")
    for overwrite in (False, True):
        with pytest.raises(FileError, match="no stored kernel"):
            stored(tmp_path / "mine", network(), inputs(5), overwrite=overwrite)
    assert (tmp_path / "mine" / "file").read_text() == "dear"


def test_bad_arguments_leave_no_store(tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    with pytest.raises(InputError, match="'cluster'"):
        stored(path, network(), inputs(5), engine="cluster")
    with pytest.raises(InputError, match="workers is 0"):
        stored(path, network(), inputs(5), workers=0)
    with pytest.raises(InputError, match="is a remote address"):
        stored("s3://bucket/k.zarr", network(), inputs(5))  # type: ignore[arg-type]
    with pytest.raises(NotEnoughMemoryError, match="tiles of"):
        stored(path, network(), inputs(5), memory="1kB", workers=1)
    assert not list(tmp_path.iterdir())


def test_a_model_that_cannot_travel_says_what_to_do(tmp_path: Path) -> None:
    model = network()
    nn.utils.parametrizations.weight_norm(model[0])
    with pytest.raises(NotSupportedError, match=r"engine='threads', or workers=1"):
        stored(tmp_path / "k.zarr", model, inputs(30), side=5, workers=2)
    stored(tmp_path / "k.zarr", model, inputs(30), workers=2, engine="threads")
    np.testing.assert_allclose(
        values(tmp_path / "k.zarr"), np.asarray(ntk(model, inputs(30))), rtol=1e-12, atol=1e-12
    )


def test_a_copy_of_a_store_is_as_good_as_the_store(tmp_path: Path) -> None:
    stored(tmp_path / "k.zarr", network(), inputs(12), side=5, workers=1)
    path = copied(tmp_path / "k.zarr", "copy.zarr")
    for file in (path / "kernel").iterdir():
        os.utime(file)
    before = content(path)
    stored(path, network(), inputs(12))
    assert content(path) == before


def test_the_layout_is_kept_in_the_store(tmp_path: Path) -> None:
    stored(tmp_path / "k.zarr", network(), inputs(12), side=5, workers=1)
    tiles = json.loads((tmp_path / "k.zarr" / ".zattrs").read_text())["foretrain_tiles"]
    assert tiles["bounds_1"] == tiles["bounds_2"] == [0, 5, 10, 12]
    assert tiles["threads"] == 1
    assert tiles["dtype"] == "<f8"
    assert set(tiles["fingerprint"]) == {"model", "parameters", "data", "options", "versions"}
    assert tiles["routes"]["0.weight"].startswith("gram")
    assert tiles["model"] == "Sequential with 131 parameters"
