"""Pictures of the global-state NTK: what is drawn is what was computed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.global_ntk.summary import GlobalSummary, global_summary
from foretrain.support.answers.figure import Bars, Curve, Mark, Panel


def inputs() -> Tensor:
    return torch.randn(4, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def made(kind: type[nn.RNNBase], **options: int) -> nn.RNNBase:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return kind(2, 3, batch_first=True, **options).double()


def panels(summary: GlobalSummary) -> list[Panel]:
    (figure,) = summary.answer().figures
    return figure.panels


def bars(panel: Panel) -> list[float]:
    return [float(value) for mark in panel.marks if isinstance(mark, Bars) for value in mark.values]


def curves(marks: list[Mark]) -> list[Curve]:
    return [mark for mark in marks if isinstance(mark, Curve)]


@pytest.fixture(scope="module")
def summary() -> GlobalSummary:
    target = torch.randn(4, 6, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return global_summary(ft.global_ntk(made(nn.GRU), inputs()), target, modes=3)


def test_all_panels(summary: GlobalSummary) -> None:
    spectrum, ranks, weights, modes, target = panels(summary)
    view = summary.views["states"]
    found = [curve.y for curve in curves(spectrum.marks)]
    assert found[0] == pytest.approx(summary.eigenvalue_shares)
    assert found[1][:4] == pytest.approx(view.temporal_shares[:4])
    assert found[2][:4] == pytest.approx(view.core_shares[:4])
    exact = [summary.effective_rank.value, view.temporal_rank.value, view.spatial_rank.value]
    assert bars(ranks) == pytest.approx([72, 24, 3, *exact])  # the largest there could be, then what there is
    assert bars(weights) == pytest.approx((100 * summary.trace_shares.values).tolist())
    assert weights.y.ticks == dict(enumerate(summary.trace_shares.names))
    rows = [curve.y.reshape(4, 7) for curve in curves(modes.marks)]  # four samples of six steps, and a gap
    assert len(rows) == 3
    second = (rows[1][:, :6] + 1) / 0.46
    assert second == pytest.approx(view.temporal_modes[1] / np.abs(view.temporal_modes[1]).max())
    assert view.alignment is not None
    assert bars(target) == pytest.approx([*view.alignment.rayleigh, *view.alignment.proxy_rayleigh])
    assert len(summary.plot().axes) == 5


def test_one_row_for_every_member() -> None:
    kernel = ft.global_ntk(made(nn.LSTM), inputs(), ("hidden", "cell"))
    found = panels(global_summary(kernel, modes=2))
    assert len(found) == 3 + 2
    assert "hidden" in found[3].title
    assert "cell" in found[4].title
    assert len(bars(found[1])) == 2 * (1 + 2 * 2)


def test_many_parameters_are_drawn_together() -> None:
    kernel = ft.global_ntk(made(nn.RNN, num_layers=5), inputs())
    weights = panels(kernel.summary(modes=2))[2]
    assert isinstance(weights.y.ticks, dict)
    assert (len(bars(weights)), weights.y.ticks[11]) == (12, "9 others")
    assert sum(bars(weights)) == pytest.approx(100)


def test_samples_without_time_are_points() -> None:
    model = nn.Linear(2, 3).double()
    modes = panels(global_summary(ft.global_ntk(model, inputs()[:, 0]), modes=2))[3]
    assert [curve.marker for curve in curves(modes.marks)] == [".", "."]


def test_a_kernel_is_drawn_by_its_summary() -> None:
    drawing = ft.global_ntk(made(nn.RNN), inputs()[:2, :3]).plot()
    assert drawing.axes[1].get_title() == "Effective ranks"
