"""Predicted against real steps: orders in lr, mask flips apart."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from chain_networks import CASES, Case, normal, redraw
from torch import nn

from foretrain.empirical.autograd_graph.chain import find_chain
from foretrain.empirical.fields import fields
from foretrain.empirical.fields.one_step import crossed_kink
from foretrain.support.errors import InputError

RATES = [1e-3, 1e-2, 1e-1]


def relu_network() -> nn.Module:
    return redraw(
        nn.Sequential(nn.Linear(4, 30), nn.ReLU(), nn.Linear(30, 30), nn.ReLU(), nn.Linear(30, 1)), 2.0
    )


KINKED = Case(relu_network, (4,))


@pytest.mark.parametrize("name", CASES)
def test_small_steps_agree_to_second_order(name: str) -> None:
    found = CASES[name].fields()
    data = found.step_report([1e-6, 1e-5], normal(*found.outputs.shape, seed=21)).data.sel(norm="max")
    assert int(data["flips"].sum()) == 0
    small, large = (data["error"].isel(lr=index).values for index in (0, 1))
    allowed = 50 * data["roundoff"].isel(lr=0).values
    assert (large <= 1e-3 * data["change"].isel(lr=1).values + allowed).all()
    checked = small > 30 * allowed
    np.testing.assert_allclose(large[checked] / small[checked], 100, rtol=0.05)
    np.testing.assert_array_equal(data["flip_part"], 0)


def test_frozen_masks_leave_second_order_and_flips_are_the_rest() -> None:
    found = KINKED.fields(20)
    y = normal(20, seed=3)
    data = found.step_report([1e-4, 1e-3, 1e-2], y).data
    rms = data.sel(norm="rms")
    flips = rms["flips"].sum("layer").values
    assert flips[0] < flips[1] < flips[2]
    for field in ("residual", "u_1", "u_2", "b_0", "b_1"):
        frozen = rms["frozen_error"].sel(field=field).values
        if field != "u_1":  # exactly linear as long as its masks are frozen
            np.testing.assert_allclose(frozen[1:] / frozen[:-1], 100, rtol=0.15)
    # One flip changes a conjugate field by order 1, at any lr.
    assert float(rms["flip_part"].sel(field="b_0", lr=1e-3)) > 30 * float(
        rms["frozen_error"].sel(field="b_0", lr=1e-3)
    )
    assert 0 < int(rms["flipped_inputs"].sel(lr=1e-3)) < 20
    b_0 = rms.sel(field="b_0", lr=1e-3)
    assert float(b_0["unflipped_error"]) < 0.1 * float(b_0["error"])


def test_flips_and_changes_are_those_of_training_by_hand() -> None:
    model, x, y, lr = KINKED.model(), KINKED.x(20), normal(20, 1, seed=3), 0.05
    report = fields(model, x).step_report(lr, y)
    new = copy.deepcopy(model)
    loss = ((new(x) - y) ** 2).mean()
    loss.backward()
    with torch.no_grad():
        for parameter in new.parameters():
            parameter -= lr * parameter.grad
        masks = [[one[0](x) > 0, one[2](torch.relu(one[0](x))) > 0] for one in (model, new)]
        change = (new(x) - model(x)).numpy()
    counted = [int((old ^ now).sum()) for old, now in zip(*masks)]
    assert report.data["flips"].values[0].tolist() == [*counted, 0]
    assert sum(counted) > 0
    flipped = torch.stack([(old ^ now).any(dim=1) for old, now in zip(*masks)]).any(dim=0)
    assert int(report.data["flipped_inputs"][0]) == int(flipped.sum())
    residual = report.data["change"].sel(field="residual").values[0]
    np.testing.assert_allclose(residual, [np.sqrt(np.mean(change**2)), np.abs(change).max()], rtol=1e-10)


@pytest.mark.parametrize(
    ("activation", "kinks"),
    [
        (nn.ReLU(), [0.0]),
        (nn.LeakyReLU(0.3), [0.0]),
        (nn.Hardtanh(), [-1.0, 1.0]),
        (nn.SELU(), [0.0]),
        (nn.ELU(), []),
        (nn.Tanh(), []),
        (nn.GELU(), []),
        (nn.Softplus(beta=50), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_kinks_are_found_on_the_way(activation: nn.Module, kinks: list[float]) -> None:
    model = nn.Sequential(nn.Linear(3, 200), copy.deepcopy(activation), nn.Linear(200, 1)).double()
    chain = find_chain(model, normal(4, 3))
    old = 1.5 * normal(4, 200, seed=1)
    new = old + 0.4 * normal(4, 200, seed=2)
    passed = torch.zeros_like(old, dtype=torch.bool)
    for kink in kinks:
        passed |= (old > kink) ^ (new > kink)
    assert torch.equal(crossed_kink(chain, 1, old, new), passed)
    assert bool(passed.any()) == bool(kinks)


def test_smooth_activations_never_flip() -> None:
    found = CASES["gelu, fixed matrix"].fields()
    data = found.step_report([0.1, 1.0], normal(5, 3, seed=2)).data
    assert int(data["flips"].sum()) == 0
    np.testing.assert_allclose(data["frozen_error"], data["error"], atol=1e-13)


def test_single_precision_shows_its_round_off() -> None:
    model, x = KINKED.model().float(), KINKED.x().float()
    data = fields(model, x).step_report(1e-7, normal(5, seed=3)).data.sel(norm="max", lr=1e-7)
    assert float(data["roundoff"].sel(field="residual")) > 1e-8
    assert float(data["error"].sel(field="residual")) < 20 * float(data["roundoff"].sel(field="residual"))


def test_the_text_tells_the_parts_apart() -> None:
    report = KINKED.fields(20).step_report(RATES, normal(20, seed=3))
    text = repr(report)
    for lr in RATES:
        count = int(report.data["flips"].sel(lr=lr).sum())
        assert f"{count} mask flips" in text
    assert "error = frozen (order lr^2) + flips" in text


def test_a_trained_model_needs_new_fields() -> None:
    model, x = KINKED.model(), KINKED.x()
    found = fields(model, x)
    with torch.no_grad():
        model[0].bias.add_(0.1)
    with pytest.raises(InputError, match="call fields"):
        found.step_report(0.1, normal(5))


def test_bad_requests() -> None:
    found = KINKED.fields()
    with pytest.raises(InputError, match="learning rate"):
        found.step_report([0.1, -0.1], normal(5))
    with pytest.raises(InputError, match="y has shape"):
        found.step_report(0.1, normal(4))
    frozen = fields(KINKED.model().requires_grad_(False), KINKED.x())
    with pytest.raises(InputError, match="no parameter"):
        frozen.step_report(0.1, normal(5))
