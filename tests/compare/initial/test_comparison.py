from __future__ import annotations

import importlib
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foretrain as ft
from foretrain.compare.comparison import Comparison
from foretrain.compare.initial import compare_initial
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError

X = np.array([[1.0, -0.5, 0.8], [0.3, 1.1, -0.4]])
MLP = ft.MLP("tanh", depth=3, width=32)


@pytest.fixture(scope="module")
def found() -> Comparison:
    return compare_initial(MLP, X, draws=2000, seed=3)


def with_theory(found: Comparison, observable: str, factor: float) -> Comparison:
    """The same measurement against a theory that is wrong by a factor."""
    wrong = [factor if entry.observable == observable else 1.0 for entry in found.entries]
    return replace(found, theory=found.theory * wrong)


@pytest.mark.slow
def test_the_package_is_the_function() -> None:
    package = importlib.import_module("foretrain.compare")
    one, two = package(MLP, X, draws=500, seed=1), compare_initial(MLP, X, draws=500, seed=1)
    np.testing.assert_array_equal(one.limit, two.limit)
    assert package.build.build(MLP, 3).layers
    assert package.Comparison is Comparison
    with pytest.raises(AttributeError, match="nonsense"):
        _ = package.nonsense


def test_networks_are_given_by_widths_or_by_scales() -> None:
    options: dict[str, Any] = {"draws": 500, "seed": 1}
    one = ft.compare(MLP, X, widths=np.array([16, 48, 80]), **options)
    np.testing.assert_array_equal(one.limit, ft.compare(MLP, X, scales=(0.5, 1.5, 2.5), **options).limit)
    assert [network.hidden_widths[0] for network in one.ladder.networks] == [16, 48, 80]


