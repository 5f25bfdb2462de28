from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.compare.build import build, parameter_groups
from foretrain.compare.comparison import Comparison
from foretrain.compare.ensembles import Ensemble, TorchLayer
from foretrain.compare.initial import compare_initial
from foretrain.compare.initial.comparison import entries_of
from foretrain.compare.initial.tangents import (
    TangentState,
    bytes_per_network,
    collect_tangents,
    tangent_batch_values,
    tangent_readers,
    tangent_states,
)
from foretrain.compare.judging.ladder import Entry, default_scales
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.recursions.pairs import Pairs
from foretrain.theory.tensors import TANGENT

X = np.array([[1.0, 0.5, -0.7], [0.2, -1.1, 0.9]])
RATES = {"C_b": [0.1, 0.05, 0.2, 0.1], "lambda_b": [0.3, 0.2, 0.5, 0.1], "lambda_W": [1.0, 0.7, 1.2, 0.5]}
C_W = {"tanh": (1.0, 1.5, 1.3, 1.2), "relu": (1.5, 2.0, 1.8, 2.0), "gelu": (1.4, 1.8, 2.0, 1.7)}


def network(name: str, depth: int, width: list[int], **others: int) -> ft.MLP:
    rates = {key: values[:depth] for key, values in RATES.items()}
    return ft.MLP(name, depth=depth, width=width[: depth - 1], C_W=C_W[name][:depth], **rates, **others)


SMALL = network("tanh", 4, [6, 4, 8], n_in=3, n_out=3)


def theory(mlp: ft.MLP, inputs: np.ndarray = X) -> tuple[np.ndarray, np.ndarray]:
    found = ft.flow(mlp, inputs, ["K", "Theta"])
    return found["K"].values, found["Theta"].values


def layers_of(mlp: ft.MLP, draws: int, seed: int = 0) -> tuple[list[TorchLayer], list[TangentState]]:
    """The layers of the same networks, with and without their NTK."""
    ensemble = Ensemble(mlp, X, draws, 2, "weights", seed)
    (states,) = (list(walk) for walk in ensemble.walks(0))
    return states, list(tangent_states(mlp, X, iter(states)))


def jacobian_ntk(mlp: ft.MLP, states: list[TorchLayer], draw: int) -> np.ndarray:
    """Σ λ dz_i;a/dθ dz_k;b/dθ (7.17), by automatic differentiation: (n_L, inputs, n_L, inputs)."""
    module = build(mlp)
    for linear, state in zip(module.layers, states):
        weights, biases, scale = state.parameters
        linear.load_state_dict({"weight": scale * weights[draw], "bias": biases[draw]})
    outputs = module(torch.from_numpy(X)).T.flatten()
    kernel = torch.zeros(len(outputs), len(outputs), dtype=torch.float64)
    for group in parameter_groups(module, mlp, eta=1.0):
        (parameter,) = group["params"]
        rows = [torch.autograd.grad(z, parameter, retain_graph=True)[0].flatten() for z in outputs]
        jacobian = torch.stack(rows)
        kernel += group["lr"] * jacobian @ jacobian.T
    return kernel.view(mlp.n_out, len(X), mlp.n_out, len(X)).numpy()


@pytest.mark.parametrize("name", ["tanh", "relu", "gelu"])
def test_the_forward_equation_is_the_ntk_of_the_module(name: str) -> None:
    """The NTK of the last hidden layer is that of the networks that end there."""
    mlp = network(name, 4, [6, 4, 8], n_in=3, n_out=3)
    states, tangents = layers_of(mlp, 5, seed=3)
    kernel = tangents[-2].kernel
    assert kernel is not None
    for draw in range(5):
        expected = jacobian_ntk(network(name, 3, [6, 4], n_in=3, n_out=8), states, draw)
        for number, (a, b) in enumerate([(0, 0), (0, 1), (1, 1)]):
            np.testing.assert_allclose(
                kernel[draw, :, number].numpy(), expected[:, a, :, b], rtol=1e-10, atol=1e-10
            )


def full_legs(state: TorchLayer, before: TangentState) -> tuple[np.ndarray, np.ndarray]:
    """σ_ja (draws, n, inputs) and R_jk;ab (draws, n, n, inputs, inputs), written out for ordered pairs."""
    assert state.previous is not None
    assert before.kernel is not None
    z, pairs = state.previous.numpy(), Pairs(len(X))
    kernel = before.kernel.numpy()
    R = np.empty((*kernel.shape[:2], kernel.shape[1], len(X), len(X)))
    for a, b in itertools.product(range(len(X)), repeat=2):
        one = kernel[:, :, pairs.number[a, b]]
        slopes = 1 / np.cosh(z[:, :, None, a]) ** 2 / np.cosh(z[:, None, :, b]) ** 2
        R[..., a, b] = slopes * (one if a <= b else one.transpose(0, 2, 1))
    return np.tanh(z), R


