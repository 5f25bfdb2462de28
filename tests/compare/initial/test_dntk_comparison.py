from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import foretrain as ft
from foretrain.compare.comparison import Comparison
from foretrain.compare.ensembles import Ensemble, TorchLayer
from foretrain.compare.initial import compare_initial
from foretrain.compare.initial.comparison import entries_of
from foretrain.compare.initial.differentials import (
    PROBES,
    bytes_per_network,
    differential_batch_values,
    tensors_of_networks,
)
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.tensors import DIFFERENTIALS

X = np.array([[1.0, 0.5, -0.7], [0.2, -1.1, 0.9]])
HYPER = {
    "C_b": [0.1, 0.05, 0.2, 0.1],
    "C_W": [1.0, 1.5, 1.3, 1.2],
    "lambda_b": [0.3, 0.2, 0.5, 0.1],
    "lambda_W": [1.0, 0.7, 1.2, 0.5],
}


def network(name: str, depth: int, width: list[int], **others: object) -> ft.MLP:
    given = {key: values[:depth] for key, values in HYPER.items()} | others
    return ft.MLP(name, depth=depth, width=width[: depth - 1], **given)


def module_of(mlp: ft.MLP, states: list[TorchLayer], rows: Tensor) -> nn.Sequential:
    """The hidden layers of the first network of a walk, with these rows for outputs."""
    parts: list[nn.Module] = []
    for state, fan_in in zip(states[: len(states) - 1], mlp.widths, strict=False):
        assert state.parameters is not None
        weight = state.parameters[0][0] * (state.layer.C_W / fan_in) ** 0.5
        layer = nn.Linear(*weight.T.shape).double()
        layer.load_state_dict({"weight": weight, "bias": torch.zeros(len(weight))})
        parts += [layer, nn.Tanh()]
    last = nn.Linear(rows.shape[1], len(rows)).double()
    last.load_state_dict({"weight": rows, "bias": torch.zeros(len(rows))})
    return nn.Sequential(*parts, last)


def rates_of(mlp: ft.MLP) -> dict[str, float]:
    found = {}
    for layer, fan_in in zip(mlp.layers, mlp.widths, strict=False):
        place = 2 * (layer.number - 1)
        found |= {f"{place}.weight": layer.lambda_W / fan_in, f"{place}.bias": layer.lambda_b}
    return found


def test_one_network_by_the_definitions() -> None:
    """P to U of the last layer from ``dntk`` and ``ddntk`` of a module, index by index."""
    mlp = network("tanh", 3, [4, 5], C_b=0.0).with_inputs(X)
    ensemble = Ensemble(mlp, X, 1, 2, "weights", 4)
    (states,) = (list(walk) for walk in ensemble.walks(0))
    source = ensemble.probe_source(0)
    *_, found = tensors_of_networks(mlp, X, iter(states), source, frozenset(DIFFERENTIALS))
    again = ensemble.probe_source(0)
    for fan_in in mlp.hidden_widths:
        normals = torch.randn((1, PROBES, fan_in), dtype=torch.float64, generator=again)
    n, C_W = mlp.hidden_widths[-1], mlp.layers[-1].C_W
    signal = torch.tanh(states[2].previous)[0].T
    rows = torch.cat([normals[0] * (C_W / n) ** 0.5, C_W * signal])
    module, inputs = module_of(mlp, states, rows), torch.from_numpy(X)
    first = np.asarray(ft.dntk(module, inputs, rates=rates_of(mlp)))
    second = ft.ddntk(module, inputs, outputs=range(PROBES), rates=rates_of(mlp))
    dd_I, dd_II = np.asarray(second.dd_I), np.asarray(second.dd_II)
    pairs = [(i, j) for i in range(PROBES) for j in range(PROBES) if i != j]
    for a, b, c, d in np.ndindex(2, 2, 2, 2):
        row = PROBES + d  # stands for the neuron whose z is at input d
        expected = {
            "P": np.mean([first[a, b, c, row, j, j] for j in range(PROBES)]),
            "Q": np.mean([first[a, b, c, i, i, row] for i in range(PROBES)]),
            "R": n * np.mean([dd_I[a, b, c, d, i, i, j, j] for i, j in pairs]),
            "S": n * np.mean([dd_II[a, b, c, d, i, i, j, j] for i, j in pairs]),
            "T": n * np.mean([dd_II[a, d, b, c, i, j, i, j] for i, j in pairs]),  # stored as 1342
            "U": n * np.mean([dd_II[a, c, d, b, i, j, j, i] for i, j in pairs]),  # stored as 1423
        }
        for name, value in expected.items():
            assert float(found[name][a, b, c, d]) == pytest.approx(value, rel=1e-9, abs=1e-12), name


