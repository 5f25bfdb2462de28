"""Recording while a network learns: every entry is what the fields of that moment say."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import xarray as xr
from chain_networks import normal, redraw
from torch import nn

from foretrain.empirical.fields import Fields, effective_rank, fields, record_fields
from foretrain.support.errors import InputError

X, Y = normal(7, 5, seed=1), normal(7, 1, seed=2)


def network() -> nn.Module:
    return redraw(
        nn.Sequential(nn.Linear(5, 25), nn.ReLU(), nn.Linear(25, 24), nn.ReLU(), nn.Linear(24, 1)), gain=2.0
    )


def watched(found: Fields) -> dict[str, xr.DataArray]:
    return {"Q1": found.overlap(1), "u_2": found.activation(2), "K": found.kernel_spectrum}


def test_every_entry_is_that_of_a_network_trained_by_hand() -> None:
    model = network()
    before = copy.deepcopy(model.state_dict())
    record = record_fields(model, X, Y, 7, lr=0.02, every=3, modes=4, inputs=[5, 1], watch=watched)
    assert record.attrs["lr"] == 0.02
    assert record["step"].values.tolist() == [0, 3, 6, 7]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02)
    for step in range(8):
        if step in record["step"].values:
            _check_moment(record.sel(step=step), model)
        optimizer.zero_grad()
        ((model(X) - Y) ** 2).mean().backward()
        optimizer.step()


def _check_moment(moment: xr.Dataset, model: nn.Module) -> None:
    found = fields(model, X)
    kernels = found.kernel_by_layer.values[..., 0, 0]
    r = found.outputs.values[:, 0] - Y.numpy()[:, 0]
    assert float(moment["loss"]) == pytest.approx(np.mean(r**2), rel=1e-9)
    np.testing.assert_allclose(moment["kernel_trace"], np.einsum("laa->l", kernels), rtol=1e-9)
    np.testing.assert_allclose(
        moment["kernel_drive"], np.einsum("a,lab,b->l", r, kernels, r) / (r @ r), rtol=1e-9
    )
    total = np.linalg.eigvalsh(kernels.sum(axis=0))[::-1]
    np.testing.assert_allclose(moment["kernel_eigenvalue"], total[:4], rtol=1e-8)
    assert float(moment["kernel_participation"]) == pytest.approx(effective_rank(total), rel=1e-8)
    np.testing.assert_allclose(
        moment["layer_eigenvalue"].sel(layer=2), found.kernel_spectrum.sel(part="2")[:4], rtol=1e-8
    )
    np.testing.assert_allclose(
        moment["metric_eigenvalue"].sel(metric_layer=1), found.metric_spectrum(1, [5, 1])[:, :4]
    )
    np.testing.assert_allclose(moment["weight_eigenvalue"].sel(layer=2), found.weight_spectrum(2)[:4])
    assert float(moment["tail_exponent"].sel(layer=2)) == pytest.approx(found.tail(2).exponent, rel=1e-9)
    assert np.isnan(moment["tail_exponent"].sel(layer=3))
    for name, values in watched(found).items():
        np.testing.assert_allclose(moment[name], values, rtol=1e-8, atol=1e-10)
    G, b = found.metric(1, 5, 5).values, found.conjugate(1).values[5, 0]
    expected = b @ G @ b / (b @ b) / np.linalg.eigvalsh(G)[-1]
    assert float(moment["metric_alignment"].sel(metric_layer=1, followed=5)) == pytest.approx(
        expected, rel=1e-9
    )


def test_short_spectra_are_filled_up() -> None:
    record = record_fields(network(), X, Y, 1, 0.02, modes=30)
    assert int(np.isfinite(record["kernel_eigenvalue"][0]).sum()) == 7
    assert int(np.isfinite(record["weight_eigenvalue"].isel(step=0).sel(layer=3)).sum()) == 1
    assert record.sizes["followed"] == 4


def test_one_observation_is_one_entry() -> None:
    model = network()
    record = record_fields(model, X, Y, 1, 0.02).isel(step=0)
    alone = fields(model, X).observe(Y)
    for name in alone:
        np.testing.assert_allclose(record[name], alone[name], rtol=1e-10)


def test_the_notes_readout_and_other_losses() -> None:
    model = redraw(nn.Sequential(nn.Linear(5, 8), nn.Tanh()))
    record = record_fields(model, X, Y, 2, 0.1, readout="mean", loss_scale=2.0)
    r = (model(X).mean(dim=1, keepdim=True) - Y).detach().numpy()
    assert float(record["loss"][0]) == pytest.approx(2 * np.sum(r**2), rel=1e-12)


def test_numbers_of_numpy_are_numbers() -> None:
    record = record_fields(network(), X, Y, np.int64(3), 0.02, every=np.int64(2), modes=np.int16(2))  # type: ignore[arg-type]
    assert record["step"].values.tolist() == [0, 2, 3]
    assert record.sizes["rank"] == 2


def test_bad_requests() -> None:
    with pytest.raises(InputError, match="modes is 0"):
        record_fields(network(), X, Y, 2, 0.1, modes=0)
    with pytest.raises(InputError, match="0 to 6"):
        record_fields(network(), X, Y, 2, 0.1, inputs=[7])
    with pytest.raises(InputError, match="steps is True"):
        record_fields(network(), X, Y, True, 0.1)
    with pytest.raises(InputError, match="every is 0"):
        record_fields(network(), X, Y, 2, 0.1, every=0)
