"""Summaries of the global-state NTK against dense linear algebra."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.empirical.global_ntk import GlobalNTK, parameter_shares
from foretrain.empirical.global_ntk.readout import find_readout
from foretrain.empirical.global_ntk.summary import GlobalSummary, global_summary
from foretrain.support.errors import InputError

SAMPLES, STEPS, UNITS, OUTPUTS = 3, 5, 4, 2


class Model(nn.Module):
    """A recurrent layer that is read at all steps."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.rnn = kind(2, UNITS, batch_first=True)
        self.head = nn.Linear(UNITS, OUTPUTS)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.rnn(x)[0])
        return found


def drawn(kind: type[nn.RNNBase]) -> tuple[nn.Module, Tensor, Tensor]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Model(kind).double()
        x = torch.randn(SAMPLES, STEPS, 2, dtype=torch.float64)
        return model, x, torch.randn(SAMPLES, STEPS, OUTPUTS, dtype=torch.float64)


@pytest.fixture(scope="module")
def gru() -> tuple[nn.Module, Tensor, Tensor, GlobalNTK, GlobalSummary]:
    model, x, y = drawn(nn.GRU)
    kernel = ft.global_ntk(model, x)
    return model, x, y, kernel, global_summary(kernel, y, find_readout(model, x, kernel), modes=4)


def jacobians(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """dh/dtheta by torch alone, (states, entries) of every parameter of the recurrent layer."""
    states = model.rnn(x)[0].flatten()  # type: ignore[union-attr, operator]
    named = {name: value for name, value in model.named_parameters() if name.startswith("rnn")}
    rows = [torch.autograd.grad(state, list(named.values()), retain_graph=True) for state in states]
    return {name: torch.stack([row[i].flatten() for row in rows]) for i, name in enumerate(named)}


def test_the_whole(gru: tuple[nn.Module, Tensor, Tensor, GlobalNTK, GlobalSummary]) -> None:
    model, x, _, _, found = gru
    parts = jacobians(model, x)
    dense = sum(part @ part.t() for part in parts.values())
    values = torch.linalg.eigvalsh(dense).flip(0).numpy()
    assert found.size == SAMPLES * STEPS * UNITS
    assert found.trace.value == pytest.approx(values.sum())
    assert found.effective_rank.value == pytest.approx(values.sum() ** 2 / np.square(values).sum())
    assert found.eigenvalues == pytest.approx(values[:4], rel=1e-6)
    assert found.residuals.max() < 1e-3 * values[0]
    assert found.eigenvalue_shares == pytest.approx(values[:4] / values.sum(), rel=1e-6)
    assert found.parameters == sum(part.shape[1] for part in parts.values())
    shares = {name: float(part.square().sum()) / values.sum() for name, part in parts.items()}
    assert dict(zip(found.trace_shares.names, found.trace_shares.values)) == pytest.approx(shares)
    assert (found.dtype, found.notes) == ("float64", ())


def test_its_view(gru: tuple[nn.Module, Tensor, Tensor, GlobalNTK, GlobalSummary]) -> None:
    model, x, y, kernel, found = gru
    view = found.views["states"]
    entries = kernel.dense().view(SAMPLES * STEPS, UNITS, SAMPLES * STEPS, UNITS)
    temporal = torch.einsum("aubu->ab", entries) / UNITS
    values, vectors = torch.linalg.eigh(temporal)
    assert view.temporal_shares == pytest.approx((values.flip(0) / values.sum()).numpy(), abs=1e-7)
    assert view.temporal_modes.shape == (4, SAMPLES, STEPS)
    for mode, exact in zip(view.temporal_modes, vectors.flip(1).t().numpy()):
        assert abs(np.sum(mode.ravel() * exact)) == pytest.approx(1.0, abs=1e-6)
    core = kernel.concatenated_core.dense()
    cosine = torch.sum(core * kernel.dense()) / torch.linalg.norm(core) / torch.linalg.norm(kernel.dense())
    assert view.core_cosine is not None
    assert view.core_cosine.value == pytest.approx(float(cosine))
    rows = kernel.site_rows()
    gram = torch.linalg.eigvalsh(rows @ rows.t()).flip(0).numpy()
    assert view.core_shares[:3] == pytest.approx(gram[:3] / gram.sum())
    weight = model.head.weight.detach()  # type: ignore[union-attr]
    exact_alignment = kernel.alignment(y, weight)
    assert view.alignment is not None
    assert view.alignment.rayleigh == pytest.approx(exact_alignment.rayleigh)
    loss = 0.5 * (model(x) - y).square().sum()
    named = {name: value for name, value in model.named_parameters() if name.startswith("rnn")}
    gradients = torch.autograd.grad(loss, list(named.values()))
    assert view.loss_decrease is not None
    for name, gradient in zip(named, gradients):
        assert view.loss_decrease.by_parameter[name] == pytest.approx(float(gradient.square().sum()))
    assert view.readout is not None
    assert "head" in view.readout


def test_repr_and_dataset(gru: tuple[nn.Module, Tensor, Tensor, GlobalNTK, GlobalSummary]) -> None:
    found = gru[-1]
    text = repr(found)
    for part in (
        "60 states",
        "effective rank",
        "in time",
        "core V V*",
        "share of the loss decrease",
    ):
        assert part in text
    data = found.to_dataset()
    assert data["temporal_mode"].dims == ("mode", "batch", "time")
    assert data["eigenvalue"].values == pytest.approx(found.eigenvalues)
    assert data["target_rayleigh"].sizes == {"target_mode": 4}  # two of the mean over samples, two deviations
    assert float(data["effective_rank"]) == found.effective_rank.value
    decrease = found.views["states"].loss_decrease
    assert decrease is not None
    for name in found.trace_shares.names:  # both tables are labelled by the same parameters
        assert float(data["loss_decrease"].sel(parameter=name)) == decrease.by_parameter[name]
    assert data.attrs["size"] == 60


def test_every_member_of_a_sum() -> None:
    model, x, y = drawn(nn.LSTM)
    kernel = ft.global_ntk(model, x, ("hidden", "cell"))
    hidden = ft.global_ntk(model, x)
    readout = find_readout(model, x, hidden)
    assert readout is not None
    found = global_summary(kernel, y, {"hidden": readout})
    alone = global_summary(hidden, y, readout)
    assert list(found.views) == ["hidden", "cell"]
    assert list(alone.views) == ["hidden"]
    assert found.views["hidden"].temporal_rank.value == pytest.approx(
        alone.views["hidden"].temporal_rank.value
    )
    assert found.trace.value > alone.trace.value
    cell = found.views["cell"]
    assert cell.alignment is not None  # by the temporal kernel
    assert (cell.readout, cell.loss_decrease) == (None, None)
    assert found.views["hidden"].loss_decrease is not None
    data = found.to_dataset()
    assert data["temporal_mode_cell"].dims == ("mode_cell", "batch_cell", "time_cell")
    assert float(data["temporal_rank_hidden"]) == found.views["hidden"].temporal_rank.value
    assert "The state cell changes" in repr(found)


def test_states_without_time_and_core() -> None:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5)).double()
    x = torch.randn(4, 3, dtype=torch.float64)
    found = global_summary(ft.global_ntk(model, x, parameters=["1.weight"]), modes=2)
    view = found.views["states"]
    assert view.along == "batch"
    assert view.core_cosine is None
    assert view.core_shares.size == 0
    assert view.temporal_modes.shape == (2, 4)
    assert found.trace_shares.values.sum() == pytest.approx(1.0)


