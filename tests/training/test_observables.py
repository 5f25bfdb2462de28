"""Every named observable against brute force on a small model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr
from torch import Tensor, nn

import foretrain as ft
from foretrain.support.errors import InputError
from foretrain.training import observables
from foretrain.training.observables import found
from foretrain.training.recorder import Recorder, read
from foretrain.training.tasks.memory_pro import Recurrent

MSE = nn.functional.mse_loss


def chain() -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 2)).double()


def pairs(*shape: int, outputs: int = 2) -> tuple[Tensor, Tensor]:
    source = torch.Generator().manual_seed(1)
    x = torch.randn(*shape, dtype=torch.float64, generator=source)
    return x, torch.randn(*shape[:-1], outputs, dtype=torch.float64, generator=source)


def rnn() -> nn.Module:
    """Without biases, so that the core is made of states and inputs alone."""
    model = Recurrent(2, 4, 2, "rnn", dtype=torch.float64)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model.recurrent = nn.RNN(2, 4, batch_first=True, bias=False).double()
    return model


def jacobian(model: nn.Module, x: Tensor) -> Tensor:
    """States by parameters of the recurrent layer, (states, parameters), by torch.func."""
    layer = model.recurrent
    values = dict(layer.named_parameters())
    function = lambda p: torch.func.functional_call(layer, p, (x,))[0].reshape(-1)  # noqa: E731
    parts = torch.func.jacrev(function)(values)
    return torch.cat([part.reshape(part.shape[0], -1) for part in parts.values()], 1).detach()


def ratio(matrix: Tensor) -> float:
    return float(matrix.trace() ** 2 / (matrix @ matrix).trace())


def test_loss_and_gradient_norm() -> None:
    model, batch = chain(), pairs(5, 3)
    value = MSE(model(batch[0]), batch[1])
    value.backward()
    norm = sum(float(parameter.grad.square().sum()) for parameter in model.parameters()) ** 0.5
    assert observables.loss()(model, batch, loss=MSE) == pytest.approx(value.item(), rel=1e-12)
    assert observables.gradient_norm()(model, batch, loss=MSE) == pytest.approx(norm, rel=1e-12)


def test_learning_rates_of_one_and_of_several_groups() -> None:
    model = chain()
    one = torch.optim.SGD(model.parameters(), lr=0.3)
    assert observables.learning_rate()(model, None, optimizer=one) == 0.3
    two = torch.optim.SGD(
        [{"params": model[0].parameters(), "lr": 0.1}, {"params": model[2].parameters()}], lr=0.2
    )
    np.testing.assert_array_equal(observables.learning_rate()(model, None, optimizer=two), [0.1, 0.2])


def test_weight_spectra_are_singular_values() -> None:
    model = nn.Sequential(nn.Conv1d(2, 3, 4), nn.Flatten(), nn.Linear(6, 2))
    spectra = observables.weight_spectra()(model, None)
    assert list(spectra["matrix"].values) == ["0.weight", "2.weight"]
    first = np.linalg.svd(model[0].weight.detach().reshape(3, 8).numpy(), compute_uv=False)
    np.testing.assert_allclose(spectra.sel(matrix="0.weight"), first, rtol=1e-5)
    assert np.isnan(spectra.sel(matrix="2.weight", rank=3))
    assert observables.weight_spectra(largest=np.int64(1))(model, None).sizes["rank"] == 1
    with torch.no_grad():
        model[2].weight[0, 0] = float("nan")
    assert np.isnan(observables.weight_spectra()(model, None).sel(matrix="2.weight")).all()


def test_shares_of_the_kernel_are_those_of_gradients() -> None:
    model, (x, y) = chain(), pairs(5, 3)
    squares = dict.fromkeys(dict(model.named_parameters()), 0.0)
    for sample in model(x):
        for output in sample:
            for name, gradient in zip(
                squares, torch.autograd.grad(output, model.parameters(), retain_graph=True)
            ):
                squares[name] += float(gradient.square().sum())
    shares = observables.ntk_shares()(model, (x, y))
    for name, square in squares.items():
        assert float(shares.sel(parameter=name)) == pytest.approx(square / sum(squares.values()), rel=1e-10)
    few = observables.ntk_shares(samples=2)(model, (x, y))
    xr.testing.assert_identical(few, observables.ntk_shares()(model, (x[:2], y[:2])))


def test_fields_agree_with_the_kernel_by_layer() -> None:
    """Two ways to the same shares: overlaps of fields, and the tangent kernel."""
    model, batch = chain(), pairs(5, 3)
    seen = observables.fields()(model, batch)
    shares = observables.ntk_shares(by="layer")(model, batch).values
    np.testing.assert_allclose(seen["kernel_trace"] / seen["kernel_trace"].sum(), shares, rtol=1e-10)
    whole = ft.fields(model, batch[0]).observe(batch[1])
    np.testing.assert_allclose(seen["metric_alignment"], whole["metric_alignment"].mean("followed"))
    assert float(seen["kernel_participation"]) == pytest.approx(float(whole["kernel_participation"]))


def test_ranks_of_the_global_kernel() -> None:
    model, (x, y) = rnn(), pairs(3, 5, 2)
    J = jacobian(model, x)
    G = (J @ J.T).reshape(15, 4, 15, 4)
    expected = [
        ratio(G.reshape(60, 60)),
        ratio(torch.einsum("aubu->ab", G)),
        ratio(torch.einsum("auav->uv", G)),
    ]
    found = observables.global_ntk_rank()(model, (x, y))
    assert list(found[""]["view"].values) == ["total", "temporal", "spatial"]
    np.testing.assert_allclose(found[""], expected, rtol=1e-8)
    np.testing.assert_array_equal(found["error"], 0)


def test_cosine_with_the_core() -> None:
    model, (x, y) = rnn(), pairs(3, 5, 2)
    G = jacobian(model, x) @ jacobian(model, x).T
    states = model.recurrent(x)[0].detach()
    before = torch.cat([torch.zeros(3, 1, 4), states[:, :-1]], 1)
    V = torch.cat([before, x], 2).reshape(15, -1)
    core = torch.kron(V @ V.T, torch.eye(4, dtype=torch.float64))
    cosine = float((G * core).sum() / (G.norm() * core.norm()))
    assert observables.core_cosine()(model, (x, y)).value == pytest.approx(cosine, rel=1e-8)


def test_alignment_through_the_readout() -> None:
    model, (x, y) = rnn(), pairs(3, 5, 2)
    G = jacobian(model, x) @ jacobian(model, x).T
    left, _, right = torch.linalg.svd(y.reshape(15, 2), full_matrices=False)
    found = observables.mode_alignment()(model, (x, y))
    for mode in range(2):
        u = torch.kron(left[:, mode], right[mode] @ model.readout.weight.detach())
        Gu = G @ u
        assert float(found[""][mode]) == pytest.approx(float(u @ Gu / (u.norm() * Gu.norm())), rel=1e-8)
        quotient = float(u @ Gu / (u @ u)) / (float(G.trace()) / 60)
        assert float(found["rayleigh"][mode]) == pytest.approx(quotient, rel=1e-8)
    assert np.isnan(found[""][2])  # two outputs have two modes


def test_models_with_several_arguments() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 1)

        def forward(self, a: Tensor, b: Tensor) -> Any:
            return self.layer(a * b)

    model, a, b, y = Two(), torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 1)
    expected = MSE(model(a, b), y).item()
    for x in ((a, b), {"a": a, "b": b}):
        assert observables.loss()(model, (x, y), loss=MSE) == pytest.approx(expected)
        assert float(observables.ntk_shares(samples=2)(model, (x, y)).sum()) == pytest.approx(1)


def test_imbalance_is_recorded_by_name(tmp_path: Path) -> None:
    """Δ = ‖W_2‖² - ‖W_1‖² - ‖b_1‖², which moves by the drift times the learning rate in a small step."""
    model, batch, rate = chain(), pairs(5, 3), 1e-5
    first, _, second = model
    delta = second.weight.square().sum() - first.weight.square().sum() - first.bias.square().sum()
    gradients = torch.autograd.grad(MSE(model(batch[0]), batch[1]), [second.weight, first.weight, first.bias])
    signs = zip((second.weight, first.weight, first.bias), gradients, (-2, 2, 2))
    drift = sum(sign * float((value.detach() * gradient).sum()) for value, gradient, sign in signs)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with Recorder(
        tmp_path / "run", model, "imbalance", batch=batch, loss=MSE, optimizer=optimizer, every=1, budget=None
    ):
        MSE(model(batch[0]), batch[1]).backward()
        optimizer.step()
    seen = read(tmp_path / "run").isel(pair=0)
    assert float(seen["imbalance_delta"][0]) == pytest.approx(delta.item(), rel=1e-12)
    assert float(seen["imbalance_drift"][0]) == pytest.approx(drift, rel=1e-10)
    assert float(seen["imbalance_identity"][0]) == pytest.approx(drift, rel=1e-10)
    change = np.diff(seen["imbalance_delta"].values)[0] / rate
    assert change == pytest.approx(drift, abs=50 * rate)
    with pytest.raises(InputError, match="'imbalance' needs loss="):
        Recorder(tmp_path / "other", model, ["imbalance"], batch=batch)


def test_names_and_what_is_wrong_with_them() -> None:
    assert {"loss", "ntk_shares", "weight_spectra", "fields", "global_ntk_rank", "core_cosine"} <= set(
        observables.names()
    )
    with pytest.raises(InputError, match="did you mean 'ntk_shares'"):
        found(["ntk_share"])
    with pytest.raises(InputError, match="known already"):
        observables.register("loss", lambda model, batch: 0.0)
    with pytest.raises(InputError, match="unknown need"):
        observables.register("new", lambda model, batch: 0.0, needs=("los",))
    with pytest.raises(InputError, match="give a function"):
        observables.register("new", 3.0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="lambda has no name"):
        found([lambda model, batch: 0.0])
    with pytest.raises(InputError, match="asked for twice"):
        found(["loss", "loss"])
    with pytest.raises(InputError, match="no observable"):
        found([3])  # type: ignore[list-item]
    for wrong in (
        lambda: observables.mode_alignment(modes=0),
        lambda: observables.weight_spectra(largest=0),
        lambda: observables.weight_spectra(largest=1.0),  # type: ignore[arg-type]
        lambda: observables.ntk_shares(by="row"),  # type: ignore[arg-type]
    ):
        with pytest.raises(InputError):
            wrong()


def test_a_registered_observable_has_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observables, "_registered", dict(observables._registered))
    observables.register("doubled", lambda model, batch, loss: 2 * loss(batch, 0), needs=("loss",))
    (own,) = found("doubled")
    assert own(None, 3, loss=lambda a, b: a + b) == 6
    renamed = found({"other": "doubled", "plain": lambda model, batch: 1})
    assert [(item.name, item.needs) for item in renamed] == [("other", ("loss",)), ("plain", ())]


def test_what_a_batch_must_hold() -> None:
    model = chain()
    with pytest.raises(InputError, match="needs inputs"):
        observables.ntk_shares()(model, None)
    with pytest.raises(InputError, match="needs targets"):
        observables.loss()(model, torch.randn(2, 3), loss=MSE)
    with pytest.raises(InputError, match="needs targets"):
        observables.fields()(model, torch.randn(2, 3).double())


@pytest.mark.parametrize("name", ["lyapunov", "participation_ratio", "spectral_radius", "fixed_points"])
def test_dynamics_are_recorded_by_name(name: str, tmp_path: Path) -> None:
    model, batch = Recurrent(2, 4, 2, dtype=torch.float64), pairs(3, 12, 2)
    with Recorder(tmp_path / "run", model, [name], batch=batch, budget=None) as recorder:
        recorder.step()
    data = read(tmp_path / "run")
    x = batch[0]
    if name == "lyapunov":
        expected = ft.lyapunov(model, x, count=4)
        np.testing.assert_allclose(data["lyapunov"][0], expected.values)
        np.testing.assert_allclose(data["lyapunov_error"][0], expected.standard_error)
    elif name == "participation_ratio":
        assert float(data[name][0]) == pytest.approx(float(ft.participation_ratio(model, x)))
    elif name == "spectral_radius":
        radius = ft.spectral_radius(model, x, draws=16)
        assert float(data[name][0]) == pytest.approx(radius.jacobian)
        np.testing.assert_allclose(data["spectral_radius_weights"][0], [*radius.weights.values()])
    else:
        points = ft.fixed_points(model, trials=x, starts=30)
        assert data[name][0].values.tolist() == [len(points), int(points.stable.sum()), 0]
    assert data["recorded"].all()
