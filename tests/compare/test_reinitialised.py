"""Networks drawn again and again: exact cases, brute force over the same seeds, closed forms, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from foretrain.compare.ensemble_statistics import Moments, infinite_width_limit
from foretrain.compare.reinitialised import ensemble
from foretrain.support.errors import ForetrainError, InputError, NotEnoughMemoryError, NotSupportedError
from foretrain.support.progress import Deadline, OutOfTimeError, within
from foretrain.support.seeds import integer, spawn

X = torch.tensor([[1.0, 0.2, -0.5], [0.3, -1.1, 0.4], [-0.7, 0.6, 0.9], [0.1, 0.8, 1.2]], dtype=torch.float64)
GRAM = (X @ X.T).numpy()


class Ntk(nn.Module):
    """Layers without biases in the tangent-kernel parametrisation: weights of variance 1, scaled by their fan-in."""

    def __init__(self, *sizes: int, activation: Callable[[Tensor], Tensor] = torch.relu) -> None:
        super().__init__()
        shapes = zip(sizes[1:], sizes)
        self.weights = nn.ParameterList(torch.randn(*shape, dtype=torch.float64) for shape in shapes)
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        for place, weight in enumerate(self.weights):
            x = (self.activation(x) if place else x) @ weight.T / weight.shape[1] ** 0.5
        return x


def identity(x: Tensor) -> Tensor:
    return x


def small(width: int = 5) -> nn.Module:
    return nn.Sequential(nn.Linear(3, width), nn.Tanh(), nn.Linear(width, 2)).double()


def scores(measured: Any, error: Any, exact: Any) -> Any:
    """z-scores of the entries on and above the diagonal, by width."""
    rows, columns = np.triu_indices(len(X))
    return ((measured - exact) / error)[..., rows, columns]


# --- exact cases


def test_one_linear_layer() -> None:
    """Weights and biases uniform in ±1/√3: both have variance 1/9, and the tangent kernel is x.x + 1 always."""
    found = ensemble(lambda: nn.Linear(3, 6).double(), X, draws=800)
    exact = (GRAM + 1) / 9
    assert np.abs(scores(found.nngp.values[0], found.standard_error["nngp"].values[0], exact)).max() < 4
    covariance, error = found.outputs_covariance, found.standard_error["outputs_covariance"]
    assert np.abs(scores(covariance.values[0], error.values[0], exact)).max() < 4
    assert np.abs(found.outputs_mean / found.standard_error["outputs_mean"]).max() < 4
    np.testing.assert_allclose(found.ntk.values[0], GRAM + 1, rtol=1e-14)
    assert found.variance["ntk"].max() == found.standard_error["ntk"].max() == 0


def test_deep_linear_networks() -> None:
    """E f(a) f(b) = a.b / 3 and E Θ = 3 a.b / 3 at any width; E f⁴ = 3 (1 + 2/n)² (E f²)² with two hidden layers."""
    found = ensemble(lambda n: Ntk(3, n, n, 1, activation=identity), X, draws=300, widths=[16, 32, 64])
    assert np.abs(scores(found.nngp, found.standard_error["nngp"], GRAM / 3)).max() < 4
    assert np.abs(scores(found.ntk, found.standard_error["ntk"], GRAM)).max() < 4
    widths = found.nngp.width.values[:, None, None]
    many = ensemble(
        lambda n: Ntk(3, n, n, 1, activation=identity), X, draws=3000, widths=[16, 32, 64], quantities="nngp"
    )
    own = np.diag(GRAM / 3)
    spread = (3 * (1 + 2 / widths[:, 0]) ** 2 - 1) * own**2
    measured = np.diagonal(many.variance["nngp"].values, axis1=1, axis2=2)
    error = np.diagonal(many.standard_error["nngp_variance"].values, axis1=1, axis2=2)
    assert np.abs((measured - spread) / error).max() < 4
    limit = many.extrapolated("nngp_variance")
    assert np.abs((np.diag(limit.value) - 2 * own**2) / np.diag(limit.standard_error)).max() < 4


def test_relu_networks_reach_the_arccosine_kernel() -> None:
    """Cho & Saul 2009: with one hidden layer K = |a||b| (sin θ + (π − θ) cos θ) / 2π, Θ = K + a.b (π − θ) / 2π."""
    norm = np.sqrt(np.diag(GRAM))
    lengths = np.outer(norm, norm)
    angle = np.arccos(np.clip(GRAM / lengths, -1, 1))
    inner = lengths * (np.sin(angle) + (np.pi - angle) * np.cos(angle)) / (2 * np.pi) / 3
    exact = {"nngp": inner, "ntk": inner + GRAM * (np.pi - angle) / (2 * np.pi) / 3}
    found = ensemble(lambda n: Ntk(3, n, 20), X, draws=400, widths=[32, 64, 128], seed=1)
    for name, value in exact.items():
        limit = found.extrapolated(name)
        z = scores(limit.value.values, limit.standard_error.values, value)
        assert np.abs(z).max() < 4
        assert np.sqrt(np.mean(z**2)) < 2  # ten correlated entries
        at_widths = scores(found.data[name].values, found.standard_error[name].values, value)
        assert 0.3 < np.sqrt(np.mean(at_widths**2)) < 2


def test_a_kernel_that_grows_with_the_width_has_no_limit() -> None:
    """Torch's own layers at one rate for all parameters: Θ is the sum over hidden units, and grows as the width."""
    grown = ensemble(small, X, draws=60, widths=[64, 128, 256])
    power, error = (grown.data.attrs[f"ntk_growth{part}"] for part in ("", "_error"))
    assert abs(power - 1) < 3 * error + 0.1  # the biases add what does not grow
    assert "ntk_limit" not in grown.data
    assert "nngp_limit" in grown.data
    assert "NTK grows as width^" in str(grown)
    assert grown.figure().panels
    with pytest.raises(InputError, match=r"the NTK has no limit, it grows as width\^.*rates"):
        grown.extrapolated("ntk")
    options = {"draws": 60, "widths": [64, 128, 256], "quantities": "ntk"}
    level = ensemble(small, X, rates=lambda name, weight: 1 / weight.shape[-1], **options)
    assert level.extrapolated("ntk").value.values[0, 0] > 0


