"""Overlaps, conjugate fields and kernels: against brute force, the note's own formulas, and their symmetries."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from chain_networks import CASES, brute_force_kernel, normal, note_network, read, redraw
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from foretrain.compare.build import build
from foretrain.empirical.fields import fields
from foretrain.support.errors import InputError, NotEnoughMemoryError
from foretrain.theory.architecture import MLP


@pytest.mark.parametrize("name", CASES)
def test_the_kernel_is_the_one_of_jacobians(name: str) -> None:
    case = CASES[name]
    found = case.fields()
    expected = brute_force_kernel(case, case.model(), case.x()).detach().numpy()
    assert found.kernel.dims == ("input_1", "input_2", "output_1", "output_2")
    np.testing.assert_allclose(found.kernel.values, expected, rtol=1e-10, atol=1e-10 * np.abs(expected).max())
    np.testing.assert_allclose(found.kernel_by_layer.sum("layer").values, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_each_layer_has_the_kernel_of_its_own_parameters(name: str) -> None:
    case = CASES[name]
    by_layer = case.fields().kernel_by_layer
    for number in by_layer["layer"].values:
        model = case.model()
        own = [module for module in model.modules() if isinstance(module, nn.Linear)][number - 1]
        learning = [parameter for parameter in own.parameters() if parameter.requires_grad]
        model.requires_grad_(False)
        for parameter in learning:
            parameter.requires_grad_(True)
        expected = brute_force_kernel(case, model, case.x()).detach().numpy()
        np.testing.assert_allclose(by_layer.sel(layer=number).values, expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", CASES)
def test_conjugate_fields_are_gradients(name: str) -> None:
    case = CASES[name]
    found = case.fields()
    chain = found.state.chain
    for number in range(1, found.depth + 1):
        # By hand: the rest of the network, applied to the recorded field.
        v = chain.v(number).clone().requires_grad_()
        u = chain.activate(number, v)
        hidden = u
        for above in range(number + 1, found.depth + 1):
            hidden = chain.activate(above, chain.layer(above)(hidden))
        outputs = found.state.readout(hidden)
        for output in range(outputs.shape[1]):
            by_u, by_v = torch.autograd.grad(outputs[:, output].sum(), [u, v], retain_graph=True)
            b = found.readout_scale * found.conjugate(number).isel(output=output).values
            z = found.readout_scale * found.masked_conjugate(number).isel(output=output).values
            np.testing.assert_allclose(b, by_u.numpy(), atol=1e-12)
            np.testing.assert_allclose(z, by_v.numpy(), atol=1e-12)


def test_the_notes_definitions_at_equal_widths() -> None:
    width, inputs = 12, 5
    model, x = note_network(2), normal(inputs, width, seed=2)
    found = fields(model, x, readout="mean", normalized=True)
    W1, W2 = (model[index].weight.detach().numpy() for index in (0, 2))
    u0 = x.numpy()
    v1 = u0 @ W1.T
    u1 = np.maximum(v1, 0)
    v2 = u1 @ W2.T
    a1, a2 = (v1 > 0).astype(float), (v2 > 0).astype(float)
    z1 = a1 * (a2 @ W2)
    S1, S2 = z1 @ z1.T / width, a2 @ a2.T / width
    np.testing.assert_allclose(found.overlap(0).values, u0 @ u0.T / width, atol=1e-14)
    np.testing.assert_allclose(found.overlap(1).values, u1 @ u1.T / width, atol=1e-14)
    np.testing.assert_allclose(found.correlator(1).values[..., 0, 0], S1, atol=1e-14)
    np.testing.assert_allclose(found.correlator(2).values[..., 0, 0], S2, atol=1e-14)
    np.testing.assert_allclose(found.coactivation(2).values, S2, atol=1e-14)
    np.testing.assert_array_equal(found.conjugate(2).values, np.ones((inputs, 1, width)))
    np.testing.assert_array_equal(found.slope(1).values, a1)
    K = u0 @ u0.T / width * S1 + u1 @ u1.T / width * S2
    np.testing.assert_allclose(found.kernel.values[..., 0, 0], K, atol=1e-14)
    assert found.readout_scale == 1 / width


def test_raw_and_normalized_differ_by_widths_only() -> None:
    model, x = CASES["unequal widths"].model(), CASES["unequal widths"].x()
    raw, mean = fields(model, x), fields(model, x, normalized=True)
    for layer in range(1, 4):
        np.testing.assert_allclose(mean.overlap(layer) * raw.widths[layer], raw.overlap(layer))
        np.testing.assert_allclose(mean.correlator(layer) * raw.widths[layer], raw.correlator(layer))
    np.testing.assert_array_equal(mean.kernel, raw.kernel)


def test_one_hidden_layer_has_the_kernel_J() -> None:
    model = redraw(nn.Sequential(nn.Linear(7, 7, bias=False), nn.ReLU()))
    x = normal(4, 7)
    found = fields(model, x, readout="mean", normalized=True)
    Q0 = x @ x.T / 7
    a = (model[0](x) > 0).double()
    np.testing.assert_allclose(found.J.values[..., 0, 0], (Q0 * (a @ a.T / 7)).numpy(), atol=1e-14)
    with pytest.raises(InputError, match=r"3 layers.*\.kernel"):
        _ = CASES["note"].fields().J


def test_signs_of_the_readout_do_not_matter_to_a_single_layer() -> None:
    model, x = redraw(nn.Sequential(nn.Linear(5, 6), nn.ReLU())), normal(4, 5)
    signs = torch.tensor([1.0, -1.0, 1.0, 1.0, -1.0, -1.0], dtype=torch.float64) / 6
    np.testing.assert_allclose(fields(model, x, readout=signs).J, fields(model, x, readout="mean").J)


def test_outputs_are_the_models() -> None:
    for case in CASES.values():
        expected = read(case, case.model(), case.x()).detach().numpy()
        np.testing.assert_allclose(case.fields().outputs.values, expected, atol=1e-13)


def test_networks_that_the_theory_speaks_of() -> None:
    network = build(MLP("gelu", depth=3, width=[10, 8], n_in=3, n_out=2), seed=3)
    x = normal(4, 3)
    found = fields(network, x)
    jacobian = torch.func.jacrev(lambda parameters: torch.func.functional_call(network, parameters, x))(
        dict(network.named_parameters())
    )
    flat = torch.cat([part.reshape(4, 2, -1) for part in jacobian.values()], dim=2)
    expected = torch.einsum("acp,bdp->abcd", flat, flat).detach().numpy()
    np.testing.assert_allclose(found.kernel.values, expected, atol=1e-10)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    widths=st.lists(st.integers(1, 7), min_size=2, max_size=5),
    activation=st.sampled_from([nn.ReLU, nn.Tanh, nn.GELU, nn.LeakyReLU]),
    bias=st.booleans(),
)
def test_kernels_are_symmetric_positive_and_follow_the_inputs(
    seed: int, widths: list[int], activation: type[nn.Module], bias: bool
) -> None:
    parts = [
        part
        for fan_in, width in pairwise(widths)
        for part in (nn.Linear(fan_in, width, bias=bias), activation())
    ]
    model = redraw(nn.Sequential(*parts), seed=seed)
    x = normal(4, widths[0], seed=seed)
    found = fields(model, x)
    size = max(1.0, float(np.abs(found.kernel).max()))
    for kernel in (found.kernel, *found.kernel_by_layer):
        matrix = kernel.transpose("input_1", "output_1", "input_2", "output_2").values
        matrix = matrix.reshape(4 * widths[-1], -1)
        np.testing.assert_allclose(matrix, matrix.T, atol=1e-12 * size)
        assert np.linalg.eigvalsh(matrix).min() > -1e-10 * size
    order = [2, 0, 3, 1]
    shuffled = fields(model, x[order])
    np.testing.assert_allclose(
        shuffled.kernel_by_layer.values,
        found.kernel_by_layer.values[:, order][:, :, order],
        atol=1e-12 * size,
    )


def test_hidden_units_may_be_renumbered() -> None:
    case = CASES["tanh"]
    model = case.model()
    before = case.fields().kernel_by_layer
    order = torch.randperm(9, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        model[0].weight.copy_(model[0].weight[order])
        model[0].bias.copy_(model[0].bias[order])
        model[2].weight.copy_(model[2].weight[:, order])
    np.testing.assert_allclose(fields(model, case.x()).kernel_by_layer, before, atol=1e-12)


def test_scaling_the_inputs_of_a_homogeneous_network() -> None:
    model, x = note_network(3), normal(4, 12)
    one, three = (fields(model, scale * x, readout="mean").kernel_by_layer for scale in (1, 3))
    np.testing.assert_allclose(three, 9 * one, rtol=1e-12)


def test_single_precision_stays_single() -> None:
    case = CASES["tanh"]
    found = fields(case.model().float(), case.x().numpy())
    assert found.kernel.dtype == np.float32
    np.testing.assert_allclose(found.kernel, case.fields().kernel, rtol=1e-4, atol=1e-4)


def test_the_text_names_layers_and_their_shares() -> None:
    found = CASES["partly frozen"].fields()
    text = repr(found)
    traces = np.einsum("laacc->l", found.kernel_by_layer.values)
    for share in traces / traces.sum():
        assert f"{share:.6g}" in text
    assert "4 -> 6 -> 5 -> 3" in text
    assert "needs no weights (47)" in repr(CASES["one layer"].fields())
    assert "raw: K is the sum over layers of Q * S" in text
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU())
    assert "K is 0.04 times the sum over layers of Q * S" in repr(
        fields(net, torch.ones(2, 4), readout="mean")
    )
    assert "closes on v_1 and b_1" in repr(CASES["leaky"].fields())
    assert "forward transport" in repr(CASES["gelu, fixed matrix"].fields())


def test_bad_requests() -> None:
    found = CASES["note"].fields()
    with pytest.raises(InputError, match="layer is 4"):
        found.overlap(4)
    with pytest.raises(InputError, match="layer is 0"):
        found.correlator(0)
    with pytest.raises(InputError, match="did you mean 'mean'"):
        fields(note_network(1), normal(3, 12), readout="means")
    with pytest.raises(InputError, match=r"\(1, 5\).*\(12,\)"):
        fields(note_network(1), normal(3, 12), readout=normal(5))


def test_kernels_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    found = CASES["tanh"].fields(40)
    monkeypatch.setenv("FORETRAIN_MEMORY", "10kB")
    with pytest.raises(NotEnoughMemoryError, match="inputs or outputs"):
        _ = found.kernel
