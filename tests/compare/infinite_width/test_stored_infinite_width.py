"""Kernels of infinite width in a store beside those in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical import StoredKernel
from foretrain.support.errors import FileError, InputError, NotEnoughMemoryError
from foretrain.theory import layers


def network(act: nn.Module | None = None) -> nn.Module:
    torch.manual_seed(0)
    act = nn.ReLU() if act is None else act
    body = [nn.Conv2d(2, 8, 3, padding=1), act, nn.Conv2d(8, 8, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(8, 3)).double()


def pooled() -> nn.Module:
    torch.manual_seed(0)
    body = [nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    return nn.Sequential(*body, nn.Linear(32, 3)).double()


def images(count: int, seed: int = 1) -> Tensor:
    return torch.randn(count, 2, 4, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def flat(kernel: Any, positions: int = 1) -> NDArray[np.float64]:
    """An array in memory as the matrix over (input, position)."""
    values = np.asarray(kernel)
    return values.reshape(values.shape[0] * positions, -1)


def records(path: Path) -> dict[str, Any]:
    return {file.stem: json.loads(file.read_text()) for file in (path / ".tiles").iterdir()}


@pytest.mark.parametrize("second", [False, True])
def test_the_store_holds_the_kernels_in_memory(second: bool, tmp_path: Path) -> None:
    x, x2 = images(13), images(7, seed=2) if second else None
    found = ft.infinite_width(network(), x, x2, store=tmp_path / "k.zarr", batch_size=5, workers=1)
    expected = ft.infinite_width(network(), x, x2)
    for name in ("nngp", "ntk"):
        one = getattr(found, name)
        np.testing.assert_allclose(np.asarray(one), getattr(expected, name), rtol=1e-12)
        np.testing.assert_allclose(one.tile(0, 1), getattr(expected, name)[:5, 5:10], rtol=1e-12)
        np.testing.assert_allclose(one.to_xarray().values, getattr(expected, name), rtol=1e-12)
    assert found.standard_error is None
    assert str(found.reading) == str(expected.reading)
    assert found.outputs == 3
    assert "Loops over pairs of inputs: numpy, for so few pairs." in found.answer().parts
    assert "13 and 7 inputs (exact)" in str(found) if second else "upper triangle: finished" in str(found)
    assert list(ft.load(tmp_path / "k.zarr").indexes["quantity"]) == ["nngp", "ntk"]


def test_views_are_operators_and_their_sum_is_refused(tmp_path: Path) -> None:
    found = ft.infinite_width(network(), images(13), store=tmp_path / "k.zarr", batch_size=5, workers=1)
    expected = ft.infinite_width(network(), images(13)).ntk.values
    columns = np.random.default_rng(0).normal(size=(13, 2))
    np.testing.assert_allclose(found.ntk @ columns, expected @ columns, rtol=1e-11)
    trace, squares = found.ntk.norms
    assert trace == pytest.approx(np.trace(expected), rel=1e-12)
    assert squares == pytest.approx(np.sum(expected**2), rel=1e-12)
    values = np.linalg.eigvalsh(expected)[::-1][:4]
    np.testing.assert_allclose(found.ntk.spectrum(4).eigenvalues, values, rtol=1e-9)
    assert "Parameters" not in str(found.ntk.summary())
    whole = StoredKernel(tmp_path / "k.zarr")
    assert whole.shape == (2, 13, 13)
    for use in (
        lambda: whole.total(),
        lambda: whole @ columns,
        lambda: whole.norms,
        lambda: whole.tile(0, 0),
        lambda: whole.dense(),
    ):
        with pytest.raises(InputError, match=r"several kernels \(nngp, ntk\).*kernel\['ntk'\]"):
            use()
    assert "K @ V" not in str(whole)


def test_a_tile_that_is_lost_is_computed_again_and_no_other(tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    ft.infinite_width(network(), images(13), store=path, batch_size=5, workers=1)
    before = records(path)
    whole = np.asarray(StoredKernel(path))
    (path / ".tiles" / "0-2.json").unlink()
    (path / "kernel" / "0.0.2").unlink()
    with pytest.raises(InputError, match=r"run the same infinite_width\(\.\.\., store=\) again"):
        StoredKernel(path)["ntk"].dense()
    ft.infinite_width(network(), images(13), store=path, workers=1)
    after = records(path)
    assert {tile for tile in after if after[tile] != before[tile]} == {"0-2"}
    assert np.array_equal(np.asarray(StoredKernel(path)), whole)
    (path / "kernel" / "0.0.1").write_bytes(b"short")
    with pytest.raises(FileError, match=r"tile 0-1 .*infinite_width\(\.\.\., store=\)"):
        StoredKernel(path)["ntk"].dense()


@pytest.mark.parametrize("written", [b"garbage", b"", None])
def test_labels_that_are_damaged_are_written_anew(written: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    ft.infinite_width(network(), images(4), store=path, workers=1)
    whole, file = np.asarray(StoredKernel(path)), path / "quantity" / "0"
    file.unlink() if written is None else file.write_bytes(written)
    ft.infinite_width(network(), images(4), store=path, workers=1)
    assert np.array_equal(np.asarray(StoredKernel(path)), whole)
    assert list(StoredKernel(path).to_dataset().quantity.values) == ["nngp", "ntk"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"engine": "threads"}, {"memory": "1GB"}])
def test_two_workers(options: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "k.zarr"
    found = ft.infinite_width(network(), images(23), store=path, batch_size=4, workers=2, **options)
    np.testing.assert_allclose(
        np.asarray(found.ntk), ft.infinite_width(network(), images(23)).ntk, rtol=1e-12
    )


@pytest.mark.slow
def test_what_changed_is_named(tmp_path: Path) -> None:
    path, x = tmp_path / "k.zarr", images(9)

    def run(model: Any, inputs: Tensor = x, **options: Any) -> None:
        ft.infinite_width(model, inputs, store=path, workers=1, **options)

    run(network(), batch_size=4)
    again = network()
    nn.init.uniform_(again[0].bias, -(18**-0.5), 18**-0.5)
    run(again, draws=64, seed=3)  # other numbers of the same laws; nothing is drawn
    for change, options in (
        (r"\(`?rates=`? are others\)", {"rates": "standard"}),
        (r"\(init= or the laws of the weights are others; ", {"init": {"*": (2.0, 0.0)}}),
        (r"\(the inputs are others\)", {"inputs": images(9, seed=3)}),
        (r"4 x 4 samples, which stays so", {"batch_size": 3}),
    ):
        with pytest.raises(FileError, match=change):
            run(network(), **options)
    with pytest.raises(FileError, match=r"\(the model has other kernels than the one"):
        run(network(nn.GELU()))
    with pytest.raises(FileError, match=r"\(the model is another one"):
        run(pooled())
    with pytest.raises(FileError, match=r"\(the model is another one"):
        ft.ntk(network(), x, store=path)
    run(network(), rates="standard", overwrite=True)
    expected = ft.infinite_width(network(), x, rates="standard")
    np.testing.assert_allclose(np.asarray(StoredKernel(path)["ntk"]), expected.ntk, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.statistical
def test_sampled_kernels_have_errors_and_seeds(tmp_path: Path) -> None:
    path, x = tmp_path / "k.zarr", images(7)
    found = ft.infinite_width(pooled(), x, draws=512, seed=1, store=path, batch_size=3, workers=1)
    expected = ft.infinite_width(pooled(), x, draws=512, seed=2)
    assert found.standard_error is not None
    assert expected.standard_error is not None
    for name in ("nngp", "ntk"):
        values, error = np.asarray(getattr(found, name)), np.asarray(found.standard_error[name])
        joint = np.hypot(error, expected.standard_error[name])
        assert np.all(error > 0)
        assert np.all(np.abs(values - getattr(expected, name).values) < 5 * joint)
        np.testing.assert_allclose(values, values.T, rtol=1e-12)
        assert np.linalg.eigvalsh(values)[0] > -float(error.max())
    with pytest.raises(FileError, match=r"\(draws= or seed= are others\)"):
        ft.infinite_width(pooled(), x, draws=512, seed=2, store=path, workers=1)
    before = np.asarray(StoredKernel(path))
    (path / ".tiles" / "0-1.json").unlink()
    ft.infinite_width(pooled(), x, draws=512, seed=1, store=path, workers=1)
    assert np.array_equal(np.asarray(StoredKernel(path)), before)
    assert "partly sampled" in str(found)


def test_positions_of_the_output_are_outputs_of_each_input(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Conv1d(2, 8, 2), nn.ReLU(), nn.Conv1d(8, 1, 1)).double()
    x = torch.randn(5, 2, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = ft.infinite_width(model, x, store=tmp_path / "k.zarr", batch_size=2, workers=1)
    expected = ft.infinite_width(model, x)
    assert found.ntk.shape == (5, 5, 3, 3)
    np.testing.assert_allclose(found.ntk.dense().numpy(), flat(expected.ntk, 3), rtol=1e-12)
    np.testing.assert_allclose(
        np.asarray(found.nngp), expected.nngp.transpose("input_1", "input_2", ...), rtol=1e-12
    )


def test_networks_written_by_hand(tmp_path: Path) -> None:
    h = layers.data((3, 3)).convolution(2, C_W=2).activation("relu")
    signal, x = h.mean().linear(C_W=1.0), np.random.default_rng(0).normal(size=(9, 3, 3, 2))
    x.flags.writeable = False
    found = ft.infinite_width(signal, x, x[:4], store=tmp_path / "k.zarr", batch_size=4, workers=1)
    np.testing.assert_allclose(np.asarray(found.ntk), ft.infinite_width(signal, x, x[:4]).ntk, rtol=1e-12)
    with pytest.raises(FileError, match="other kernels than the one"):
        ft.infinite_width(h.mean().linear(C_W=1.001), x, x[:4], store=tmp_path / "k.zarr", workers=1)


def test_options_of_stores_need_a_store(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"take workers= and batch_size=: name a folder with store="):
        ft.infinite_width(network(), images(3), workers=2, batch_size=3)
    with pytest.raises(InputError, match="positive number or 'auto'"):
        ft.infinite_width(network(), images(3), store=tmp_path / "k.zarr", batch_size=0)
    with pytest.raises(NotEnoughMemoryError, match=r"smaller batch_size=\.$"):
        ft.infinite_width(network(), images(3), store=tmp_path / "k.zarr", memory="1kB", workers=1)
    assert not list(tmp_path.iterdir())