def test_only_what_is_wanted_and_chunks_make_no_difference() -> None:
    mlp = network("tanh", 3, [4, 5]).with_inputs(X)
    entries = [*entries_of("Q", mlp, 2), *entries_of("T", mlp, 2)]
    whole = differential_batch_values(Ensemble(mlp, X, 6, 3, "weights", 1), entries)
    one = differential_batch_values(Ensemble(mlp, X, 6, 3, "weights", 1), entries[:1])
    np.testing.assert_array_equal(one.values, whole.values[:, :1])
    assert bytes_per_network(mlp, 2) > 8 * (PROBES * 2) ** 4


def test_second_layer_is_exact_for_three_neurons() -> None:
    """(11.31), (11.32) and their like hold at any width of the first layer."""
    mlp = network("tanh", 2, [3]).with_inputs(X)
    entries = [entry for name in DIFFERENTIALS for entry in entries_of(name, mlp, 2)]
    found = differential_batch_values(Ensemble(mlp, X, 250, 40, "weights", 2), entries)
    flow = ft.flow(mlp, X, list(DIFFERENTIALS))
    theory = np.array([flow[e.observable].values[(1, *e.inputs)] for e in entries])
    z = (found.estimate - theory) / found.standard_error
    assert np.sqrt(np.mean(z**2)) < 1.6  # the entries are far from independent
    assert np.abs(z).max() < 4.2
    assert np.median(found.standard_error / np.abs(theory)) < 0.03


@pytest.mark.parametrize("inputs", [X, np.vstack([X, [1.3, 0.4, 0.6]])])
def test_entries_name_each_component_once(inputs: np.ndarray) -> None:
    mlp = network("tanh", 3, [20, 30])
    flow = ft.flow(mlp, inputs, list(DIFFERENTIALS))
    for name in DIFFERENTIALS:
        last = flow[name].values[2].round(8)
        chosen = [last[e.inputs] for e in entries_of(name, mlp, len(inputs)) if e.layer == 3]
        assert sorted(chosen) == np.unique(last).tolist(), name
    assert [len(entries_of(name, mlp, 2)) for name in DIFFERENTIALS] == [24, 32, 24, 20, 20, 20]


@pytest.fixture(scope="module")
def quick() -> Comparison:
    mlp = network("tanh", 3, [36, 24])
    return compare_initial(mlp, X, ["U", "P", "K", "Theta"], 500, scales=(0.5, 1, 2))


@pytest.mark.slow
def test_mechanics(quick: Comparison) -> None:
    assert [e.observable for e in quick.entries] == 6 * ["K"] + 6 * ["Theta"] + 24 * ["P"] + 20 * ["U"]
    flow = ft.flow(quick.mlp, X, ["P", "U"])
    for entry, value in zip(quick.entries, quick.theory, strict=True):
        if entry.observable in "PU":
            assert value == pytest.approx(flow[entry.observable].values[(entry.layer - 1, *entry.inputs)])
    assert quick.ladder.method == "weights"
    assert np.isfinite(quick.z).all()
    assert "U_0101" in repr(quick)
    assert "P" in quick.to_dataset()["observable"].values


@pytest.mark.slow
def test_one_seed_gives_one_answer() -> None:
    one, again, other = (
        compare_initial(network("sin", 2, [12]), X[:1], ["P", "T"], 500, seed=s) for s in (1, 1, 2)
    )
    np.testing.assert_array_equal(one.measured, again.measured)
    assert (one.measured != other.measured).all()


