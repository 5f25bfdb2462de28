"""Observables of sweeps beside the functions they stand for, exact cases and brute force."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from swept import write_spec

import foretrain as ft
from foretrain.experiments import registry
from foretrain.experiments.sweep import observables, sweep
from foretrain.experiments.sweep.targets import declared
from foretrain.gaussian import gram
from foretrain.support.errors import InputError


def answer(name: str, **parameters: Any) -> Any:
    return observables.get(name).function(**parameters)


def test_every_observable_declares_its_parameters() -> None:
    for name in observables.names():
        for parameter in observables.get(name).parameters:
            assert parameter.kind is not None, (name, parameter)
            assert parameter.help, (name, parameter)


def test_flow_is_that_of_the_theory() -> None:
    found = answer("flow", activation="tanh", depth=4, width=50, tensors="K, V,Theta", layer=3, inputs=2)
    net = ft.MLP.critical("tanh", depth=4, width=50)
    flow = ft.flow(net, observables._inputs(2, 1.0), ["K", "V", "Theta"])
    for tensor in ("K", "V", "Theta"):
        np.testing.assert_array_equal(found[tensor], flow[tensor].sel(layer=3))


def test_flow_of_one_input_is_exact_for_linear_networks() -> None:
    """K = size and V = 2 (L - 1) K^2 at C_W = 1, the leading order of (3.28)."""
    found = answer("flow", activation="linear", depth=6, C_b=0.0, C_W=1.0, size=2.5)
    assert found["K"].dims == ()
    assert float(found["K"]) == pytest.approx(2.5)
    assert float(found["V"]) == pytest.approx(2 * 5 * 2.5**2)


def test_one_variance_may_be_left_to_criticality() -> None:
    half = answer("flow", activation="tanh", depth=3, C_b=0.1, tensors="K")
    both = answer("flow", activation="tanh", depth=3, C_b=0.1, C_W=1.0, tensors="K")
    assert float(half["K"]) == pytest.approx(float(both["K"]), rel=1e-12)


def test_susceptibility_and_criticality() -> None:
    found = answer("susceptibility", activation="relu", C_W=2.0)
    assert [float(found[name]) for name in ("chi_parallel", "chi_perpendicular")] == [1.0, 1.0]
    point = answer("criticality", activation="tanh")
    assert (point["critical_C_b"], point["critical_C_W"], point["universality_class"]) == (0.0, 1.0, "K*=0")
    nothing = answer("criticality", activation="sigmoid")
    assert nothing["universality_class"] == "none"
    assert math.isnan(nothing["critical_C_W"])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("C_b", "C_W", "gamma"), [(0.1, 3.0, 0.0), (0.3, 1.5, 0.0), (0.05, 2.5, 0.4)])
def test_the_end_of_the_correlation_is_where_layers_lead(C_b: float, C_W: float, gamma: float) -> None:
    """Brute force: the kernel of two inputs, layer by layer."""
    found = answer("phase", activation="tanh", C_b=C_b, C_W=C_W, gamma=gamma)
    kernel = np.array([[1.0, 0.3], [0.3, 1.0]])
    for _ in range(300):
        kernel = C_b + C_W * np.asarray(gram("tanh", kernel)) + gamma**2 * kernel
    assert found["K_end"] == pytest.approx(kernel[0, 0], rel=1e-7)
    assert found["correlation"] == pytest.approx(kernel[0, 1] / kernel[0, 0], abs=1e-6)


def test_phases_without_a_correlation() -> None:
    assert answer("phase", activation="tanh", C_b=0.0, C_W=2.0)["correlation"] == 0.0  # odd, no biases
    assert math.isnan(
        answer("phase", activation="tanh", C_b=0.0, C_W=0.5)["correlation"]
    )  # the kernel vanishes
    growing = answer("phase", activation="relu", C_b=0.0, C_W=3.0)
    assert growing["K_end"] == math.inf
    assert list(growing) == list(answer("phase", activation="tanh", C_b=0.1, C_W=1.0))


def test_escape_time_is_that_of_the_theory() -> None:
    found = answer("escape_time", activation="tanh", epsilon=0.1, method="leading")
    assert found["escape_time"] == pytest.approx(587.011, abs=1e-3)
    narrow = answer("escape_time", activation="tanh", epsilon=0.1, depth=4, bottleneck=3, method="leading")
    expected = ft.saddle.escape_time("tanh", [0.1, 0.1, 0.1, 1.0], width=64, threshold=0.3)
    assert narrow["escape_time"] == expected


def test_comparison_and_global_kernel_are_seeded() -> None:
    options = {"activation": "relu", "depth": 2, "width": 16, "draws": 500, "tensors": "K,V"}
    first, again, other = (answer("compare", **options, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    small = {"units": 6, "steps": 4, "samples": 2, "gain": 0.9}
    assert answer("global_ntk", **small, seed=1) == answer("global_ntk", **small, seed=1)
    assert answer("global_ntk", **small, seed=1) != answer("global_ntk", **small, seed=2)


def test_global_kernel_is_that_of_the_layer() -> None:
    import torch

    from foretrain.support.seeds import spawn, torch_generator
    from foretrain.training.tasks import Recurrent

    found = answer("global_ntk", units=5, steps=4, samples=2, gain=1.3, seed=3)
    weights, data, _ = spawn(3, 3)
    model = Recurrent(2, 5, 1, "rnn", gain=1.3, seed=weights, dtype=torch.float64)
    x = torch.randn(2, 4, 2, generator=torch_generator(data), dtype=torch.float64)
    values = torch.linalg.eigvalsh(ft.global_ntk(model.recurrent, x).dense())
    assert found["trace"] == pytest.approx(float(values.sum()))
    assert found["effective_rank"] == pytest.approx(float(values.sum() ** 2 / (values**2).sum()))


def test_a_real_experiment(tmp_path: Path) -> None:
    spec = write_spec(tmp_path, 'experiment = "parameter-count"\n[axes]\nseed = [0, 1]')
    found = sweep(spec, workers=1)
    assert found.data["agrees"].values.tolist() == [1, 1]
    expected = registry.get("parameter-count").run("quick", 0).table[0]
    assert found.data["here"].isel(seed=0, quantity=0) == expected.here


def test_parameters_of_a_function() -> None:
    def function(a, b: int, c=0.5, *rest, d: float | None = None, **more):  # type: ignore[no-untyped-def]
        """Typed, untyped, optional."""

    found = {item.name: (item.kind, item.default_words) for item in declared(function)}
    assert found == {"a": (None, "required"), "b": (int, "required"), "c": (float, "0.5"), "d": (float, "")}


def test_prediction_of_a_linear_network_is_exact() -> None:
    """Its tangent kernel is 3 (x.x' / n + 1) at depth 3, and its outputs before training have the kernel x.x' / n."""
    few = answer("predict", activation="linear", samples=2, n_in=4, C_b=0.0, C_W=1.0, seed=1)
    X = np.random.default_rng(1).standard_normal((52, 4))
    kernel = X @ X.T / 4 + 1
    weights = kernel[2:, :2] @ np.linalg.inv(kernel[:2, :2])
    missed = X[2:] - weights @ X[:2]
    assert few["error_of_mean"] == pytest.approx(np.mean(missed[:, 0] ** 2))
    assert few["variance"] == pytest.approx(np.mean(np.sum(missed**2, 1)) / 4)
    assert few["test_error"] == few["error_of_mean"] + few["variance"]


def test_an_unknown_teacher_is_refused() -> None:
    with pytest.raises(InputError, match="unknown target 'cubic'"):
        answer("predict", activation="relu", target="cubic")
