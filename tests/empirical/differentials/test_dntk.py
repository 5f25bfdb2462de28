from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

import foretrain as ft
from foretrain.empirical.differentials import Differential, SecondDifferentials, derivatives
from foretrain.support.errors import InputError, NotEnoughMemoryError, NotSupportedError

SAMPLES = 2


class Gated(nn.Module):
    """A cell like a GRU's, used three times on a sequence."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.fresh, self.readout = nn.Linear(5, 3), nn.Linear(5, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 3)
        for step in range(x.shape[1]):
            both = torch.cat([state, x[:, step]], dim=1)
            gate = torch.sigmoid(self.gate(both))
            state = gate * state + (1 - gate) * torch.tanh(self.fresh(both))
        return self.readout(state)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.readout = nn.GRU(2, 3, batch_first=True), nn.Linear(3, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        states = self.cell(x)[0]
        return self.readout(states[:, -1]), states


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(4, 2, 5, 0.0, activation="gelu", batch_first=True)
        self.readout = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.block(x).flatten(1))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "chain": (
        lambda: nn.Sequential(
            nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 4), nn.SiLU(), nn.Linear(4, 2, bias=False)
        ),
        (3,),
    ),
    "relu": (lambda: nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 2)), (3,)),
    "convolution": (
        lambda: nn.Sequential(nn.Conv1d(1, 2, 3), nn.Softplus(), nn.Flatten(), nn.Linear(6, 1)),
        (1, 5),
    ),
    "layer norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4), nn.GELU(), nn.Linear(4, 2)), (3,)),
    "group norm": (
        lambda: nn.Sequential(
            nn.Conv1d(1, 4, 2), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten(), nn.Linear(12, 1)
        ),
        (1, 4),
    ),
    "instance norm": (
        lambda: nn.Sequential(
            nn.Conv1d(1, 2, 2), nn.InstanceNorm1d(2, affine=True), nn.Tanh(), nn.Flatten(), nn.Linear(8, 1)
        ),
        (1, 5),
    ),
    "rms norm": (lambda: nn.Sequential(nn.Linear(3, 4), nn.RMSNorm(4), nn.Tanh(), nn.Linear(4, 1)), (3,)),
    "weight norm": (
        lambda: nn.Sequential(weight_norm(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2)),
        (3,),
    ),
    "gated cell": (Gated, (3, 2)),
    "attention": (Attention, (2, 4)),
    "skip": (lambda: Skip(), (3,)),
}


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(x + torch.sin(self.first(x)))


def made(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(3)
    build, shape = MODELS[name]
    return build().double(), torch.randn(SAMPLES, *shape, dtype=torch.float64)


class Brute:
    """z(θ + Σ s_b g_b) of a vector s, and its differences; no derivative but the first is automatic."""

    def __init__(self, model: nn.Module, x: Tensor, rates: dict[str, float] | None = None) -> None:
        self.model, self.x = model, x
        self.parameters = {name: value.detach() for name, value in model.named_parameters()}
        self.rates = {name: (rates or {}).get(name, 1.0) for name in self.parameters}
        self.gradients = self.jacobian(self.parameters)
        self.legs = len(next(iter(self.gradients.values())))

    def jacobian(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        leaves = {name: value.clone().requires_grad_() for name, value in values.items()}
        outputs = self.outputs(leaves)
        rows = [torch.autograd.grad(output, list(leaves.values()), retain_graph=True) for output in outputs]
        return {
            name: torch.stack(column) for name, column in zip(leaves, zip(*rows, strict=True), strict=True)
        }

    def outputs(self, values: dict[str, Tensor]) -> Tensor:
        return torch.func.functional_call(self.model, values, (self.x,)).flatten()

    def moved(self, s: Tensor) -> dict[str, Tensor]:
        return {
            name: value + self.rates[name] * torch.tensordot(s, self.gradients[name], dims=1)
            for name, value in self.parameters.items()
        }

    def kernel_along(self, s: Tensor) -> Tensor:
        """∇z_a(θ + s) · g_b with g_b of θ, so that derivatives by s are dH_abc, dd_I_abcd, …"""
        there = self.jacobian(self.moved(s))
        return sum(
            self.rates[name] * there[name].flatten(1) @ self.gradients[name].flatten(1).T for name in there
        )

    def dntk(self, step: float = 1e-5) -> Tensor:
        """Central differences of :meth:`kernel_along`."""
        units = step * torch.eye(self.legs, dtype=torch.float64)
        columns = [(self.kernel_along(e) - self.kernel_along(-e)) / (2 * step) for e in units]
        return torch.stack(columns, dim=-1)

    def third(self, step: float = 3e-4) -> Tensor:
        """Second differences of the same, in all pairs of directions."""
        units = step * torch.eye(self.legs, dtype=torch.float64)
        found = torch.empty((self.legs,) * 4, dtype=torch.float64)
        for (c, one), (d, two) in itertools.product(enumerate(units), repeat=2):
            difference = self.kernel_along(one + two) - self.kernel_along(one - two)
            difference = difference - self.kernel_along(two - one) + self.kernel_along(-one - two)
            found[:, :, c, d] = difference / (4 * step**2)
        return found

    def second(self, step: float = 1e-5) -> Tensor:
        """u_ac by central differences of ∇z_a along g_c, and their products."""
        units = step * torch.eye(self.legs, dtype=torch.float64)
        total = torch.zeros((self.legs,) * 4, dtype=torch.float64)
        sides = [(self.jacobian(self.moved(e)), self.jacobian(self.moved(-e))) for e in units]
        for name in self.parameters:
            u = torch.stack([(up[name] - down[name]).flatten(1) / (2 * step) for up, down in sides], dim=1)
            total += self.rates[name] * torch.einsum("acp,bdp->abcd", u, u)
        return total


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert float((found - expected).abs().max()) < tolerance * float(expected.abs().max())


@pytest.mark.parametrize("name", MODELS)
def test_dntk_against_differences_of_gradients(name: str) -> None:
    model, x = made(name)
    found = ft.dntk(model, x)
    outputs = model(x).shape[1]
    assert found.shape == (SAMPLES,) * 3 + (outputs,) * 3
    close(found.joint(), Brute(model, x).dntk(), 1e-7)
    assert found.route == ("layer by layer" if name in ("chain", "relu") else "nested forward mode")


@pytest.mark.parametrize("name", ["chain", "layer norm", "weight norm", "gated cell", "convolution", "skip"])
def test_ddntk_against_differences_of_gradients(name: str) -> None:
    model, x = made(name)
    found = ft.ddntk(model, x)
    brute = Brute(model, x)
    close(found.dd_I.joint(), brute.third(), 3e-5)
    close(found.dd_II.joint(), brute.second(), 1e-7)


def test_order_of_the_axes() -> None:
    """Index 0 is the output that is differentiated twice: dH_aab of a product w_1 w_2 x and of w_1 x."""
    x, w = torch.tensor([[2.0], [3.0]], dtype=torch.float64), torch.tensor([0.5, 0.7], dtype=torch.float64)

    def model(parameters: Tensor, x: Tensor) -> Tensor:
        return torch.cat([parameters[0] * parameters[1] * x, parameters[:1] * x], dim=1)

    found = ft.dntk(model, x, parameters=w.requires_grad_())
    inputs = x[:, 0]
    product = torch.einsum("a,b,c->abc", inputs, inputs, inputs)
    # The gradients are (w_2, w_1) x of output 0 and (1, 0) x of output 1; the Hessian of output 0 is x times a flip.
    torch.testing.assert_close(found[..., 0, 0, 0], 2 * 0.5 * 0.7 * product)
    torch.testing.assert_close(found[..., 0, 0, 1], 0.5 * product)
    torch.testing.assert_close(found[..., 0, 1, 1], 0 * product)
    torch.testing.assert_close(found[..., 1, 0, 0], 0 * product)
    assert found.dims == ("input_0", "input_1", "input_2", "output_0", "output_1", "output_2")


@pytest.mark.parametrize("name", ["chain", "gated cell"])
def test_symmetries(name: str) -> None:
    model, x = made(name)
    first, second = ft.dntk(model, x).joint(), ft.ddntk(model, x)
    torch.testing.assert_close(first, first.transpose(1, 2), rtol=1e-10, atol=1e-12)
    for order in itertools.permutations((1, 2, 3)):
        torch.testing.assert_close(
            second.dd_I.joint(), second.dd_I.joint().permute(0, *order), rtol=1e-10, atol=1e-12
        )
    crossed = second.dd_II.joint()
    torch.testing.assert_close(crossed, crossed.permute(1, 0, 3, 2), rtol=1e-10, atol=1e-12)
    assert float((crossed - crossed.transpose(0, 1)).abs().max()) > 1e-3


@pytest.mark.parametrize("name", ["chain", "gated cell"])
def test_a_restriction_is_a_slice_of_all(name: str) -> None:
    model, _ = made(name)
    x = torch.randn(4, *MODELS[name][1], dtype=torch.float64)
    whole, part = ft.dntk(model, x), ft.dntk(model, x, outputs=[1], samples=[3, 0])
    chosen = whole.values[[3, 0]][:, [3, 0]][:, :, [3, 0]][..., 1:, 1:, 1:]
    torch.testing.assert_close(part.values, chosen, rtol=1e-10, atol=1e-12)
    everything, some = ft.ddntk(model, x[:3]), ft.ddntk(model, x, outputs=[0], samples=[2])
    for one, all_of_it in ((some.dd_I, everything.dd_I), (some.dd_II, everything.dd_II)):
        expected = all_of_it.values[2:, 2:, 2:, 2:, :1, :1, :1, :1]
        torch.testing.assert_close(one.values, expected, rtol=1e-10, atol=1e-12)
    assert part.to_xarray()["input_1"].values.tolist() == [3, 0]
    assert part.to_xarray()["output_2"].values.tolist() == [1]


@pytest.mark.parametrize("name", ["chain", "gated cell"])
def test_rates_weigh_parameters(name: str) -> None:
    model, x = made(name)
    rates = {key: 0.3 + 0.2 * number for number, (key, _) in enumerate(model.named_parameters())}
    brute = Brute(model, x, rates)
    close(ft.dntk(model, x, rates=rates).joint(), brute.dntk(), 1e-7)
    close(ft.ddntk(model, x, rates=rates).dd_II.joint(), brute.second(), 1e-7)
    groups = [{"params": [value], "lr": rates[key]} for key, value in model.named_parameters()]
    torch.testing.assert_close(ft.dntk(model, x, rates=groups).values, ft.dntk(model, x, rates=rates).values)


def test_parameters_that_are_left_out_do_not_move() -> None:
    model, x = made("chain")
    torch.testing.assert_close(
        ft.dntk(model, x, parameters=["0", "2.weight"]).values,
        ft.dntk(model, x, rates={"2.bias": 0.0, "4.weight": 0.0}).values,
    )
    assert not ft.dntk(model, x, parameters=["4.*"]).values.any()  # linear in them


@pytest.mark.parametrize("order", [2, 3])
def test_all_routes_agree(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made("gated cell")
    run = ft.dntk if order == 2 else lambda *given: ft.ddntk(*given).dd_I
    found = run(model, x)
    assert found.route == "nested forward mode"

    def refused(*_: object) -> Tensor:
        raise NotImplementedError

    monkeypatch.setattr(derivatives, "_by_forward_mode", refused)
    other = run(model, x)
    assert other.route == "nested backward passes"
    torch.testing.assert_close(found.values, other.values, rtol=1e-10, atol=1e-12)


def test_a_wrong_forward_mode_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made("gated cell")
    right, forward = ft.dntk(model, x), derivatives._by_forward_mode
    monkeypatch.setattr(derivatives, "_by_forward_mode", lambda *given: 1.0001 * forward(*given))
    found = ft.dntk(model, x)
    assert found.route == "nested backward passes"
    torch.testing.assert_close(found.values, right.values)
    monkeypatch.setattr(derivatives, "_by_backward_passes", derivatives._by_forward_mode)
    with pytest.raises(NotSupportedError, match="plain torch"):
        ft.dntk(model, x)


class OldStyle(torch.autograd.Function):
    """sin without forward mode and without batching, its derivative by the same rule."""

    @staticmethod
    def forward(ctx, x: Tensor, order: int) -> Tensor:  # type: ignore[no-untyped-def, override]
        ctx.save_for_backward(x)
        ctx.order = order
        return torch.sin(x + order * torch.pi / 2)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[no-untyped-def, override]
        (x,) = ctx.saved_tensors
        return gradient * OldStyle.apply(x, ctx.order + 1), None


def test_functions_without_forward_mode() -> None:
    torch.manual_seed(0)
    w = torch.randn(3, 2, dtype=torch.float64).requires_grad_()
    x = torch.randn(2, 2, dtype=torch.float64)

    def written(parameters: Tensor, x: Tensor, sine: Callable[[Tensor], Tensor]) -> Tensor:
        return (sine(x @ parameters.T) * parameters[:, 0]).sum(1, keepdim=True)

    old = lambda p, x: written(p, x, lambda z: OldStyle.apply(z, 0))  # noqa: E731
    new = lambda p, x: written(p, x, torch.sin)  # noqa: E731
    found = ft.dntk(old, x, parameters=w)
    assert found.route == "nested backward passes"
    torch.testing.assert_close(found.values, ft.dntk(new, x, parameters=w).values)
    one, other = ft.ddntk(old, x, parameters=w), ft.ddntk(new, x, parameters=w)
    torch.testing.assert_close(one.dd_I.values, other.dd_I.values)
    torch.testing.assert_close(one.dd_II.values, other.dd_II.values)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_recurrent_layers(dtype: torch.dtype) -> None:
    """The fused kernels of torch have no second derivatives; the layer is run without them."""
    torch.manual_seed(0)
    model, x = Recurrent().to(dtype), torch.randn(2, 3, 2, dtype=dtype)
    found = ft.dntk(model, x, output=0)
    assert found.values.dtype == dtype
    wide = Brute(OnlyFirst(model).double(), x.double()).dntk()
    close(found.joint().double(), wide, 1e-7 if dtype == torch.float64 else 1e-4)


class OnlyFirst(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[0]


def test_scaling_of_inputs_of_a_bilinear_model() -> None:
    """z = v · W x: dH scales with the cube of the inputs."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4, bias=False), nn.Linear(4, 1, bias=False)).double()
    x = torch.randn(2, 3, dtype=torch.float64)
    torch.testing.assert_close(ft.dntk(model, 2 * x).values, 8 * ft.dntk(model, x).values)
    assert not ft.ddntk(model, x).dd_I.values.any()  # no third derivative


