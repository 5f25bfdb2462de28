"""First-order changes by one step: against derivatives of real training, and the note's formulas."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from chain_networks import CASES, Case, normal, note_network, read
from torch import Tensor, nn

from foretrain.empirical.fields import Fields, fields
from foretrain.support.errors import InputError

ETA = 1e-7
STEP = 2e-5


def trained(case: Case, model: nn.Module, x: Tensor, y: Tensor, lr: float, scale: float) -> nn.Module:
    """A copy of the model after one step, written out."""
    new = copy.deepcopy(model)
    loss = scale * ((read(case, new, x) - y) ** 2).sum()
    learning = [parameter for parameter in new.parameters() if parameter.requires_grad]
    gradients = torch.autograd.grad(loss, learning)
    with torch.no_grad():
        for parameter, gradient in zip(learning, gradients):
            parameter -= lr * gradient
    return new


def targets(found: Fields) -> Tensor:
    return normal(*found.outputs.shape, seed=21)


@pytest.mark.parametrize("name", CASES)
def test_changes_of_all_fields_are_those_of_a_real_step(name: str) -> None:
    case = CASES[name]
    model, x, found = case.model(), case.x(), case.fields()
    y, scale = targets(found), 0.3
    # Central differences: half a step forward minus half a step back is exact to third order.
    forward, back = (
        fields(trained(case, model, x, y, sign * STEP, scale), x, readout=case.readout)
        for sign in (0.5, -0.5)
    )
    step = found.first_order(STEP, y, loss_scale=scale)
    pairs = [(forward.outputs - back.outputs, step.residual())]
    for layer in range(1, found.depth + 1):
        pairs.append((forward.activation(layer) - back.activation(layer), step.activation(layer)))
    for layer in range(found.depth):
        pairs.append((forward.conjugate(layer) - back.conjugate(layer), step.conjugate(layer).sum("part")))
    for real, predicted in pairs:
        # What is left is of third order in the step, or round-off.
        size = np.abs(real.values).max()
        np.testing.assert_allclose(predicted.values, real.values, rtol=0, atol=1e-6 * size + 1e-14)
        assert size > 1e-7 or size == 0


@pytest.mark.parametrize("depth", [1, 2, 3, 4, 5])
def test_the_notes_own_check(depth: int) -> None:
    """Equal widths 12, M = 5, lr = 1e-7, no mask flips: errors of change / lr as in the reference."""
    model, x, y = note_network(depth, gain=1.0), normal(5, 12, seed=4), normal(5, 1, seed=5)
    found = fields(model, x, readout="mean", normalized=True)
    after = fields(trained(CASES["note"], model, x, y, ETA, 1 / 5), x, readout="mean", normalized=True)
    step = found.first_order(ETA, y)
    for layer in range(1, depth + 1):
        np.testing.assert_array_equal(found.slope(layer), after.slope(layer))
        change = after.activation(layer) - found.activation(layer)
        assert np.abs(change.values - step.activation(layer).values).max() / ETA < 1e-6
    assert np.abs((after.outputs - found.outputs).values - step.residual().values).max() / ETA < 4e-7
    r = (found.outputs - y.numpy()).values
    K = found.kernel.values[..., 0, 0]
    np.testing.assert_allclose(step.residual().values, -2 * ETA / 5 * K @ r, atol=1e-19)  # (171)
    for layer in range(depth):
        change = after.conjugate(layer) - found.conjugate(layer)
        predicted = -2 * ETA / 5 * found.transport_sum(layer, found.activation(layer).values, r)  # (185)
        assert np.abs(change.values - predicted.values).max() / ETA < 4e-7
        np.testing.assert_allclose(step.conjugate(layer).sel(part="transport"), predicted, atol=1e-18)
        assert not step.conjugate(layer).sel(part="curvature").any()


@pytest.mark.parametrize("name", CASES)
def test_the_residual_is_driven_by_the_kernel(name: str) -> None:
    found = CASES[name].fields()
    y = targets(found)
    r = found.outputs.values - y.numpy()
    expected = -2 * 0.01 / 5 * np.einsum("abcd,bd->ac", found.kernel.values, r)
    np.testing.assert_allclose(found.first_order(0.01, y).residual(), expected, atol=1e-13)


def test_local_changes_and_forward_transport_unrolled() -> None:
    """(150) written out, and (153), (154): the full change is the sum of local ones carried forward."""
    found = CASES["note"].fields()
    y = targets(found)
    step, r = found.first_order(0.1, y), (found.outputs.values - y.numpy())[:, 0]
    for layer in range(1, 4):
        Q, a = found.overlap(layer - 1).values, found.slope(layer).values
        b = found.conjugate(layer).values[:, 0]
        local = -2 * 0.1 / 5 * found.readout_scale * a * (Q @ (a * b * r[:, None]))
        np.testing.assert_allclose(step.local(layer), local, atol=1e-15)
        full = sum(
            np.einsum("aij,aj->ai", found.forward_transport(start, layer).values, step.local(start).values)
            for start in range(1, layer + 1)
        )
        np.testing.assert_allclose(step.activation(layer), full, atol=1e-14)


def test_with_biases_the_fields_themselves_stand_in_the_transport() -> None:
    """(185) uses that D W u_l = u_{l+1}, which biases break; the step does not use it."""
    case = CASES["unequal widths"]
    found = case.fields()
    y = targets(found)
    r = found.outputs.values - y.numpy()
    literal = -2 / 5 * found.transport_sum(0, found.activation(0).values, r)
    step = found.first_order(1.0, y).conjugate(0).sel(part="transport")
    assert np.abs(literal - step).max() > 0.05 * np.abs(step).max()


def test_smooth_slopes_move_too() -> None:
    found = CASES["tanh"].fields()
    step = found.first_order(1.0, targets(found)).conjugate(1)
    sizes = np.abs(step).max(("input", "output", "unit"))
    assert float(sizes.sel(part="curvature")) > 0.1 * float(sizes.sel(part="transport"))


@pytest.mark.parametrize("name", ["note", "gelu, fixed matrix", "by hand"])
def test_unseen_inputs_are_driven_by_training_residuals(name: str) -> None:
    case = CASES[name]
    model, x, found = case.model(), case.x(), case.fields()
    unseen, y = normal(3, *case.shape, seed=31), targets(found)
    step = found.first_order(STEP, y, unseen=unseen)
    assert step.residual()["training"].values.tolist() == [True] * 5 + [False] * 3
    forward, back = (trained(case, model, x, y, sign * STEP, 1 / 5) for sign in (0.5, -0.5))
    change = (read(case, forward, unseen) - read(case, back, unseen)).detach().numpy()
    np.testing.assert_allclose(step.residual().values[5:], change, rtol=0, atol=2e-10)
    np.testing.assert_allclose(step.residual().values[:5], found.first_order(STEP, y).residual(), atol=1e-16)
    watched = [fields(one, unseen, readout=case.readout) for one in (forward, back)]
    for layer in range(found.depth):
        real = watched[0].conjugate(layer).values - watched[1].conjugate(layer).values
        np.testing.assert_allclose(step.conjugate(layer).sum("part").values[5:], real, rtol=0, atol=2e-10)


def test_the_loss_can_only_fall_at_first_order() -> None:
    found = CASES["tanh"].fields()
    y = targets(found)
    r = found.outputs.values - y.numpy()
    assert float(np.sum(r * found.first_order(0.1, y).residual().values)) < 0
    assert "first-order change -" in repr(found.first_order(0.1, y))


def test_bad_requests() -> None:
    found = CASES["note"].fields()
    y = targets(found)
    with pytest.raises(InputError, match="y has shape"):
        found.first_order(0.1, y[:3])
    with pytest.raises(InputError, match="learning rate"):
        found.first_order(-1.0, y)
    with pytest.raises(InputError, match="loss_scale is 0"):
        found.first_order(0.1, y, loss_scale=0.0)
    with pytest.raises(InputError, match="first axis"):
        found.first_order(0.1, y, unseen=normal(2, 7))
    with pytest.raises(InputError, match=r"layers 0\.\.2 change"):
        found.first_order(0.1, y).conjugate(3)