def test_sampled_shares_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, _ = drawn(nn.GRU)
    kernel = ft.global_ntk(model, x)
    exact = parameter_shares.trace_shares(kernel)
    assert not exact.standard_errors.any()
    monkeypatch.setattr(parameter_shares, "_EXACT_SIZE", 0)
    monkeypatch.setattr(parameter_shares, "AFFORDABLE", 0.0)
    found = parameter_shares.trace_shares(kernel, accuracy=0.02, seed=1)
    assert 0 < found.standard_errors.max() <= 0.02
    assert np.abs(found.values - exact.values).max() < 4 * found.standard_errors.max()
    assert found.values.argmax() == exact.values.argmax()


def test_targets_that_do_not_fit_are_noted() -> None:
    model, x, _ = drawn(nn.GRU)
    kernel = ft.global_ntk(model, x)
    found = global_summary(kernel, np.ones((SAMPLES, 7, 2)))
    assert found.views["states"].alignment is None
    assert "No alignment" in found.notes[0]
    assert "zero everywhere" in global_summary(kernel, np.zeros((SAMPLES, STEPS, 2))).notes[0]


def test_bad_numbers_are_refused() -> None:
    model, x, _ = drawn(nn.GRU)
    with pytest.raises(InputError, match="modes"):
        global_summary(ft.global_ntk(model, x), modes=0)
    found = global_summary(ft.global_ntk(model, x), modes=np.int64(2))  # type: ignore[arg-type]
    assert len(found.eigenvalues) == 2