def test_the_limit_of_exact_polynomials() -> None:
    widths = np.array([10, 30, 80, 200])
    values = (1 + 2 / widths + 3 / widths**2)[:, None] * [[1.0, -4.0]]
    errors = np.array([0.1, 0.2, 0.1, 0.3])[:, None] * [[1.0, 2.0]]
    for count in (3, 4):
        limit, _ = infinite_width_limit(widths[:count], values[:count], errors[:count])
        np.testing.assert_allclose(limit, [1.0, -4.0], rtol=1e-10)
    line = (1 + 2 / widths)[:2, None]
    limit, error = infinite_width_limit(widths[:2], line, errors[:2, :1])
    np.testing.assert_allclose(limit, 1.0)
    np.testing.assert_allclose(error, np.hypot(0.5 * 0.1, 1.5 * 0.2))  # 1.5 f(30) − 0.5 f(10)
    exact = infinite_width_limit(widths, values, np.zeros_like(values))
    np.testing.assert_allclose(exact[0], [1.0, -4.0], rtol=1e-10)


def test_moments_of_samples() -> None:
    values = np.random.default_rng(0).standard_exponential((4000, 3)) + 1e6
    moments = Moments()
    for row in values:
        moments.add(row)
    np.testing.assert_allclose(moments.mean, values.mean(axis=0))
    np.testing.assert_allclose(moments.variance, values.var(axis=0, ddof=1), rtol=1e-9)
    np.testing.assert_allclose(moments.mean_error, values.std(axis=0, ddof=1) / 4000**0.5, rtol=1e-9)
    # Leading order of the variance of a variance: (μ₄ − σ⁴) / n.
    centred = values - values.mean(axis=0)
    fourth, second = (centred**4).mean(axis=0), (centred**2).mean(axis=0)
    np.testing.assert_allclose(moments.variance_error, np.sqrt((fourth - second**2) / 4000), rtol=1e-3)


# --- brute force


def jacobians(network: nn.Module, x: Tensor) -> Tensor:
    """(samples, outputs, parameters)."""
    rows = []
    for sample in x:
        flat = network(sample[None]).reshape(-1)
        grads = [torch.autograd.grad(one, list(network.parameters()), retain_graph=True) for one in flat]
        rows.append(torch.stack([torch.cat([g.reshape(-1) for g in each]) for each in grads]))
    return torch.stack(rows)


