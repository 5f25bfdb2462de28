"""Pictures of kernels: what is drawn is what was computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foretrain.empirical import TangentKernel, ntk
from foretrain.empirical.kernel_analysis.summary import KernelSummary, summarise
from foretrain.support.answers.figure import Bars, Curve, Figure


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


def drawn(summary: KernelSummary) -> Figure:
    (figure,) = summary.answer().figures
    return figure


def test_all_panels(summary: KernelSummary) -> None:
    figure = drawn(summary)
    titles = [panel.title for panel in figure.panels]
    assert titles[:3] == ["Eigenvalues", "How many lie where", "Share of each layer in the trace"]
    assert titles[3].startswith("Energy of the targets")
    spectrum, density, layers, energy = (panel.marks for panel in figure.panels)
    known = summary.density.known[summary.density.known > summary.density.rounding]
    assert isinstance(spectrum[-1], Curve)
    assert isinstance(density[0], Curve)
    assert spectrum[-1].y == pytest.approx(known)
    assert density[0].y.sum() == pytest.approx(len(known))
    (shares,) = layers
    assert isinstance(shares, Bars)
    assert shares.values == pytest.approx([100 * share for share in summary.layer_shares.values()])
    assert figure.panels[2].y.ticks == {0: "0", 1: "2", 2: "4"}
    assert isinstance(energy[0], Bars)
    assert summary.alignment is not None
    assert energy[0].values == pytest.approx(summary.alignment.energies)
    assert len(summary.plot().axes) == 4


def test_without_targets_and_layers(x: Tensor) -> None:
    figure = drawn(summarise(ntk(deep(2), x)))
    assert [panel.title for panel in figure.panels] == ["Eigenvalues", "How many lie where"]


def test_many_layers_are_drawn_together(x: Tensor) -> None:
    panel = drawn(summarise(ntk(deep(30), x, by="layer"))).panels[2]
    (bars,) = panel.marks
    assert isinstance(bars, Bars)
    assert isinstance(panel.y.ticks, dict)
    assert (len(bars.values), panel.y.ticks[15]) == (16, "15 others")
    assert bars.values.sum() == pytest.approx(100)


def test_sampled_ranks_continue_those_that_are_known() -> None:
    random = np.random.default_rng(0)
    modes = np.linalg.qr(random.normal(size=(1200, 1200)))[0]
    values = torch.from_numpy((modes / np.arange(1.0, 1201.0)) @ modes.T)
    kernel = TangentKernel((values + values.T) / 2, True, (0,), None, None, {}, True, 0.0)
    curve = drawn(summarise(kernel)).panels[0].marks[0]
    assert isinstance(curve, Curve)
    assert np.diff(curve.x).max() <= 1e-9  # from the smallest eigenvalue up
    assert curve.y == pytest.approx(1 / curve.x, rel=0.1)