def test_one_layer_is_linear() -> None:
    model, x = nn.Linear(3, 2).double(), torch.randn(2, 3, dtype=torch.float64)
    assert not ft.dntk(model, x).values.any()


def test_presentation() -> None:
    model, x = made("relu")
    found = ft.dntk(model, x)
    assert isinstance(found, Differential)
    assert "Relu has kinks" in repr(found)
    assert "kinks" in found.to_xarray().attrs["notes"]
    assert np.asarray(found).shape == found.shape
    assert len(found) == SAMPLES
    smooth, inputs = made("chain")
    second = ft.ddntk(smooth, inputs)
    assert isinstance(second, SecondDifferentials)
    assert not second.dd_I.notes
    assert second.dd_II.dims[:4] == ("input_1", "input_2", "input_3", "input_4")
    assert set(second.to_dataset()) == {"dd_I", "dd_II"}


def test_the_model_is_left_as_it_was() -> None:
    model, x = made("attention")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    ft.ddntk(model, x[:1])
    assert model.training
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(value.grad is None for value in model.parameters())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": "full"}, "output numbers"),
        ({"outputs": [2]}, "numbers from 0 to 1"),
        ({"samples": [5]}, "samples=.* 0 to 1"),
        ({"samples": []}, "samples="),
        ({"samples": "all"}, "samples="),
        ({"rates": {"0.weight": -1.0}}, "not negative"),
        ({"rate": 1.0}, "did you mean 'rates'"),
    ],
)
def test_bad_input(options: dict[str, object], message: str) -> None:
    model, x = made("chain")
    with pytest.raises(InputError, match=message):
        ft.dntk(model, x, **options)


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = made("gated cell")
    monkeypatch.setenv("FORETRAIN_MEMORY", "10kB")
    with pytest.raises(NotEnoughMemoryError, match="samples= or outputs="):
        ft.ddntk(model, x)


def test_dropout_is_refused() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.5), nn.Linear(4, 1)).double()
    with pytest.raises(NotSupportedError, match=r"model\.eval"):
        ft.dntk(model, torch.randn(2, 3).double())