def test_units_have_the_dimension_of_the_tensor() -> None:
    """Inputs and rates in other units: R of a linear network is zero exactly, S scales like Θ³/K."""
    mlp = ft.MLP("linear", depth=2, width=16, lambda_W=1.0)
    found = compare_initial(mlp, X[:1], ["R", "S"], 500)
    scaled = compare_initial(mlp.replace(lambda_W=100.0, lambda_b=100.0), X[:1], ["R", "S"], 500)
    np.testing.assert_allclose(scaled.unit, 1e6 * found.unit, rtol=1e-12)
    assert not found.fluctuates[0]
    assert found.exact_agrees


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: compare_initial(network("tanh", 3, [36, 24]), X, ["R"], 500, method="conditional"),
            NotSupportedError,
            "method='weights'",
        ),
        (
            lambda: compare_initial(network("tanh", 3, [36, 24]), X, ["P"], 500, estimator="neurons"),
            NotSupportedError,
            "estimator='metric'",
        ),
        (
            lambda: compare_initial(ft.MLP("tanh", depth=3, width=8, gamma=0.5), X, ["S"], 500),
            NotSupportedError,
            "S .*gamma",
        ),
        (
            lambda: compare_initial(network("tanh", 3, [36, 24]), np.eye(5, 3) + 1, ["T"], 500),
            InputError,
            "full T of 5 inputs",
        ),
        (lambda: compare_initial(network("relu", 3, [36, 24]), X, ["R"], 500), NotSupportedError, "relu"),
    ],
)
def test_what_is_not_measured_is_said(
    call: Callable[[], Comparison], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        call()


def test_walks_without_weights_are_refused() -> None:
    mlp = network("tanh", 3, [6, 4]).with_inputs(X)
    ensemble = Ensemble(mlp, X, 2, 2, "conditional", 0)
    with pytest.raises(NotSupportedError, match="draw them"):
        list(
            tensors_of_networks(
                mlp, X, next(ensemble.walks(0)), ensemble.probe_source(0), frozenset(DIFFERENTIALS)
            )
        )


def against(found: Comparison, name: str, tensor: np.ndarray) -> Comparison:
    """The same measurement, with another tensor for one of the theory's."""
    theory = found.theory.copy()
    for column, entry in enumerate(found.entries):
        if entry.observable == name:
            theory[column] = tensor[entry.layer - 1][entry.inputs]
    return replace(found, theory=theory)


@pytest.mark.statistical
def test_theory_agrees_and_a_wrong_one_does_not() -> None:
    mlp = network("tanh", 3, [36, 24])
    found = compare_initial(mlp, X, DIFFERENTIALS, 6000, scales=(1, 2, 4), seed=1)
    assert found.agrees, found
    flow = ft.flow(mlp, X, list(DIFFERENTIALS))
    for name in DIFFERENTIALS:
        assert not against(found, name, 1.15 * flow[name].values).agrees, name
        assert not against(found, name, flow[name].values.swapaxes(2, 4)).agrees, name


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "depth"), [("tanh", 4), ("sin", 2), ("sin", 4)])
def test_smooth_networks_of_some_depths_agree(name: str, depth: int) -> None:
    found = compare_initial(
        network(name, depth, [24, 36, 24]), X, DIFFERENTIALS, 5000, scales=(1, 2, 4), seed=2
    )
    assert found.agrees, found


@pytest.mark.statistical
def test_three_inputs_settle_the_order_of_indices() -> None:
    mlp, inputs = network("tanh", 2, [24]), np.vstack([X, [1.3, 0.4, 0.6]])
    found = compare_initial(mlp, inputs, DIFFERENTIALS, 8000, scales=(0.5, 1, 2), seed=1)
    assert found.agrees, found
    flow = ft.flow(mlp, inputs, list(DIFFERENTIALS))
    for name in DIFFERENTIALS:
        assert not against(found, name, flow[name].values.swapaxes(1, 2)).agrees, name


@pytest.mark.statistical
def test_kinks_are_compared_as_automatic_derivatives_see_them() -> None:
    """P vanishes almost everywhere, and not in the limit of smooth activations."""
    mlp = network("relu", 3, [36, 24], C_W=[1.5, 2.0, 1.8])
    found = compare_initial(mlp, X, ["P", "Q"], 5000, scales=(1, 2, 4), seed=1)
    assert found.agrees, found
    for name in "PQ":
        assert not against(found, name, ft.flow(mlp, X, [name])[name].values).agrees, name
    assert "without a second derivative at the kinks of relu" in repr(found)