def test_statistics_by_brute_force_over_ordered_indices() -> None:
    """Layer 4 with one network per batch: plain means and n times unbiased covariances, all index orders."""
    layer, n = SMALL.layers[3], 8
    ensemble = Ensemble(SMALL, X, 1, 40, "weights", 2)
    K, Theta = theory(SMALL)
    readers = tangent_readers(SMALL, K, Theta)
    statistics = collect_tangents(ensemble, K, Theta)
    H, G, F, B = [], [], [], []
    for number in range(ensemble.batches):
        (states,) = (list(walk) for walk in ensemble.walks(number))
        signal, R = full_legs(states[3], list(tangent_states(SMALL, X, iter(states)))[1])
        trace = np.einsum("djjab->ab", R)
        second = np.einsum("dja,djb->ab", signal, signal) / n
        H.append(layer.lambda_b + layer.lambda_W * second + layer.C_W / n * trace)
        G.append(layer.C_b + layer.C_W * second)
        F.append(layer.C_W**2 / n * np.einsum("dja,djkce,dkb->acbe", signal, R, signal))
        B.append(layer.C_W**2 / n * np.einsum("djkab,djkce->acbe", R, R))
    means = replace(
        statistics,
        **{name: getattr(statistics, name).mean(axis=0)[None] for name in vars(statistics)},
    )
    for name, expected in (("F", np.mean(F, axis=0)), ("B", np.mean(B, axis=0))):
        np.testing.assert_allclose(readers[name](means)[0, 2], expected, rtol=1e-9)
    entries = [Entry(name, 4, index) for name in "DA" for index in itertools.product((0, 1), repeat=4)]
    found = tangent_batch_values(SMALL, K, Theta, statistics, entries).estimate
    for entry, value in zip(entries, found, strict=True):
        first = np.array(G if entry.observable == "D" else H)[:, entry.inputs[0], entry.inputs[1]]
        covariance = np.cov(first, np.array(H)[:, entry.inputs[2], entry.inputs[3]])[0, 1]
        assert value == pytest.approx(n * covariance, rel=1e-8, abs=1e-12)


def test_chunks_do_not_change_what_is_collected() -> None:
    K, Theta = theory(SMALL)
    small = Ensemble(SMALL, X, 30, 2, "weights", 4, reader_bytes=2**22)
    assert small.chunk_size == 7
    found = collect_tangents(small, K, Theta)
    kernels = [[state.mean for state in tangent_states(SMALL, X, walk)] for walk in small.walks(1)]
    assert len(kernels) == 5
    last = torch.cat([layers[-1] for layers in kernels]).mean(dim=0).numpy()
    np.testing.assert_allclose(found.mean[1, -1] + Theta[-1][np.triu_indices(2)], last, rtol=1e-12)
    assert bytes_per_network(SMALL, 2) == 8 * 5 * 3 * 64


@pytest.mark.parametrize("inputs", [X, np.vstack([X, [1.3, 0.4, 0.6]])])
def test_entries_name_each_component_once(inputs: np.ndarray) -> None:
    """Components of the theory that are equal by symmetry are found once, others all."""
    flow = ft.flow(SMALL, inputs, list(TANGENT))
    for name in TANGENT:
        entries = [entry.inputs for entry in entries_of(name, SMALL, len(inputs)) if entry.layer == 4]
        tensor = flow[name].values[3]
        values = np.array([tensor[index] for index in entries])
        assert len(np.unique(values.round(9))) == len(entries)
        assert np.abs(tensor.ravel()[:, None] - values).min(axis=1).max() < 1e-7
    counts = [len(entries_of(name, SMALL, 2)) for name in TANGENT]
    assert counts == [3 * 3, 2 * 3, 3 * 9, 3 * 10, 3 * 6, 3 * 7]
    assert Entry("A", 3, (0, 0, 0, 1)).label == "A_(00)(01)"
    assert Entry("F", 3, (0, 1, 0, 1)).label == "F_0101"


def test_the_rearranged_mean_is_the_plain_one_with_less_noise() -> None:
    mlp = network("tanh", 4, [60, 40, 80], n_in=3)
    K, Theta = theory(mlp)
    statistics = collect_tangents(Ensemble(mlp, X, 10, 60, "weights", 5), K, Theta)
    entries = entries_of("H1", mlp, 2)
    sharp = tangent_batch_values(mlp, K, Theta, statistics, entries)
    places = [(e.layer, Pairs(2).number[e.inputs]) for e in entries]
    plain = np.stack(
        [mlp.widths[layer - 1] * statistics.mean[:, layer - 2, pair] for layer, pair in places], axis=1
    )
    noise = plain.std(axis=0, ddof=1) / np.sqrt(len(plain))
    assert (sharp.standard_error < 0.95 * noise).all()
    assert (sharp.standard_error < 0.7 * noise).sum() >= 3
    assert (np.abs(sharp.estimate - plain.mean(axis=0)) < 4 * noise).all()


