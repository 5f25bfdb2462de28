"""Pictures of the global-state NTK: what is drawn is what was computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.global_ntk.summary import GlobalSummary, global_summary
from foretrain.report.global_ntk import global_ntk_figure


def inputs() -> Tensor:
    return torch.randn(4, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def made(kind: type[nn.RNNBase], **options: int) -> nn.RNNBase:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(2, 3, batch_first=True, **options).double()


@pytest.fixture(scope="module")
def summary() -> GlobalSummary:
    target = torch.randn(4, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return global_summary(ft.global_ntk(made(nn.GRU), inputs()), target, modes=3)


def test_all_panels(summary: GlobalSummary) -> None:
    figure = global_ntk_figure(summary, "States")
    spectrum, ranks, weights, modes, target = figure.axes
    view = summary.views["states"]
    found = [line.get_ydata() for line in spectrum.get_lines()]
    assert found[0] == pytest.approx(summary.eigenvalue_shares)
    assert found[1][:4] == pytest.approx(view.temporal_shares[:4])
    assert found[2][:4] == pytest.approx(view.core_shares[:4])
    widths = [bar.get_width() for bar in ranks.patches]
    exact = [summary.effective_rank.value, view.temporal_rank.value, view.spatial_rank.value]
    assert widths == pytest.approx([72, 24, 3, *exact])  # the largest there could be, then what there is
    shares = [bar.get_width() for bar in weights.patches]
    assert shares == pytest.approx((100 * summary.trace_shares.values).tolist())
    assert [label.get_text() for label in weights.get_yticklabels()] == list(summary.trace_shares.names)
    lines = [np.asarray(line.get_ydata()) for line in modes.get_lines() if len(line.get_ydata()) == 6]
    assert len(lines) == 3 * 4  # of every mode and sample
    second = (np.array(lines[4:8]) + 1) / 0.46
    assert second == pytest.approx(view.temporal_modes[1] / np.abs(view.temporal_modes[1]).max())
    assert view.alignment is not None
    heights = [bar.get_height() for bar in target.patches]
    assert heights == pytest.approx([*view.alignment.rayleigh, *view.alignment.proxy_rayleigh])


def test_one_row_for_every_member() -> None:
    kernel = ft.global_ntk(made(nn.LSTM), inputs(), ("hidden", "cell"))
    figure = global_ntk_figure(global_summary(kernel, modes=2))
    titles = [axis.get_title(loc="left") for axis in figure.axes]
    assert len(titles) == 3 + 2
    assert "hidden" in titles[3]
    assert "cell" in titles[4]
    assert len(figure.axes[1].patches) == 2 * (1 + 2 * 2)


def test_many_parameters_are_drawn_together() -> None:
    kernel = ft.global_ntk(made(nn.RNN, num_layers=5), inputs())
    summary = global_summary(kernel, modes=2)
    weights = global_ntk_figure(summary).axes[2]
    assert len(weights.patches) == 12
    assert [label.get_text() for label in weights.get_yticklabels()][-1] == "9 others"
    assert sum(bar.get_width() for bar in weights.patches) == pytest.approx(100)


def test_samples_without_time_are_points() -> None:
    model = nn.Linear(2, 3).double()
    figure = global_ntk_figure(global_summary(ft.global_ntk(model, inputs()[:, 0]), modes=2))
    lines = [line for line in figure.axes[3].get_lines() if len(line.get_ydata()) == 4]
    assert [line.get_marker() for line in lines] == [".", "."]
