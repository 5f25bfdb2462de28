"""Products with the tangent kernel, against Jacobians that are written out."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from foretrain.empirical import ntk
from foretrain.empirical.kernel_operator import NTKOperator, ntk_operator
from foretrain.support.errors import InputError, NotSupportedError

FORWARD, DOUBLE, ROWS = "forward mode", "double backward", "one backward pass per output"


class Recurrent(nn.Module):
    def __init__(self, cell: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cell = cell(3, 4, batch_first=True)
        self.readout = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.cell(x)[0][:, -1])


class Tied(nn.Module):
    """Embedding and readout share one table."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 4)
        self.middle = nn.Linear(4, 4)
        self.readout = nn.Linear(4, 6)
        self.readout.weight = self.table.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(torch.tanh(self.middle(self.table(x).mean(1))))


class Idle(nn.Module):
    """A parameter that nothing uses, and a checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.idle, self.linear, self.readout = nn.Linear(2, 2), nn.Linear(3, 4), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(checkpoint(lambda z: torch.tanh(self.linear(z)), x, use_reentrant=False))


class OutOfSight(nn.Module):
    """A factor that backward passes take for a constant, but forward mode does not."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        found = self.linear(x)
        with torch.no_grad():
            size = self.linear.weight.abs().sum()
        return found * size


class Doubled(torch.autograd.Function):
    """Knows neither forward mode nor batches nor second derivatives."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        return x.detach() ** 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return 3 * gradient


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return Doubled.apply(self.linear(x))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.ReLU(inplace=True), nn.Linear(5, 4), nn.GELU(), nn.Linear(4, 2))


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Tanh(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    ).eval()


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True)
    return nn.Sequential(
        nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Flatten(), nn.Linear(32, 2)
    )


def real(*shape: int) -> Callable[[int], Tensor]:
    return lambda count: torch.randn(count, *shape, generator=torch.Generator().manual_seed(count))


def tokens(count: int) -> Tensor:
    return torch.randint(0, 6, (count, 3), generator=torch.Generator().manual_seed(count))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[int], Tensor], str]] = {
    "mlp": (mlp, real(3), FORWARD),
    "cnn": (cnn, real(2, 6, 6), FORWARD),
    "gru": (lambda: Recurrent(nn.GRU), real(4, 3), FORWARD),
    "lstm": (lambda: Recurrent(nn.LSTM), real(4, 3), FORWARD),
    "encoder in training mode": (encoder, real(4, 8), FORWARD),
    "encoder in evaluation mode": (lambda: encoder().eval(), real(4, 8), FORWARD),
    "embedding tied to the readout": (Tied, tokens, FORWARD),
    "sparse embedding": (
        lambda: nn.Sequential(nn.Embedding(6, 2, sparse=True), nn.Flatten(), nn.Linear(6, 2)),
        tokens,
        FORWARD,
    ),
    "weight norm": (
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(3, 5)), nn.Tanh(), nn.Linear(5, 2)
        ),
        real(3),
        DOUBLE,
    ),
    "idle parameter and checkpoint": (Idle, real(3), FORWARD),
    "gradient out of sight": (OutOfSight, real(3), DOUBLE),
    "embedding bag": (lambda: nn.Sequential(nn.EmbeddingBag(6, 4), nn.Linear(4, 2)), tokens, ROWS),
    "custom function": (Custom, real(3), ROWS),
}


def made(name: str) -> tuple[nn.Module, Callable[[int], Tensor], str]:
    make, inputs, way = CASES[name]
    torch.manual_seed(1)
    return make().double(), lambda count: _double(inputs(count)), way


def _double(x: Tensor) -> Tensor:
    return x.double() if x.is_floating_point() else x


def jacobian(model: nn.Module, x: Tensor) -> dict[str, Tensor]:
    """(samples * outputs, entries) of every parameter, one backward pass per row."""
    names, values = zip(*model.named_parameters())
    rows = [
        torch.autograd.grad(row, values, retain_graph=True, allow_unused=True, materialize_grads=True)
        for row in model(x).reshape(-1)
    ]
    return {
        name: torch.stack([row[i].to_dense().reshape(-1) for row in rows]) for i, name in enumerate(names)
    }


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found, expected, rtol=0, atol=1e-10 * float(expected.abs().max()))


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("name", CASES)
def test_products_are_those_of_the_jacobians(name: str) -> None:
    model, inputs, way = made(name)
    x, x2 = inputs(5), inputs(4)
    operator = ntk_operator(model, x, x2, rates=0.5, batch_size=3)
    left, right = jacobian(model, x), jacobian(model, x2)
    kernel = sum(0.5 * left[key] @ right[key].T for key in left)
    assert isinstance(kernel, Tensor)
    assert operator.shape == kernel.shape
    assert operator.routes["pushforward"].startswith(way)
    vectors = torch.randn(3, 4, operator.shape[1] // 4, dtype=torch.float64)
    expected = vectors.flatten(1) @ kernel.T
    assert close(operator.matmat(vectors).flatten(1), expected)
    assert close(operator.matvec(vectors[0].flatten()), expected[0])
    back = torch.randn(operator.shape[0], dtype=torch.float64)
    assert close(operator.rmatvec(back), kernel.T @ back)
    assert close(operator.dense(), kernel)
    gradient = operator.gradient(vectors[0])
    for key in right:
        assert close(gradient[key].flatten() + 1, vectors[0].flatten() @ right[key] + 1)
    change = {key: torch.randn_like(value) for key, value in gradient.items()}
    moved = sum(left[key] @ change[key].flatten() for key in left)
    assert isinstance(moved, Tensor)
    assert close(operator.pushforward(change).flatten(), moved)


@pytest.mark.parametrize("batch_size", ["auto", 1, 2, 5])
def test_the_operator_is_the_kernel_of_ntk(batch_size: Any) -> None:
    model, inputs, _ = made("mlp")
    x = inputs(5)
    rates = {"0": 0.3, "4.bias": 2.0}
    values = ntk(model, x, outputs=[1], parameters=["0", "4.bias"], rates=rates).values
    operator = ntk_operator(
        model, x, outputs=[1], parameters=["0", "4.bias"], rates=rates, batch_size=batch_size
    )
    assert operator.outputs == (1,)
    assert list(operator.gradient(torch.ones(5))) == ["0.weight", "0.bias", "4.bias"]
    assert close(operator.dense(), values[:, :, 0, 0])
    v = torch.randn(5, 1, dtype=torch.float64)
    assert operator.quadratic(v) == pytest.approx(float(v.flatten() @ values[:, :, 0, 0] @ v.flatten()))


def test_fused_recurrent_kernels_in_single_precision() -> None:
    torch.manual_seed(0)
    model, x = Recurrent(nn.LSTM), real(4, 3)(4)
    operator = ntk_operator(model, x)
    precise = ntk_operator(copy.deepcopy(model).double(), x.double())
    assert operator.dtype == torch.float32
    assert operator.routes["pushforward"].startswith(FORWARD)
    v = torch.randn(4, 2)
    torch.testing.assert_close(operator.matvec(v).double(), precise.matvec(v), rtol=1e-4, atol=1e-5)


def test_attention_that_is_only_fused() -> None:
    """The CPU's flash kernel has neither forward mode nor second derivatives; it is written out instead."""

    def attend(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        q, k, v = (x @ parameters["qkv"]).chunk(3, -1)
        found = nn.functional.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], is_causal=True)
        return found.flatten(1) @ parameters["out"]

    generator = torch.Generator().manual_seed(0)
    parameters = {
        "qkv": torch.randn(4, 12, generator=generator).double().requires_grad_(),
        "out": torch.randn(12, 2, generator=generator).double().requires_grad_(),
    }
    x = real(3, 4)(5).double()
    operator = ntk_operator(attend, x, parameters=parameters)
    expected = ntk(attend, x, parameters=parameters).values
    assert operator.routes["pushforward"].startswith(FORWARD)
    assert close(operator.dense(), expected.permute(0, 2, 1, 3).reshape(10, 10))