def test_the_same_networks_one_by_one() -> None:
    found = ensemble(small, X, X[:2], draws=6, widths=[4, 5], seed=3)
    second, outputs, kernels, tangents = spawn(3, 2)[1], [], [], []
    for own in spawn(second, 6):
        torch.manual_seed(integer(own))
        network = small(5)
        f = network(X).detach()
        outputs.append(f.numpy())
        kernels.append((f @ f[:2].T / 2).numpy())
        slopes = jacobians(network, X)
        tangents.append(torch.einsum("acp,bcp->ab", slopes, slopes[:2]).numpy() / 2)
    np.testing.assert_allclose(found.outputs_mean[1], np.mean(outputs, axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.variance["outputs"][1], np.var(outputs, axis=0, ddof=1), rtol=1e-10)
    for name, values in (("nngp", kernels), ("ntk", tangents)):
        np.testing.assert_allclose(found.data[name][1], np.mean(values, axis=0), rtol=1e-12)
        deviation = np.std(values, axis=0, ddof=1)
        np.testing.assert_allclose(found.standard_error[name][1], deviation / 6**0.5, rtol=1e-9)
        np.testing.assert_allclose(found.variance[name][1], deviation**2, rtol=1e-9)
    centred = np.array(outputs) - np.mean(outputs, axis=0)
    covariance = np.einsum("dac,dbc->ab", centred, centred[:, :2]) / 2 / 5
    np.testing.assert_allclose(found.outputs_covariance[1], covariance, rtol=1e-10, atol=1e-14)


def test_channels_and_positions() -> None:
    x = torch.randn(2, 1, 4, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = ensemble(lambda: nn.Conv2d(1, 3, 2).double(), x, draws=3, channel_axis=1)
    assert found.ntk.dims == ("width", "input_1", "input_2", "position_1", "position_2")
    kernels, tangents = [], []
    for own in spawn(spawn(0, 1)[0], 3):
        torch.manual_seed(integer(own))
        network = nn.Conv2d(1, 3, 2).double()
        f = network(x).detach().reshape(2, 3, 6)
        kernels.append(torch.einsum("acp,bcq->abpq", f, f).numpy() / 3)
        slopes = jacobians(network, x).reshape(2, 3, 6, -1)
        tangents.append(torch.einsum("acpi,bcqi->abpq", slopes, slopes).numpy() / 3)
    np.testing.assert_allclose(found.nngp[0], np.mean(kernels, axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.ntk[0], np.mean(tangents, axis=0), rtol=1e-12, atol=1e-14)
    last = ensemble(
        lambda: nn.Conv2d(1, 3, 2).double(), x, draws=3, channel_axis=-1, output=lambda f: f.movedim(1, -1)
    )
    np.testing.assert_allclose(last.ntk, found.ntk, rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(last.nngp, found.nngp, rtol=1e-12)
    whole = ensemble(lambda: nn.Conv2d(1, 3, 2).double(), x, draws=3)
    np.testing.assert_allclose(whole.ntk[0], np.einsum("abpp->ab", found.ntk[0]) / 6, rtol=1e-12)
    np.testing.assert_allclose(whole.data.nngp_scale, found.data.nngp_scale, rtol=1e-12)


def test_rates() -> None:
    def weights_over_width(model: nn.Module) -> dict[str, float]:
        return {"*.weight": 1 / model[0].out_features, "*.bias": 0.5}  # type: ignore[index,operator,dict-item]

    options: dict[str, Any] = {"draws": 3, "widths": [4, 8], "quantities": "ntk"}
    by_model = ensemble(small, X, rates=weights_over_width, **options).ntk
    weights = ensemble(small, X, parameters="*.weight", **options).ntk
    biases = ensemble(small, X, rates=lambda name, _: float(name.endswith("bias")), **options).ntk
    expected = weights.values / np.array([4, 8])[:, None, None] + 0.5 * biases.values
    np.testing.assert_allclose(by_model, expected, rtol=1e-12)


# --- what must not matter, and what must stay as it is


def test_threads_and_other_widths_do_not_matter() -> None:
    alone = ensemble(small, X, draws=4, widths=4)
    torch.rand(3)
    threads = torch.get_num_threads()
    torch.set_num_threads(1 + threads % 2)
    try:
        again = ensemble(small, X, draws=4, widths=[4, 9])
    finally:
        torch.set_num_threads(threads)
    for name in alone.data.data_vars:
        np.testing.assert_allclose(again.data[name][0], alone.data[name][0], rtol=1e-12, atol=1e-15)


def test_order_of_inputs() -> None:
    whole = ensemble(small, X, draws=4)
    turned = ensemble(small, X.flip(0), draws=4)
    np.testing.assert_allclose(turned.ntk, whole.ntk[:, ::-1, ::-1], rtol=1e-12)
    np.testing.assert_allclose(turned.outputs_mean, whole.outputs_mean[:, ::-1], rtol=1e-12)


def test_random_states_stay() -> None:
    def noisy() -> nn.Module:
        random.random()
        np.random.rand(2)  # noqa: NPY002
        return small()

    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    ensemble(noisy, X, draws=3)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1][1])  # type: ignore[index]  # noqa: NPY002
    assert random.getstate() == states[2]


def test_functions_may_draw_from_any_stream() -> None:
    def make() -> nn.Module:
        network = nn.Linear(3, 1, bias=False).double()
        draws = [random.gauss(0, 1), *np.random.randn(2)]  # noqa: NPY002
        network.weight.data[:] = torch.tensor(draws)
        return network

    first = ensemble(make, X, draws=3)
    random.random()
    np.random.rand()  # noqa: NPY002
    second = ensemble(make, X, draws=3)
    assert first.data.identical(second.data)
    assert (first.variance["outputs"] > 0).all()


def test_a_module_is_copied_and_reset() -> None:
    model = nn.Sequential(small(), nn.Linear(2, 1).double())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    inputs = X.clone()
    found = ensemble(model, inputs, draws=4)
    assert "each with the reset_parameters() of its modules" in found.route
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(inputs, X)
    assert not found.widths
    assert (found.variance["ntk"] > 0).all()


def test_attention_is_reset_as_it_is_built() -> None:
    """Its biases start at zero, which a reset of its parts alone would not give."""
    layer = nn.MultiheadAttention(4, 2, batch_first=True).double()
    x = torch.randn(2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    options: dict[str, Any] = {"output": 0, "draws": 300, "quantities": "nngp"}
    reset = ensemble(layer, (x, x, x), **options)
    built = ensemble(
        lambda: nn.MultiheadAttention(4, 2, batch_first=True).double(), (x, x, x), seed=1, **options
    )
    error = np.hypot(reset.standard_error["nngp"], built.standard_error["nngp"])
    assert np.abs((reset.nngp - built.nngp) / error).max() < 4


def test_inputs_that_the_network_writes_into_stay() -> None:
    inputs = X.clone()
    ensemble(lambda: nn.Sequential(nn.ReLU(inplace=True), small()), inputs, draws=2)
    assert torch.equal(inputs, X)


# --- kinds of input


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2).double()

    def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
        return {"sum": self.layer(left) + self.layer(right), "count": torch.tensor(1)}


def test_inputs_by_name_and_arrays() -> None:
    tensors = ensemble(
        Named, {"left": X, "right": 2 * X}, {"left": X[:1], "right": X[:1]}, draws=3, output="sum"
    )
    arrays = ensemble(
        Named,
        {"left": X.numpy(), "right": 2 * X.numpy().astype(np.float32)},
        (X[:1].numpy(), X[:1].numpy()),
        draws=3,
        output="sum",
    )
    np.testing.assert_allclose(tensors.ntk[0], (3 * X @ (2 * X[:1]).T).numpy() + 4, rtol=1e-12)
    np.testing.assert_allclose(arrays.ntk, tensors.ntk, rtol=1e-6)


def test_single_precision_and_batches_as_ntk_takes_them() -> None:
    found = ensemble(lambda: nn.Linear(3, 2), X.numpy(), draws=3)
    assert found.ntk.dtype == np.float64
    np.testing.assert_allclose(found.ntk[0], GRAM + 1, rtol=1e-5)


# --- the result


def test_the_result_presents_itself(tmp_path: Any) -> None:
    found = ensemble(lambda n: Ntk(3, n, 2), X, draws=5, widths=(8, 4, 16))
    assert found.widths == [4, 8, 16]
    assert found.ntk.dims == ("width", "input_1", "input_2")
    assert found.outputs_mean.dims == ("width", "input_1", "output")
    text = repr(found)
    assert text.startswith("5 networks of each width 4, 8, 16, drawn anew, on 4 inputs: NNGP ")
    assert "at infinite width" in text
    assert "networks one after the other" in found.route
    assert "<table" in found._repr_html_()
    assert found.to_dict()["tables"][0]["rows"][0]["width"] == 4
    assert "ntk_limit_error" in found.to_dataset()
    assert found.plot(path=tmp_path / "kernels.png").axes
    for one in (
        ensemble(small, X, draws=3, widths=4),
        ensemble(small, X, draws=3, quantities="outputs"),
        ensemble(lambda: nn.Conv1d(3, 2, 1).double(), X[:, :, None].expand(4, 3, 2), draws=3, channel_axis=1),
    ):
        assert "infinite" not in repr(one)
        assert one.plot().axes


def test_only_what_is_asked_for_is_measured() -> None:
    found = ensemble(small, X, draws=3, quantities=["nngp"])
    assert not [name for name in found.data.data_vars if "ntk" in str(name) or "outputs" in str(name)]
    with pytest.raises(InputError, match="ntk was not measured: add it to the quantities"):
        _ = found.ntk
    with pytest.raises(InputError, match="one width has no limit: give ensemble two or more"):
        found.extrapolated("nngp")
    with pytest.raises(InputError, match="unknown quantity 'kernel'"):
        ensemble(small, X, draws=2, widths=[2, 3]).extrapolated("kernel")


# --- what is refused


class Bare(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.weight = nn.Parameter(scale * torch.randn(2, 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight.T


def same() -> nn.Module:
    torch.manual_seed(0)
    return small()


def training_dropout() -> nn.Module:
    return nn.Sequential(small(), nn.Dropout(0.5))


def training_norm() -> nn.Module:
    return nn.Sequential(small(), nn.BatchNorm1d(2).double())


REFUSED: dict[str, tuple[Any, dict[str, Any], type[ForetrainError], str]] = {
    "no function": (3, {}, InputError, r"make is a int: give a function that builds the model"),
    "no module": (lambda: 3, {}, InputError, "make returns a int: let it return an nn.Module"),
    "no widths": (
        lambda width: small(width),
        {},
        InputError,
        r"make takes a width: say which ones with widths=",
    ),
    "no width taken": (lambda: small(), {"widths": [2, 3]}, InputError, r"write it as make\(width\)"),
    "a module has one width": (small(), {"widths": [2]}, InputError, r"pass a function make\(width\)"),
    "empty widths": (small, {"widths": []}, InputError, "widths is empty: give at least one"),
    "widths that are no numbers": (
        small,
        {"widths": [2.5]},
        InputError,
        "widths is 2.5: give a positive whole",
    ),
    "one draw": (small, {"draws": 1}, InputError, "draws is 1: give a whole number, at least 2"),
    "unknown quantity": (
        small,
        {"quantities": "ntks"},
        InputError,
        "unknown quantity 'ntks' in quantities: did",
    ),
    "no quantity": (
        small,
        {"quantities": ()},
        InputError,
        "quantities is empty: give some of outputs, nngp, ntk",
    ),
    "shape": (
        lambda n: nn.Linear(3, n).double(),
        {"widths": [2, 3]},
        InputError,
        r"change their shape \(\(4, 2\) at width 2, \(4, 3\) at width 3\): let make change hidden widths only",
    ),
    "not finite": (
        lambda: Bare(float("inf")),
        {},
        InputError,
        "outputs on x that are not finite: let make draw",
    ),
    "same draws": (same, {}, InputError, "two draws have the same parameters: let make draw new ones"),
    "no reset": (
        nn.Sequential(small(), nn.Sequential(Bare())),
        {},
        NotSupportedError,
        r"1\.0 \(Bare\) has parameters but no reset_parameters\(\): pass a function that builds the model",
    ),
    "dropout": (training_dropout, {}, NotSupportedError, r"1 \(Dropout\) drops .* call model.eval\(\)"),
    "batch norm": (
        training_norm,
        {},
        NotSupportedError,
        r"1 \(BatchNorm1d\) normalises .*call model.eval\(\)",
    ),
    "channel axis": (
        small,
        {"channel_axis": 2},
        InputError,
        r"channel_axis is 2, .* shape \(4, 2\): give an axis",
    ),
    "samples as channels": (
        small,
        {"channel_axis": 0},
        InputError,
        "channel_axis is 0, .* behind the samples",
    ),
    "dtype": (lambda: nn.Linear(3, 1), {}, InputError, "x is float64, but the model is float32: convert one"),
    "size of x2": (small, {"x2": X[:, :2]}, InputError, r"cannot be called on x2 of shape \(4, 2\)"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case: str) -> None:
    make, options, kind, message = REFUSED[case]
    state = torch.get_rng_state()
    with pytest.raises(kind, match=message) as caught:
        ensemble(make, X, **options)
    assert "\n" not in str(caught.value)
    assert torch.equal(torch.get_rng_state(), state)


def test_too_large_for_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    with pytest.raises(NotEnoughMemoryError, match="an ensemble of 20000 networks on 4 inputs needs about"):
        ensemble(small, X, draws=20_000)


def test_a_deadline_stops_it() -> None:
    with pytest.raises(OutOfTimeError), within(Deadline(0.0)):
        ensemble(small, X, draws=10)
