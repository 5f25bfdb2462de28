"""Pictures of kernels: what is drawn is what was computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foretrain.empirical import TangentKernel, ntk
from foretrain.empirical.kernel_analysis.summary import KernelSummary, summarise
from foretrain.report.kernels import kernel_figure


def deep(layers: int) -> nn.Module:
    torch.manual_seed(0)
    blocks = [part for _ in range(layers - 1) for part in (nn.Linear(3, 3), nn.Tanh())]
    return nn.Sequential(*blocks, nn.Linear(3, 2)).double()


@pytest.fixture(scope="module")
def x() -> Tensor:
    return torch.randn(20, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def kernel(x: Tensor) -> TangentKernel:
    return ntk(deep(3), x, by="layer")


@pytest.fixture(scope="module")
def summary(kernel: TangentKernel, x: Tensor) -> KernelSummary:
    return summarise(kernel, x[:, :2], top=5)


def test_all_panels(summary: KernelSummary) -> None:
    figure = kernel_figure(summary, "Kernel")
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert titles[:3] == ["Eigenvalues", "How many lie where", "Share of each layer in the trace"]
    assert titles[3].startswith("Energy of the targets")
    spectrum, density, layers, energy = figure.axes
    known = summary.density.known
    drawn = spectrum.get_lines()[-1].get_ydata()
    assert drawn == pytest.approx(known[known > summary.density.rounding])
    assert sum(bar.get_height() for bar in density.patches) == pytest.approx(len(drawn))
    widths = [bar.get_width() for bar in layers.patches]
    assert widths == pytest.approx([100 * share for share in summary.layer_shares.values()])
    assert [label.get_text() for label in layers.get_yticklabels()] == ["0", "2", "4"]
    assert [bar.get_height() for bar in energy.patches] == pytest.approx(summary.alignment.energies)


def test_without_targets_and_layers(x: Tensor) -> None:
    figure = kernel_figure(summarise(ntk(deep(2), x)))
    assert [axis.get_title(loc="left") for axis in figure.axes] == ["Eigenvalues", "How many lie where"]


def test_many_layers_are_drawn_together(x: Tensor) -> None:
    figure = kernel_figure(summarise(ntk(deep(30), x, by="layer")))
    layers = figure.axes[2]
    assert len(layers.patches) == 16
    assert layers.get_yticklabels()[-1].get_text() == "15 others"
    assert sum(bar.get_width() for bar in layers.patches) == pytest.approx(100)


@pytest.mark.slow
def test_sampled_ranks_continue_those_that_are_known() -> None:
    random = np.random.default_rng(0)
    modes = np.linalg.qr(random.normal(size=(1200, 1200)))[0]
    values = torch.from_numpy((modes / np.arange(1.0, 1201.0)) @ modes.T)
    kernel = TangentKernel((values + values.T) / 2, True, (0,), None, None, {}, True, 0.0)
    summary = summarise(kernel)
    axis = kernel_figure(summary).axes[0]
    curve = axis.get_lines()[0]
    ranks, drawn = np.asarray(curve.get_xdata()), np.asarray(curve.get_ydata())
    assert np.diff(ranks).max() <= 1e-9  # from the smallest eigenvalue up
    assert drawn == pytest.approx(1 / ranks, rel=0.1)