def test_dicts_of_arguments_and_outputs_by_name() -> None:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(2, 3), nn.Linear(3, 3)

        def forward(self, left: Tensor, right: Tensor) -> dict[str, Tensor]:
            return {"logits": torch.tanh(self.first(left)) * self.second(right), "loss": left.sum()}

    model = Pair().double()
    x = {"right": real(3)(4).double(), "left": real(2)(4).double()}
    operator = ntk_operator(model, x, output="logits")
    expected = ntk(model, x, output="logits").values.permute(0, 2, 1, 3).reshape(12, 12)
    assert close(operator.dense(), expected)


def test_products_follow_the_parameters() -> None:
    model, inputs, _ = made("mlp")
    x, v = inputs(4), torch.ones(4, 2, dtype=torch.float64)
    operator = ntk_operator(model, x)
    with torch.no_grad():
        model[0].weight *= 2
    assert close(operator.matvec(v), ntk_operator(model, x).matvec(v))
    assert close(operator.model_outputs(), model(x).detach())


def test_nothing_is_left_on_the_model() -> None:
    model, inputs, _ = made("encoder in evaluation mode")
    before = copy.deepcopy(model.state_dict())
    ntk_operator(model, inputs(3)).matvec(torch.ones(6))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None and value.requires_grad for value in model.parameters())
    assert not model.training
    assert torch.backends.mha.get_fastpath_enabled()


def test_the_scipy_view() -> None:
    model, inputs, _ = made("gru")
    operator = ntk_operator(model, inputs(4), inputs(3))
    view, dense = operator.linear_operator(), operator.dense().numpy()
    columns = np.random.default_rng(0).normal(size=(6, 4))
    assert view.shape == (8, 6)
    np.testing.assert_allclose(view @ columns, dense @ columns, atol=1e-12)
    np.testing.assert_allclose(view @ columns[:, 0], dense @ columns[:, 0], atol=1e-12)
    np.testing.assert_allclose(view.T @ np.ones(8), dense.T @ np.ones(8), atol=1e-12)


