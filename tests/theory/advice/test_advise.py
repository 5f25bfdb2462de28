"""Advice for a width: depths, r*, initialisation, rates, skip connections, code that runs, and what is refused."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise

import numpy as np
import pytest
import torch

import foretrain as ft
from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.advice import advise, information_curves, perturbative_depths, stable_step
from foretrain.theory.asymptotics import dimensionless_ratios
from foretrain.theory.residual_networks import optimal_aspect_ratio, optimal_skip

X = np.random.default_rng(0).normal(size=(12, 4))


@pytest.mark.parametrize(("name", "depth"), [("relu", 6), ("linear", 13), ("tanh", 40)])
def test_plain_networks(name: str, depth: int) -> None:
    found = advise(name, 256, n_out=10)
    assert found.best_ratio == pytest.approx(optimal_aspect_ratio(name, n_out=10))
    assert found.best_depth == math.floor(256 * found.best_ratio + 1e-9)
    assert found.depths.small == depth
    assert found.depths.small_criterion == "V/(nK^2)"
    assert found.network.depth == max(2, found.best_depth)
    assert found.network.C_W == ft.MLP.critical(name, found.network.depth, 256).C_W
    assert found.position is None
    assert "perturbative up to depth" in found.verdict


def test_depths_are_the_last_below_the_limits() -> None:
    act = ft.activation("sin")
    depths = perturbative_depths(act, 50, 1.0, nu=2 / 3)
    mlp = ft.MLP.critical(act, depths.large + 1, 50)
    ratios = dimensionless_ratios(mlp, [1.0])
    worst = np.max([np.abs(ratios[name].values) for name in ratios], axis=0)
    for last, limit in ((depths.small, 0.1), (depths.large, 0.3)):
        assert worst[last - 1] <= limit < worst[last]
    name, size = depths.at(depths.large)
    assert size == pytest.approx(worst[-2])
    assert name == "V/(nK^2)"


def test_depths_scale_with_the_width_far_beyond_the_recursion() -> None:
    act = ft.activation("tanh")
    near, far = (perturbative_depths(act, width, 1.0, nu=2 / 3) for width in (2_000, 200_000))
    assert far.large / far.width == pytest.approx(0.3 / (2 / 3), rel=0.01)
    assert far.large / near.large == pytest.approx(100, rel=0.03)


def test_smooth_half_stable_activations_are_bound_by_the_tangent_kernel() -> None:
    found = advise("gelu", 2560, n_out=10, depth=200)
    assert found.depths.large_criterion not in ("V/(nK^2)", "")
    assert found.position == "outside"
    assert found.criticality.universality_class == "half-stable"
    assert found.nu == pytest.approx(4.904226, abs=1e-6)
    assert found.complete_ratio is None
    assert found.skip is None
    notes = " ".join(found.notes)
    assert "attracts from one side" in notes
    assert "mean square of 1.70879" in notes


def test_inputs_on_the_wrong_side_are_told() -> None:
    found = advise("gelu", 100, X=X * 0.2, depth=4)
    assert any("side of K*" in note and "repels" in note for note in found.notes)


@pytest.mark.parametrize(("depth", "position"), [(20, "inside"), (80, "at the edge"), (150, "outside")])
def test_verdicts(depth: int, position: str) -> None:
    found = advise("tanh", 256, n_out=10, depth=depth)
    assert found.position == position
    assert f"Depth {depth} at width 256 is {position}" in found.verdict
    assert found.skip == pytest.approx(optimal_skip("tanh", depth / 256, n_out=10))
    assert (found.skip == 0) == (depth <= found.best_depth)
    assert ("skip connections gamma" in found.verdict) == (position != "inside")
    wider = int(found.verdict.partition("take width ")[2].partition(",")[0] or 256)
    assert advise("tanh", wider, n_out=10, depth=depth).position == "inside"


@pytest.mark.slow
def test_the_best_skip_makes_the_depth_optimal() -> None:
    plain = advise("tanh", 256, n_out=10, depth=100)
    assert plain.skip is not None
    skipping = advise("tanh", 256, n_out=10, depth=100, gamma=plain.skip)
    assert skipping.best_ratio * 256 == pytest.approx(100)
    assert skipping.nu == pytest.approx(2 / 3 * (1 - plain.skip**4))
    assert skipping.network.gamma[1:-1] == (plain.skip,) * 98
    assert skipping.depths.small > plain.depths.small


def test_complete_and_printed_growth_of_relu_with_skips() -> None:
    found = advise("relu", 128, n_out=10, gamma=0.6)
    assert (found.nu_printed, found.nu) == pytest.approx((2.9696, 6.1960914932))
    assert found.best_ratio == pytest.approx(0.08 / 6.1960914932)
    assert found.complete_ratio == pytest.approx(4 / 44 / 6.1960914932)


def test_rates_are_those_of_the_class() -> None:
    found = advise("tanh", 64, depth=5, n_out=2)
    assert [layer.lambda_b for layer in found.network.layers] == pytest.approx(
        [1, 1 / 2, 1 / 3, 1 / 4, 1 / 5]
    )


@pytest.mark.parametrize("loss", ["squared_error", "mse", "cross_entropy"])
def test_stable_step_in_function_space(loss: str) -> None:
    """Descent with the frozen tangent kernel: the squared errors diverge just above the step and not below it."""
    mlp = ft.MLP.critical("tanh", 3, 20, n_out=3)
    step = stable_step(mlp, X, loss)
    Theta = ft.flow(mlp, X, ["Theta"])["Theta"].values[-1]
    rng = np.random.default_rng(1)
    start, target = rng.normal(size=(2, 12, 3))
    labels = np.eye(3)[rng.integers(0, 3, 12)]

    def slope(z: np.ndarray) -> np.ndarray:
        if loss == "cross_entropy":
            p = np.exp(z - z.max(1, keepdims=True))
            return (p / p.sum(1, keepdims=True) - labels) / 12
        return (z - target) * (1.0 if loss == "squared_error" else 2 / 36)

    for share, stable in ((0.97, True), (1.05, False)):
        z = start.copy()
        for _ in range(400):
            z = z - share * step.largest * Theta @ slope(z)
        if loss != "cross_entropy":
            assert (np.abs(z - target).max() < 10) == stable
        elif stable:  # the bound holds anywhere; above it nothing is promised
            before = slope(start)
            assert np.abs(slope(z)).sum() < np.abs(before).sum()
    assert step.recommended == pytest.approx(step.largest / 2)


def test_code_builds_the_network_and_trains_it_stably() -> None:
    found = advise("tanh", 400, n_out=2, depth=3, X=X, loss="mse")
    space: dict[str, object] = {"x": torch.from_numpy(X)}
    exec(found.code, space)
    network, optimizer = space["network"], space["optimizer"]
    assert space["mlp"] == found.network
    x, y = torch.from_numpy(X), torch.sign(torch.from_numpy(X[:, :2]))
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert all(after < 1.001 * before for before, after in pairwise(losses))


@pytest.mark.slow
def test_code_for_half_stable_activations_takes_the_inputs() -> None:
    x = 4 * X
    found = advise("gelu", 30, depth=4, X=x)
    space: dict[str, object] = {"x": x}
    exec(found.code, space)
    assert space["mlp"] == found.network
    assert len(set(found.network.lambda_b)) > 1


def test_code_has_every_digit_of_a_skip_connection() -> None:
    found = advise("relu", 64, depth=4, gamma=0.99999987)
    space: dict[str, object] = {"x": X}
    exec(found.code, space)
    assert space["mlp"] == found.network


def test_a_skip_is_never_rounded_to_one() -> None:
    found = advise("tanh", 2, depth=5000)
    assert found.skip is not None
    told = re.search(r"skip connections gamma = ([\d.]+),", found.verdict)
    assert told is not None
    shown = next(value for name, value, _ in found.answer().tables[0].rows if name == "gamma*")
    assert shown == told[1]
    assert 0 < (1 - float(shown)) / (1 - found.skip) == pytest.approx(1, rel=1e-3)


def test_a_skip_connection_is_a_number() -> None:
    with pytest.raises(InputError, match="gamma is 'much'"):
        advise("tanh", 64, gamma="much")  # type: ignore[arg-type]


def test_networks_of_too_many_layers_are_refused() -> None:
    with pytest.raises(InputError, match=r"r\* is depth 2,608,695 at width 10,000,000"):
        advise("tanh", 10_000_000)
    with pytest.raises(InputError, match="at most 100,000 layers"):
        advise("tanh", 64, depth=100_001)


def test_everything_can_be_saved_and_printed() -> None:
    found = advise("relu", 64, n_out=4, depth=10, X=X)
    document = found.to_dict()
    assert json.loads(json.dumps(document))["best_depth"] == found.best_depth
    data = found.to_dataset()
    assert data["lambda_W"].sizes == {"network_layer": 10}
    assert data["size"].sel(ratio="V/(nK^2)").values[:3] == pytest.approx(np.array([0, 5, 10]) / 64)
    assert data.attrs["verdict"] == found.verdict
    text = repr(found)
    assert all(
        word in text
        for word in ("Depth 10 at width 64", "gamma*", "eta", "truncated series", "ft.MLP.critical")
    )


def test_many_outputs_leave_no_hidden_layer() -> None:
    found = advise("relu", 100, n_out=1000)
    assert found.best_depth == 0
    assert "allows no hidden layer" in found.verdict
    wide = int(found.notes[-1].partition("that takes width ")[2].rstrip("."))
    assert advise("relu", wide, n_out=1000).best_depth == 2


def test_curves_of_scale_invariant_and_other_networks() -> None:
    relu = information_curves(advise("relu", 256, n_out=10))
    assert (relu["exact"].diff("r") > 0).all()
    assert float(relu["r"][int(np.argmax(relu["printed"].values))]) == pytest.approx(0.016)
    found = advise("tanh", 24, n_out=2, gamma=0.5)
    tanh = information_curves(found, draws=400, seed=1)
    assert tanh.attrs["drawn_width"] == 24
    assert float(tanh["drawn"][-1]) > 4 * float(tanh["drawn_error"][-1])
    again = information_curves(found, draws=400, seed=1)
    assert tanh["drawn"].values == pytest.approx(again["drawn"].values, abs=0)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"activation": "sigmoid", "width": 10}, NotSupportedError, "0.5 at 0"),
        ({"activation": "tanh", "width": 0}, InputError, "width is 0"),
        ({"activation": "tanh", "width": [3, 4]}, InputError, "one whole number"),
        ({"activation": "tanh", "width": 10, "depth": 1}, InputError, "at least 2"),
        ({"activation": "tanh", "width": 10, "depth": 2, "gamma": 0.5}, InputError, "at least 3"),
        ({"activation": "tanh", "width": 10, "gamma": 1.0}, InputError, "gamma"),
        ({"activation": "tanh", "width": 10, "n_out": 0}, InputError, "n_out is 0"),
        ({"activation": "tanh", "width": 10, "loss": "msee"}, InputError, "did you mean 'mse'"),
        ({"activation": "tanh", "width": 10, "loss": "cross_entropy"}, InputError, "two outputs"),
        ({"activation": "tanh", "width": 10, "X": np.zeros((3, 2))}, InputError, "no signal"),
    ],
)
def test_bad_input(arguments: dict[str, object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        advise(**arguments)