def test_importing_the_package_does_not_load_torch() -> None:
    code = (
        "import sys, foretrain.compare, foretrain.compare.judging.agreement; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_the_seed_fixes_the_numbers(found: Comparison) -> None:
    again = compare_initial(MLP, X, draws=2000, seed=3)
    np.testing.assert_array_equal(again.measured, found.measured)
    assert not np.array_equal(compare_initial(MLP, X, draws=2000, seed=4).measured, found.measured)


@pytest.mark.slow
def test_entries_theory_and_sizes(found: Comparison) -> None:
    flow = ft.flow(MLP, X, ["K", "V", "G1"])
    assert len(found.entries) == 2 * 3 + 2 * 6 + 3
    for entry, theory in zip(found.entries, found.theory, strict=True):
        assert theory == flow[entry.observable].values[(entry.layer - 1, *entry.inputs)]
    assert found.ladder.method == "weights"
    assert found.own == [network.hidden_widths for network in found.ladder.networks].index((32, 32))


def test_the_limit_is_the_quadratic_through_three_widths(found: Comparison) -> None:
    for column in range(0, len(found.entries), 5):
        fit = np.polyfit(found.ladder.inverse, found.measured[:, column], 2)
        assert found.limit[column] == pytest.approx(fit[-1], rel=1e-9, abs=1e-12)


def test_errors_of_the_limit_add_up_over_widths(found: Comparison) -> None:
    inverse = found.ladder.inverse
    lagrange = [np.prod([other / (other - own) for other in inverse if other != own]) for own in inverse]
    expected = np.sqrt(((np.array(lagrange)[:, None] * found.measured_error) ** 2).sum(axis=0))
    np.testing.assert_allclose(found.standard_error, expected, rtol=1e-9)


def test_finite_width_prediction(found: Comparison) -> None:
    flow = ft.flow(MLP, X, ["K", "G1"]).to_dataset().sel(layer=3)
    columns = [i for i, e in enumerate(found.entries) if e.observable == "K" and e.layer == 3]
    expected = (flow["K"] + flow["G1"] / 32).values[np.triu_indices(2)]
    np.testing.assert_allclose(found.corrected[found.own, columns], expected, rtol=1e-12)
    others = [i for i, e in enumerate(found.entries) if e.observable != "K"]
    assert np.isnan(found.corrected[:, others]).all()


def test_repr_reads_like_a_table(found: Comparison) -> None:
    text = repr(found)
    assert text.startswith(found.verdict)
    for part in ("V_(00)(01)", "G1_11", "rms z", "every weight drawn", "at width 32", "theory with 1/n"):
        assert part in text


def test_dataset_is_stored_and_read(found: Comparison, tmp_path: Path) -> None:
    data = found.to_dataset()
    ft.save(data, tmp_path / "comparison.zarr")
    again = ft.load(tmp_path / "comparison.zarr")
    np.testing.assert_array_equal(again["limit"].values, found.limit)
    assert again["batch_value"].dims == ("width", "batch", "entry")
    assert again.attrs["verdict"] == found.verdict
    np.testing.assert_allclose(again["batch_value"].mean("batch").values, found.measured, rtol=1e-12)


def test_what_does_not_fluctuate_is_compared_exactly() -> None:
    linear = compare_initial(ft.MLP("relu", depth=3, width=24, C_W=2.0), X, ["G1"], draws=500)
    still = [not np.isfinite(z) for z in linear.z]
    assert still == [True, False, True]
    assert linear.exact_agrees
    shifted = with_theory(linear, "G1", 1.0)
    object.__setattr__(shifted, "theory", shifted.theory + 1e-3)
    assert not shifted.exact_agrees
    assert not shifted.agrees
    assert "do not fluctuate differ" in shifted.verdict


def test_more_than_four_inputs_leave_out_the_vertex() -> None:
    many = np.random.default_rng(0).standard_normal((5, 3))
    found = compare_initial(MLP, many, draws=500, method="conditional")
    assert {entry.observable for entry in found.entries} == {"K", "G1"}
    assert found.independent_scores.size <= len(found.ladder.networks) * found.ladder.batches / 8
    with pytest.raises(InputError, match="at most 4 inputs"):
        compare_initial(MLP, many, ["V"], draws=500)


def test_neurons_alone_are_enough_for_kernel_and_vertex() -> None:
    found = compare_initial(MLP, X, draws=2000, estimator="neurons", method="conditional")
    measured = {("K", 2), ("K", 3), ("V", 2), ("kurtosis", 2), ("kurtosis", 3)}
    assert {(e.observable, e.layer) for e in found.entries} == measured
    assert found.agrees, found.verdict


def test_the_excess_of_one_neuron_is_three_times_the_vertex() -> None:
    found = compare_initial(MLP, X, ["kurtosis"], draws=1000, estimator="neurons", method="conditional")
    V = ft.flow(MLP, X, ["V"])["V"].values
    assert found.theory == pytest.approx([3 * V[layer, a, a, a, a] for layer in (1, 2) for a in (0, 1)])
    with pytest.raises(NotSupportedError, match="estimator='neurons'"):
        compare_initial(MLP, X, ["kurtosis"], draws=1000)


def test_large_networks_are_drawn_without_weights() -> None:
    wide = ft.MLP("relu", depth=3, width=2000, C_W=2.0)
    found = compare_initial(wide, X[:1], draws=2000)
    assert found.ladder.method == "conditional"
    assert found.ladder.scales == (0.25, 0.5, 1.0)
    assert "given the layer before" in repr(found)


def test_too_deep_for_a_quadratic_is_said() -> None:
    with pytest.warns(AccuracyWarning, match="depth over width 0.5"):
        compare_initial(ft.MLP("tanh", depth=4, width=8), X[:1], ["K"], draws=500)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"draws": 100}, "draws .*500"),
        ({"draws": 1e4}, "whole number"),
        ({"observables": ["W"]}, "unknown observable 'W'"),
        ({"observables": []}, "at least one observable"),
        ({"observables": ["three_point"]}, "skip connections"),
        ({"method": "exact"}, "unknown sampling method"),
        ({"estimator": "neuron"}, "did you mean 'neurons'"),
        ({"scales": [1, 2]}, "at least 3"),
        ({"widths": [16, 32]}, r"widths .*3"),
        ({"widths": 16}, "widths is 16"),
        ({"widths": [16, 32, 64.5]}, "widths is 64.5"),
        ({"widths": [16, 32, 64], "scales": [1, 2, 4]}, "either widths or scales"),
        ({"scales": "abc"}, "at least 3"),
        ({"scales": 2.0}, "at least 3"),
        ({"scales": [1, 1.001, 1.002]}, r"\[32\]"),
        ({"observables": 3}, "list of names"),
    ],
)
def test_bad_requests(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compare_initial(MLP, X, **options)


def test_no_shift_of_the_metric_with_skip_connections() -> None:
    with pytest.raises(NotSupportedError, match=r"G1 .*gamma"):
        compare_initial(ft.MLP("tanh", depth=3, width=20, gamma=0.5), X, ["G1"], draws=500)


@pytest.mark.statistical
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("name", ["tanh", "relu", "gelu", "sin", "swish"])
def test_theory_agrees_and_a_wrong_one_does_not(name: str, seed: int) -> None:
    mlp = ft.MLP.critical(name, depth=4, width=48)
    found = compare_initial(mlp, X, draws=40_000, method="conditional", seed=seed)
    assert found.agrees, found
    for observable, factor in (("V", 1.1), ("V", 0.9), ("K", 1.02), ("G1", 1.25)):
        assert not with_theory(found, observable, factor).agrees, (observable, factor)


@pytest.mark.statistical
@pytest.mark.parametrize("name", ["tanh", "relu", "gelu"])
def test_networks_with_every_weight_drawn_agree(name: str) -> None:
    found = compare_initial(ft.MLP.critical(name, depth=5, width=64), X, draws=6000, method="weights", seed=2)
    assert found.agrees, found


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "C_W"), [("relu", 1.5), ("tanh", 0.75), ("gelu", 1.4)])
def test_residual_networks_agree_with_the_complete_vertex(name: str, C_W: float) -> None:
    mlp = ft.MLP(name, depth=5, width=64, C_b=0.1, C_W=C_W, gamma=0.5)
    found = compare_initial(mlp, X, draws=40_000, method="conditional", seed=1)
    assert {entry.observable for entry in found.entries} == {"K", "V", "three_point"}
    assert found.agrees, found
    if name == "tanh":
        return
    book = ft.flow(mlp, X, ["V"], method="book")["V"].values
    errors = [
        abs(limit - book[(e.layer - 1, *e.inputs)]) / error
        for e, limit, error in zip(found.entries, found.limit, found.standard_error, strict=True)
        if e.observable == "V"
    ]
    assert max(errors) > 6