@pytest.fixture(scope="module")
def quick() -> Comparison:
    return compare_initial(
        network("tanh", 3, [36, 24]), X, ["H1", "Theta", "K", "F"], 500, scales=(0.5, 1, 2)
    )


@pytest.mark.slow
def test_mechanics(quick: Comparison) -> None:
    assert [e.observable for e in quick.entries] == 6 * ["K"] + 6 * ["Theta"] + 3 * ["H1"] + 20 * ["F"]
    flow = ft.flow(quick.mlp, X, ["K", "Theta", "H1", "F"])
    for entry, value in zip(quick.entries, quick.theory, strict=True):
        assert value == flow[entry.observable].values[(entry.layer - 1, *entry.inputs)]
    assert quick.ladder.method == "weights"
    assert np.isfinite(quick.z).all()
    (column,) = [i for i, e in enumerate(quick.entries) if e == Entry("Theta", 3, (0, 1))]
    expected = (flow["Theta"] + flow["H1"] / 24).values[2, 0, 1]
    assert quick.corrected[1, column] == pytest.approx(expected, rel=1e-12)
    assert "F_0101" in repr(quick)


def test_all_entries_come_from_the_same_networks(quick: Comparison) -> None:
    """The metric and the mean NTK of one network are correlated."""
    (k,) = [i for i, e in enumerate(quick.entries) if e == Entry("K", 2, (0, 0))]
    (theta,) = [i for i, e in enumerate(quick.entries) if e == Entry("Theta", 2, (0, 0))]
    values = quick.batches[1].values
    assert abs(np.corrcoef(values[:, k], values[:, theta])[0, 1]) > 0.3


def test_the_picture_has_a_panel_for_each_observable(quick: Comparison) -> None:
    panels = quick.figure().panels
    assert len(panels) == 4 + 2
    assert "0001" in [getattr(mark, "label", "") for mark in panels[3].marks]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_equal_inputs_have_equal_entries(name: str) -> None:
    """The kernel is singular; nothing is inverted on the way."""
    found = compare_initial(network(name, 3, [36, 24]), X[[0, 0]], TANGENT, 500)
    assert np.isfinite(found.limit).all()
    for observable in TANGENT:
        last = [
            value
            for e, value in zip(found.entries, found.limit, strict=True)
            if e.observable == observable and e.layer == 3
        ]
        np.testing.assert_allclose(last, last[0], rtol=1e-7)


def test_the_default_leaves_the_ntk_out() -> None:
    found = compare_initial(ft.MLP("tanh", depth=3, width=32), X, draws=500)
    assert {entry.observable for entry in found.entries} == {"K", "V", "G1"}


