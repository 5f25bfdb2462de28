"""A network as a quadratic model: against Hessians written out, real training, and the estimator."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch import nn
from torch.func import functional_call, jacrev

from foretrain.empirical.quadratic_features import NetworkFeatures
from foretrain.support.errors import AccuracyWarning, InputError, NotSupportedError
from foretrain.theory.prediction.nearly_kernel import (
    ALGORITHMS,
    FeatureModel,
    NearlyKernelRegressor,
    QuadraticModel,
    descend_in_sample_space,
    solve,
    train,
)

RNG = np.random.default_rng(2)
X = RNG.normal(size=(5, 3))
Y = RNG.normal(size=(3, 2))
TRAIN, TEST = np.arange(3), np.array([3, 4])
pytestmark = pytest.mark.filterwarnings("ignore::foretrain.support.errors.AccuracyWarning")


def small_network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 5), nn.Sigmoid(), nn.Linear(5, 2)).double()


def rates_of(network: nn.Module) -> dict[str, float]:
    return {name: 0.4 + 0.2 * place for place, (name, _) in enumerate(network.named_parameters())}


def written_out(network: nn.Module, scale: float = 1.0) -> FeatureModel:
    """Jacobian and Hessian of all outputs by all parameters, in units of the roots of the rates."""
    named = dict(network.named_parameters())
    sizes = [value.numel() for value in named.values()]
    flat = torch.cat([value.detach().reshape(-1) for value in named.values()])
    rates = rates_of(network)
    root = np.concatenate([np.full(size, rates[name] ** 0.5) for name, size in zip(named, sizes)])

    def outputs(values: torch.Tensor) -> torch.Tensor:
        parts = dict(zip(named, torch.split(values, sizes)))
        shaped = {name: part.reshape(named[name].shape) for name, part in parts.items()}
        found: torch.Tensor = functional_call(network, shaped, (torch.from_numpy(X),))
        return found

    jacobian, hessian = (d(flat).detach().numpy() for d in (jacrev(outputs), jacrev(jacrev(outputs))))
    start = outputs(flat).detach().numpy()
    return QuadraticModel.from_features(
        lambda places: root * jacobian[places],
        lambda places: root[:, None] * root * hessian[places],
        scale,
        lambda places: start[places],
    )


def test_kernel_meta_kernel_and_outputs_against_derivatives_written_out() -> None:
    network = small_network()
    found, expected = NetworkFeatures(network, rates=rates_of(network)), written_out(network)
    kernel = found.kernel(X, X[:3])
    assert kernel.shape == (5, 3, 2, 2)
    assert kernel.transpose(0, 2, 1, 3).reshape(10, 6) == pytest.approx(
        expected.kernel(np.arange(5), TRAIN), abs=1e-12
    )
    meta_kernel = found.meta_kernel(X, X[:3], X[3:])
    assert meta_kernel.shape == (5, 3, 2, 2, 2, 2)
    flat = meta_kernel.transpose(0, 3, 1, 4, 2, 5).reshape(10, 6, 4)
    assert flat == pytest.approx(expected.meta_kernel(np.arange(5), TRAIN, TEST), abs=1e-12)
    assert found.outputs(X) == pytest.approx(network(torch.from_numpy(X)).detach().numpy(), abs=1e-14)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_predictions_without_tensors_equal_those_of_features_written_out(algorithm: str) -> None:
    network = small_network()
    features = NetworkFeatures(network, rates=rates_of(network))
    expected = solve(written_out(network), TRAIN, Y, algorithm)
    found = solve(features, X[:3], Y, algorithm)
    scale = np.abs(expected.predict(TEST)).max()
    assert found.predict(X[3:]) == pytest.approx(expected.predict(TEST), abs=1e-9 * scale)
    assert found.predict(X[:3]) == pytest.approx(Y, abs=1e-9 * scale)
    everything = np.arange(5)
    kernel = expected.effective_kernel(everything)
    assert found.effective_kernel(X) == pytest.approx(kernel, abs=1e-9 * np.abs(kernel).max())
    assert 0 < found.expansion_parameter <= expected.expansion_parameter
    tensors = solve(features, torch.from_numpy(X[:3]), Y, algorithm)
    assert tensors.predict(torch.from_numpy(X[3:])) == pytest.approx(found.predict(X[3:]), abs=1e-9 * scale)


def test_wired_model_of_a_network_against_its_training() -> None:
    """The closed form of (11.150), with Hessians scaled down: error divided by 4 when their scale is halved."""
    torch.manual_seed(1)
    network, errors = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).double(), []
    for scale in (0.02, 0.01, 0.005):
        model = written_out(network, scale)
        formula = solve(model, TRAIN, Y, "gradient_descent")
        trained = train(model, TRAIN, Y, "gradient_descent", tolerance=1e-10)
        errors.append(np.abs(formula.predict(TEST) - trained.predict(TEST)).max())
    assert np.divide(errors[:-1], errors[1:]) == pytest.approx(4, rel=0.15)


def test_the_estimator_on_a_network_by_model_and_by_kernels() -> None:
    features = NetworkFeatures(small_network())
    direct = NearlyKernelRegressor(model=features, algorithm="flow").fit(X[:3], Y)
    dual = NearlyKernelRegressor(
        kernel=features.kernel,
        meta_kernel=features.meta_kernel,
        offset=features.outputs,
        algorithm="flow",
    ).fit(X[:3], Y)
    assert direct.predict(X[3:]) == pytest.approx(dual.predict(X[3:]), rel=1e-8)
    copy = clone(direct).fit(X[:3], Y)
    assert copy.model is not features
    assert copy.predict(X[3:]) == pytest.approx(direct.predict(X[3:]), rel=1e-12)
    with pytest.raises(InputError, match="leave them out"):
        NearlyKernelRegressor(model=features, epsilon=0.5).fit(X[:3], Y)
    with pytest.raises(InputError, match="y has 1 outputs"):
        NearlyKernelRegressor(model=features).fit(X[:3], Y[:, 0])


def test_sample_space_descent_of_a_network_takes_the_first_real_step() -> None:
    """One step of SGD moves outputs as sample space says, up to η³ (11.9)."""
    network, errors = small_network(), []
    features = NetworkFeatures(network)
    for eta in (0.02, 0.01, 0.005):
        found = descend_in_sample_space(features, X[:3], Y, X[3:], eta, steps=1)
        moved = small_network()
        optimizer = torch.optim.SGD(moved.parameters(), lr=eta)
        loss = 0.5 * ((moved(torch.from_numpy(X[:3])) - torch.from_numpy(Y)) ** 2).sum()
        loss.backward()
        optimizer.step()
        errors.append(np.abs(found.predictions - moved(torch.from_numpy(X[3:])).detach().numpy()).max())
    assert np.divide(errors[:-1], errors[1:]) == pytest.approx(8, rel=0.2)


def test_a_wide_network_really_trained_is_nearer_to_the_quadratic_model_than_to_its_kernel() -> None:
    torch.manual_seed(4)
    network = nn.Sequential(nn.Linear(3, 300), nn.Tanh(), nn.Linear(300, 1)).double()
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(0, 1 / parameter.shape[-1] ** 0.5 if parameter.ndim == 2 else 0.1)
    rates = {"0.weight": 1 / 3, "2.weight": 1 / 300, "0.bias": 1.0, "2.bias": 1.0}
    features = NetworkFeatures(network, rates=rates)
    y = features.outputs(X[:3]) + np.array([[0.05], [-0.04], [0.03]])
    formula = solve(features, X[:3], y, "gradient_descent")
    eta = formula.eta or 0.0
    groups = [{"params": [p], "lr": eta * rates[name]} for name, p in network.named_parameters()]
    optimizer = torch.optim.SGD(groups)
    for _ in range(1500):
        optimizer.zero_grad()
        loss = 0.5 * ((network(torch.from_numpy(X[:3])) - torch.from_numpy(y)) ** 2).sum()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-18
    trained = network(torch.from_numpy(X[3:])).detach().numpy()
    error = np.abs(formula.predict(X[3:]) - trained).max()
    linear_error = np.abs(formula.predict_linear(X[3:]) - trained).max()
    assert error < 0.3 * linear_error
    kernel = NetworkFeatures(network, rates=rates).kernel(X, X)[:, :, 0, 0]
    before = features.kernel(X, X)[:, :, 0, 0]
    left = np.abs(formula.effective_kernel(X)[0] - kernel).max()
    assert left < 0.3 * np.abs(kernel - before).max()


def test_the_copy_stays_at_initialisation_and_in_double_precision() -> None:
    network = small_network().float()
    features = NetworkFeatures(network)
    before = features.outputs(X)
    with torch.no_grad():
        network[0].weight.zero_()
    assert features.outputs(X) == pytest.approx(before, abs=0)
    assert features.tensor(X).dtype == torch.float64
    assert repr(features) == "NetworkFeatures(Sequential with 80 parameters as they were)"
    assert NetworkFeatures(network, dtype=None).tensor(X).dtype == torch.float32
    frozen = NetworkFeatures(small_network(), parameters=["4.*"])
    assert not frozen.meta_kernel(X[:2], X[:2], X[:1]).any()  # linear in its last layer


def test_rates_of_an_optimizer() -> None:
    network = small_network()
    optimizer = torch.optim.SGD(network.parameters(), lr=0.25)
    quarter, plain = NetworkFeatures(network, rates=optimizer), NetworkFeatures(network)
    assert quarter.kernel(X, X) == pytest.approx(0.25 * plain.kernel(X, X), rel=1e-12)
    assert quarter.meta_kernel(X[:2], X[:2], X[:1]) == pytest.approx(
        plain.meta_kernel(X[:2], X[:2], X[:1]) / 16, rel=1e-10
    )


class _Opaque(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, z: torch.Tensor) -> torch.Tensor:
        context.save_for_backward(z)
        return z.sin()

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (z,) = context.saved_tensors
        found: torch.Tensor = gradient * z.cos()
        return found


class _DifferentiableOnce(_Opaque):
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        (z,) = context.saved_tensors
        found: torch.Tensor = gradient * z.cos()
        return found


class _Custom(nn.Linear):
    plain = False

    def __init__(self, n_in: int, n_out: int, function: Any = _Opaque) -> None:
        super().__init__(n_in, n_out)
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inside = super().forward(x)
        found: torch.Tensor = inside.sin() if self.plain else self.function.apply(inside)
        return found


class _Norm(nn.LayerNorm):
    plain = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.plain:
            return super().forward(x)
        centred = x - x.mean(-1, keepdim=True)
        return self.weight * centred / (centred.square().mean(-1, keepdim=True) + self.eps).sqrt() + self.bias


class _Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRU(1, 4, batch_first=True)
        self.readout = nn.Linear(4, 2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.readout(self.cell(x[..., None])[0][:, -1])
        return found


def _after(*layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(*layers, nn.Linear(6, 2))


@pytest.mark.slow(after=2)
@pytest.mark.parametrize(
    "network",
    [
        _after(nn.Linear(3, 6), nn.Tanh(), _Norm(6)),  # nested forward mode of torch is wrong for it
        _after(nn.Linear(3, 6), nn.SiLU()),  # and has no formula without gradients
        _after(_Custom(3, 6)),  # none at all
        _after(
            nn.Unflatten(1, (1, 3)), nn.Conv1d(1, 2, 2, padding=1), nn.GELU(), nn.Flatten(), nn.Linear(8, 6)
        ),
        _Recurrent(),
    ],
    ids=["layer norm", "silu", "custom function", "convolution", "recurrent"],
)
def test_kinds_of_layers_against_derivatives_written_out(network: nn.Module) -> None:
    torch.manual_seed(3)
    for value in network.parameters():
        nn.init.normal_(value, std=0.6)
    network.double()
    found = NetworkFeatures(network, rates=rates_of(network))
    for layer in network.modules():
        if isinstance(layer, _Custom | _Norm):
            layer.plain = True
    model = written_out(network)
    expected = solve(model, TRAIN, Y, "flow")
    here = solve(found, X[TRAIN], Y, "flow")
    assert here.predict(X[TEST]) == pytest.approx(expected.predict(TEST), rel=1e-8, abs=1e-8)
    assert here.effective_kernel(X) == pytest.approx(
        expected.effective_kernel(np.arange(5)), rel=1e-8, abs=1e-8
    )


def test_whole_numbers_reach_an_embedding_through_the_estimator() -> None:
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Embedding(7, 5), nn.Flatten(), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 1)
    )
    tokens, y = np.array([[0, 1], [3, 2], [5, 6], [4, 4]]), 0.1 * np.arange(4.0)
    found = NearlyKernelRegressor(model=NetworkFeatures(network), algorithm="flow").fit(tokens, y)
    assert found.predict(tokens) == pytest.approx(y, abs=1e-9)
    assert pickle.loads(pickle.dumps(found)).predict(tokens) == pytest.approx(y, abs=1e-9)


def test_bad_input() -> None:
    with pytest.raises(InputError, match="torch module"):
        NetworkFeatures(lambda x: x)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="samples are a list"):
        NetworkFeatures(small_network()).points([[1.0, 2.0, 3.0]])
    once = NetworkFeatures(nn.Sequential(_Custom(3, 4, _DifferentiableOnce), nn.Linear(4, 1)).double())
    with pytest.raises(NotSupportedError, match="plain torch operations"):
        solve(once, X[:3], Y[:, 0], "flow")
    with pytest.warns(AccuracyWarning, match="not small"):
        solve(NetworkFeatures(small_network()), X[:3], 100 * Y, "flow")