def test_scaling_of_outputs_and_rates() -> None:
    model, inputs, _ = made("cnn")
    x, v = inputs(4), torch.randn(4, 2, dtype=torch.float64)
    plain = ntk_operator(model, x).matvec(v)
    assert close(ntk_operator(model, x, output=lambda found: 3 * found).matvec(v), 9 * plain)
    assert close(ntk_operator(model, x, rates=0.1).matvec(v), 0.1 * plain)
    assert close(ntk_operator(model, x).matvec(-2 * v), -2 * plain)


def wide() -> tuple[NTKOperator, Tensor]:
    model, inputs, _ = made("mlp")
    x = inputs(12)
    kernel = ntk(model, x).values
    return ntk_operator(model, x), kernel.permute(0, 2, 1, 3).reshape(24, 24)


def test_trace_and_diagonal_within_their_standard_errors() -> None:
    operator, kernel = wide()
    trace = operator.trace(probes=400, seed=1)
    # The variance of one random-sign probe is 2 sum of the squared entries off the diagonal.
    off = kernel - torch.diag(kernel.diagonal())
    assert trace.standard_error == pytest.approx(float((2 * off**2).sum() / 400) ** 0.5, rel=0.25)
    assert abs(trace.value - float(kernel.trace())) < 3.5 * trace.standard_error
    diagonal = operator.diagonal(probes=400, seed=1)
    z = (diagonal.value - kernel.diagonal().reshape(12, 2).numpy()) / diagonal.standard_error
    assert np.abs(z).max() < 4.2
    assert 0.6 < np.sqrt((z**2).mean()) < 1.5
    assert diagonal.value.sum() == pytest.approx(trace.value)


def test_estimates_repeat_with_their_seed() -> None:
    operator, _ = wide()
    assert operator.trace(8, seed=3).value == operator.trace(8, seed=3).value
    assert operator.trace(8, seed=3).value != operator.trace(8, seed=4).value
    assert "±" in repr(operator.trace(8))
    assert "8 random-sign probes, seed 0" in repr(operator.trace(8))
    assert "shape (12, 2)" in repr(operator.diagonal(8))


def test_the_repr_teaches() -> None:
    operator, _ = wide()
    text = repr(operator)
    assert all(part in text for part in ("24 x 24", "12 x 12 samples", FORWARD, ".matvec"))


def test_chunks_of_vectors_and_samples_under_little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    operator, kernel = wide()
    seen: list[tuple[int, int]] = []
    run = operator.ways.push.run

    def counted(linear: Any, batch: Any, tangents: Any) -> Tensor:
        seen.append((batch.count, len(next(iter(tangents.values())))))
        return run(linear, batch, tangents)

    ways = replace(operator.ways, push=replace(operator.ways.push, run=counted))
    room = 4 * 2.0 * operator.bytes_per_sample + 8 * 1200.0
    monkeypatch.setattr(NTKOperator, "_room", lambda self: room)
    operator.ways = ways
    assert close(operator.dense(), kernel)
    assert max(samples for samples, _ in seen) < 12
    assert 1 < max(vectors for _, vectors in seen) < 24


def test_bad_input_is_named() -> None:
    model, inputs, _ = made("mlp")
    x = inputs(4)
    operator = ntk_operator(model, x)
    with pytest.raises(InputError, match=r"\(4, 2\).*\(8,\).*\(3, 2\)"):
        operator.matvec(torch.ones(3, 2))
    with pytest.raises(InputError, match="use matmat for a block"):
        operator.matvec(torch.ones(2, 4, 2))
    with pytest.raises(InputError, match=r"\(k, 4, 2\)"):
        operator.matmat(torch.ones(4, 2))
    with pytest.raises(InputError, match="not finite"):
        operator.matvec(torch.full((4, 2), torch.nan))
    with pytest.raises(InputError, match="'nothing' is no parameter"):
        operator.pushforward({"nothing": torch.ones(1)})
    with pytest.raises(InputError, match=r"'0.bias' .*\(3,\)"):
        operator.pushforward({"0.bias": torch.ones(3)})
    with pytest.raises(InputError, match="leave x2 out"):
        ntk_operator(model, x, x).trace()
    with pytest.raises(InputError, match="has no operator"):
        ntk_operator(model, x, outputs="trace")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="batch_size"):
        ntk_operator(model, x, batch_size=0)
    with pytest.raises(InputError, match="at least 2"):
        operator.trace(probes=1)
    with pytest.raises(NotSupportedError, match=r"model\.eval\(\)"):
        ntk_operator(nn.Sequential(model, nn.Dropout(0.1)), x)
