"""Summaries of kernels on disk and in memory, against dense linear algebra."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiled_stores import Array, dense, inputs, network, stored, write

import foretrain as ft
from foretrain.empirical import alignment, ntk
from foretrain.empirical.kernel_analysis.summary import summarise, trace_shares
from foretrain.empirical.stored_kernel.reading import StoredKernel
from foretrain.support.errors import InputError

OPTIONS: list[dict[str, Any]] = [{}, {"outputs": "trace"}, {"by": "layer"}]


def targets(samples: int) -> Array:
    return np.random.default_rng(5).normal(size=(samples, 3))


def layer_shares(samples: int) -> dict[str, float]:
    """From the kernel of every layer, written out."""
    kernel = ntk(network(), inputs(samples), by="layer")
    traces = {label: float(np.trace(dense(np.asarray(kernel[label])))) for label in kernel.labels or ()}
    return {label: value / sum(traces.values()) for label, value in traces.items()}


@pytest.mark.parametrize("options", OPTIONS)
def test_of_a_stored_kernel(tmp_path: Path, options: dict[str, Any]) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", samples=130, side=40, **options)
    values = np.linalg.eigvalsh(dense(expected))[::-1]
    y = targets(130)
    found = kernel.summary(y, top=6)
    assert found.trace == pytest.approx(values.sum(), rel=1e-12)
    assert found.effective_rank == pytest.approx(values.sum() ** 2 / (values**2).sum(), rel=1e-12)
    assert found.eigenvalues == pytest.approx(values[:6], rel=1e-10)
    assert found.residuals.max() < 1e-8 * values[0]
    shares = np.maximum(values, 0) / values.sum()
    entropy = -np.sum(shares[shares > 0] * np.log(shares[shares > 0]))
    rank = found.entropy_rank
    assert rank.value == pytest.approx(np.exp(entropy), rel=1e-8, abs=4 * float(rank.standard_error))
    assert found.layer_shares == pytest.approx(layer_shares(130), rel=1e-10)
    exact = alignment(expected, y)
    assert found.alignment is not None
    assert found.alignment.alignment == pytest.approx(exact.alignment, rel=1e-10)
    assert found.alignment.energies == pytest.approx(exact.energies[:6], rel=1e-6, abs=1e-10)
    assert found.readings <= 18
    assert found.seconds == pytest.approx(0.5 * 10)
    text = repr(found)
    for part in (
        "130 samples",
        f"Effective rank {found.effective_rank:.4g} (trace² / sum of squares), entropy rank {rank.value:.4g}",
        "layer",
        "Alignment with the targets",
        str(kernel.path),
    ):
        assert part in text


def test_memory_and_disk_agree(tmp_path: Path) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", samples=60, side=20)
    on_disk = kernel.summary()
    in_memory = summarise(expected, layer_shares=trace_shares(network(), inputs(60)))
    assert in_memory.eigenvalues == pytest.approx(on_disk.eigenvalues, rel=1e-10)
    assert in_memory.trace == pytest.approx(on_disk.trace, rel=1e-12)
    assert in_memory.layer_shares == pytest.approx(on_disk.layer_shares, rel=1e-10)
    assert (in_memory.path, in_memory.readings, in_memory.alignment) == (None, 0, None)
    above = in_memory.density.counts([in_memory.density.resolution, np.inf])
    assert above.value == pytest.approx([131], abs=1e-9)  # as many as there are parameters
    assert above.standard_error == pytest.approx([0], abs=1e-9)
    assert "foretrain.load" not in repr(in_memory)
    assert summarise(ntk(network(), inputs(60), by="layer")).layer_shares == pytest.approx(
        on_disk.layer_shares
    )


def test_shares_of_chosen_outputs_and_parameters() -> None:
    kernel = ntk(network(), inputs(37), outputs=[1], by="layer")
    traces = {label: float(np.trace(dense(np.asarray(kernel[label])))) for label in kernel.labels or ()}
    found = trace_shares(network(), inputs(37), [1])
    assert found == pytest.approx({label: value / sum(traces.values()) for label, value in traces.items()})
    assert trace_shares(network(), inputs(5), parameters="0.*") == {"0": 1.0}


def test_a_summary_can_be_saved(tmp_path: Path) -> None:
    kernel, _ = stored(tmp_path / "k.zarr", samples=130, side=40)
    found = kernel.summary(targets(130), top=4)
    ft.save(found, tmp_path / "summary.zarr")
    data = ft.load(tmp_path / "summary.zarr")
    assert data["eigenvalue"].values == pytest.approx(found.eigenvalues)
    assert dict(zip(data["layer"].values, data["layer_share"].values)) == pytest.approx(
        dict(found.layer_shares)
    )
    assert data.attrs["effective_rank"] == pytest.approx(found.effective_rank)
    assert data.attrs["entropy_rank"] == pytest.approx(found.entropy_rank.value)
    assert data["energy"].sizes == {"mode": 4}
    ft.save(summarise(ntk(network(), inputs(9))), tmp_path / "memory.zarr")


def test_with_little_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel, expected = stored(tmp_path / "k.zarr", samples=150, side=30)
    values = np.linalg.eigvalsh(dense(expected))[::-1]
    monkeypatch.setenv("FORETRAIN_MEMORY", f"{kernel.nbytes}B")
    found = StoredKernel(kernel.path).summary(top=3)
    assert found.trace == pytest.approx(values.sum(), rel=1e-12)
    assert found.eigenvalues == pytest.approx(values[:3], rel=1e-5)


def test_bad_input(tmp_path: Path) -> None:
    kernel, _ = stored(tmp_path / "k.zarr")
    with pytest.raises(InputError, match="top is 0"):
        kernel.summary(top=0)
    with pytest.raises(InputError, match="y is zero everywhere"):
        kernel.summary(np.zeros((23, 3)))
    silent = torch.nn.Linear(2, 1, bias=False).double()
    with pytest.raises(InputError, match="the kernel is zero"):
        summarise(ntk(silent, torch.zeros(4, 2, dtype=torch.float64)))


@pytest.mark.parametrize("top", [10, 50])
def test_every_output_has_its_copy_of_an_eigenvalue(tmp_path: Path, top: int) -> None:
    """Of a linear model they are all equal, and more than the block that would do for a few modes."""
    outputs, samples = 40, 24
    model, x = torch.nn.Linear(4, outputs).double(), inputs(samples)
    layers = ntk(model, x, by="layer")
    kernel = write(ntk(model, x), tmp_path / "k.zarr", 12, layers)
    expected = np.linalg.eigvalsh((x @ x.T + 1).numpy())[::-1].repeat(outputs)[:top]
    assert kernel.summary(top=top).eigenvalues == pytest.approx(expected, rel=1e-10)
    assert kernel.spectrum(top=top).eigenvalues == pytest.approx(expected, rel=1e-10)