@pytest.mark.statistical
def test_unequal_widths_and_four_inputs() -> None:
    """Reference: sin, C_b = 0, C_W = 1, first-layer kernel of section 11."""
    K1 = np.array([[1, 0.4, 0.1, -0.2], [0.4, 0.8, 0.3, 0], [0.1, 0.3, 1.2, 0.5], [-0.2, 0, 0.5, 0.9]])
    inputs = 2 * np.linalg.cholesky(K1)
    found = compare_initial(
        ft.MLP("sin", depth=3, width=30), inputs, draws=60_000, method="conditional", scales=(1, 2, 4), seed=1
    )
    assert found.agrees, found
    (column,) = [i for i, e in enumerate(found.entries) if (e.layer, e.label) == (3, "V_(01)(23)")]
    assert found.theory[column] == pytest.approx(-0.007779802946, abs=1e-9)
    unequal = compare_initial(
        ft.MLP("relu", depth=4, width=[20, 30, 25], C_W=2.0),
        X,
        draws=40_000,
        method="conditional",
        scales=(2, 3, 4, 8),
    )
    assert unequal.agrees, unequal


@pytest.mark.statistical
def test_functions_of_users() -> None:
    """tanh + 0.3 tanh², off criticality, as numpy function: drawn with its own rule."""
    mlp = ft.MLP(lambda z: np.tanh(z) + 0.3 * np.tanh(z) ** 2, depth=4, width=40, C_b=0.05, C_W=1.2)
    found = compare_initial(mlp, X, draws=20_000, method="conditional")
    assert found.agrees, found


def test_a_zero_input_is_compared_without_noise() -> None:
    """Its entries are zero in theory and in networks; the others are judged."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare_initial(
            ft.MLP("relu", 3, 24, C_W=2.0), [[1.0, 2.0], [0.0, 0.0]], ["K", "V"], draws=500
        )
        text = repr(found)
    assert found.agrees, found.verdict
    assert found.judgement.entries == 4  # K_00 and V_(00)(00) of two layers
    assert re.search(r"K_11 +0 +0 +exact", text)


def test_nothing_to_compare_is_said() -> None:
    net = ft.MLP("tanh", depth=3, width=24)
    with pytest.raises(InputError, match="K, V, G1"):
        compare_initial(net, [[0.0, 0.0]], draws=500)
    with pytest.raises(InputError, match="Theta, H1"):
        compare_initial(net.replace(lambda_b=0.0, lambda_W=0.0), X, ["Theta", "H1"], draws=500)
    with pytest.raises(InputError, match="give an MLP"):
        compare_initial(None, X)


def test_a_verdict_on_entries_that_do_not_fluctuate() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = compare_initial(ft.MLP("tanh", depth=3, width=24, C_b=1.0, C_W=0.0), X, ["K"], draws=500)
        assert found.verdict.startswith("tanh: theory agrees")
    object.__setattr__(found, "theory", found.theory + 1)
    assert "NOT agree" in found.verdict


def test_what_vanishes_at_depth_two_is_left_out_unless_named() -> None:
    shallow = ft.MLP("tanh", depth=2, width=24)
    assert {entry.observable for entry in compare_initial(shallow, X, draws=500).entries} == {"K", "V"}
    with pytest.raises(InputError, match=r"G1 .*depth 2"):
        compare_initial(shallow, X, ["K", "G1"], draws=500)
    with pytest.raises(InputError, match="neurons"):
        compare_initial(shallow, X, ["K", "V"], draws=500, estimator="neurons")