@pytest.mark.slow
def test_narrower_networks_by_default() -> None:
    mlp = ft.MLP("tanh", depth=4, width=32)
    assert default_scales(mlp) == (1.0, 2.0, 4.0)
    assert compare_initial(mlp.replace(width=32), X[:1], ["Theta"], 500).ladder.scales == (0.5, 1.0, 2.0)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: compare_initial(SMALL, X, ["D"], 500, method="conditional"),
            NotSupportedError,
            "method='weights'",
        ),
        (
            lambda: compare_initial(SMALL, X, ["A"], 500, estimator="neurons"),
            NotSupportedError,
            "estimator='metric'",
        ),
        (
            lambda: compare_initial(ft.MLP("tanh", depth=3, width=8, gamma=0.5), X, ["Theta"], 500),
            NotSupportedError,
            "Theta .*gamma",
        ),
        (lambda: compare_initial(SMALL, np.eye(5, 3) + 1, ["B"], 500), InputError, "full B of 5 inputs"),
        (
            lambda: compare_initial(ft.MLP("tanh", 2, 24), X, ["H1", "A"], 500),
            InputError,
            "H1 .*depth 2",
        ),
    ],
)
def test_what_is_not_measured_is_said(
    call: Callable[[], Comparison], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_walks_without_weights_are_refused() -> None:
    walk = next(Ensemble(SMALL, X, 2, 2, "conditional", 0).walks(0))
    with pytest.raises(NotSupportedError, match="weights are drawn"):
        list(tangent_states(SMALL, X, walk))


def against(found: Comparison, changed: dict[str, np.ndarray]) -> Comparison:
    """The same measurement against other tensors of the theory."""
    values = [
        changed[e.observable][(e.layer - 1, *e.inputs)] if e.observable in changed else value
        for e, value in zip(found.entries, found.theory, strict=True)
    ]
    return replace(found, theory=np.array(values))


@pytest.mark.statistical
@pytest.mark.parametrize("seed", [1, 2])
def test_theory_agrees_and_a_wrong_one_does_not(seed: int) -> None:
    mlp = network("tanh", 3, [36, 24])
    found = compare_initial(mlp, X, TANGENT, 20_000, scales=(0.5, 1, 2), seed=seed)
    assert found.agrees, found
    flow = {name: tensor.values for name, tensor in ft.flow(mlp, X, list(TANGENT)).to_dataset().items()}
    wrong = {
        "Theta": flow["Theta"] * 1.01,
        "H1": flow["H1"] + 0.2,
        "D": flow["D"] * 1.2,
        "F": flow["F"].swapaxes(2, 3),
        "A": flow["A"] * 1.2,
        "B": flow["B"] * 1.2,
    }
    for name, tensor in wrong.items():
        assert not against(found, {name: tensor}).agrees, name


@pytest.mark.statistical
def test_deep_linear_networks_of_width_eight() -> None:
    """Exact at n = 8 by the reference: kernel 0.7, λ_b = 0.4, λ_W = 1.3, layer 4."""
    exact = {"D": 9.98309375, "F": 6.700203125, "A": 31.612415625, "B": 26.7872078125}
    mlp = ft.MLP("linear", depth=4, width=8, n_in=1, lambda_b=0.4, lambda_W=1.3)
    inputs = np.array([[0.7**0.5]])
    K, Theta = theory(mlp, inputs)
    statistics = collect_tangents(Ensemble(mlp, inputs, 100, 1000, "weights", 1), K, Theta)
    entries = [Entry(name, 4, (0, 0, 0, 0)) for name in exact] + [Entry("H1", 4, (0, 0))]
    found = tangent_batch_values(mlp, K, Theta, statistics, entries)
    error, values = found.standard_error[:4], np.array([*exact.values()])
    assert (np.abs(found.estimate[:4] - values) < 3.5 * error).all()
    assert (error < 0.03 * values).all()
    assert abs(found.estimate[4]) < 1e-10  # the mean is exact, and linear in the fluctuations


@pytest.mark.statistical
def test_three_inputs_settle_the_order_of_indices() -> None:
    """F_1324 and B_1324 differ from F_1423 and B_1423 (reference section 12: 6.9 and 3.3 standard errors)."""
    mlp, inputs = network("tanh", 3, [36, 24]), np.vstack([X, [1.3, 0.4, 0.6]])
    found = compare_initial(mlp, inputs, ["F", "B"], 30_000, scales=(0.5, 1, 2), seed=1)
    assert found.agrees, found
    flow = ft.flow(mlp, inputs, ["F", "B"])
    for name in "FB":
        assert not against(found, {name: flow[name].values.swapaxes(2, 4)}).agrees, name


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "depth"), [("relu", 3), ("gelu", 4)])
def test_kinks_and_deeper_networks_agree(name: str, depth: int) -> None:
    found = compare_initial(network(name, depth, [36, 24, 48]), X, TANGENT, 8000, scales=(0.5, 1, 2), seed=3)
    assert found.agrees, found


@pytest.mark.slow
def test_entries_that_do_not_fluctuate_are_called_exact_only_where_they_are() -> None:
    """Theta of a zero input of tanh is the number of layers, in theory and in every network."""
    found = compare_initial(
        ft.MLP("tanh", depth=3, width=16), [[0.0, 0.0], [1.0, 2.0]], ["Theta"], draws=1000
    )
    assert found.exact_agrees
    assert re.search(r"Theta_00 +3 +3 +exact", repr(found))
    wrong = against(found, {"Theta": np.full((3, 2, 2), 2.5)})
    assert not wrong.agrees
    assert "differs" in repr(wrong)
    assert "exact" not in repr(wrong)


def test_inputs_at_a_kink_are_refused() -> None:
    """Theory takes the limit K -> 0+ of the slope, torch the slope 0 at the kink of relu."""
    net = ft.MLP("relu", depth=3, width=16, C_W=2.0)
    with pytest.raises(InputError, match=r"input 0 .*relu.*C_b > 0"):
        compare_initial(net, [[0.0, 0.0], [1.0, 2.0]], ["K", "Theta"], draws=500)
    assert compare_initial(net.replace(C_b=0.1), [[0.0, 0.0]], ["Theta"], draws=500).agrees
