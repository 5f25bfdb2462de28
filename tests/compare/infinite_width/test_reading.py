"""Torch modules read into signals: what is taken for what, laws and rates, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from architectures import ConvNeXt, Mixer, UNet, VitStem
from torch import Tensor, nn
from torch.nn import functional

import foretrain as ft
from foretrain.support.errors import ForetrainError
from foretrain.theory.layers import data


def images(count: int = 3, size: int = 8) -> Tensor:
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def rows(count: int = 3) -> Tensor:
    return torch.randn(count, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


class Custom(nn.Module):
    """A module whose forward is a function of it and the input."""

    def __init__(self, forward: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.compute = forward
        for name, module in modules.items():
            self.add_module(name, module)
        self.double()

    def forward(self, x: Tensor) -> Any:
        return self.compute(self, x)


def mlp(*activations: nn.Module, inputs: int = 4, width: int = 64) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(inputs, width)]
    for activation in activations:
        layers += [activation, nn.Linear(width, width)]
    layers[-1] = nn.Linear(width, 2)
    return nn.Sequential(*layers).double()


GIVEN = {"*": (1.7, 0.2)}


def by_hand(activation: Any, depth: int = 1) -> Any:
    signal = data().linear(C_W=1.7, C_b=0.2)
    for _ in range(depth):
        signal = signal.activation(activation).linear(C_W=1.7, C_b=0.2)
    return ft.infinite_width(signal, rows().numpy())


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (nn.ReLU(), "relu"),
        (nn.GELU(), "gelu"),
        (nn.Tanh(), "tanh"),
        (nn.SiLU(), "swish"),
        (nn.LeakyReLU(0.2), "leaky_relu(slope=0.2)"),
        (nn.Sigmoid(), "sigmoid"),
        (nn.Softplus(), "softplus"),
        (nn.ELU(), "elu"),
        (nn.RReLU(0.1, 0.3).eval(), "leaky_relu(slope=0.2)"),
    ],
)
def test_activations_are_those_of_the_catalogue(function: nn.Module, name: str) -> None:
    found, expected = ft.infinite_width(mlp(function), rows(), init=GIVEN), by_hand(name)
    np.testing.assert_allclose(found.ntk, expected.ntk, rtol=1e-9)
    np.testing.assert_allclose(found.nngp, expected.nngp, rtol=1e-9)


def test_an_activation_written_out_is_the_same_function() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        z = net.first(x)
        result: Tensor = net.second(z * torch.sigmoid(z))
        return result

    net = Custom(forward, first=nn.Linear(4, 64), second=nn.Linear(64, 1))
    np.testing.assert_allclose(
        ft.infinite_width(net, rows(), init=GIVEN).ntk, by_hand("swish").ntk, rtol=1e-8
    )


WRITTEN_OUT: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
    "softsign": (functional.softsign, "softsign"),
    "softsign written out": (lambda u: u / (1 + u.abs()), "softsign"),
    "sigmoid": (lambda u: 1 / (1 + torch.exp(-u)), "sigmoid"),
    "swish": (lambda u: u / (1 + torch.exp(-u)), "swish"),
    "tanh": (lambda u: (torch.exp(2 * u) - 1) / (torch.exp(2 * u) + 1), "tanh"),
    "softplus": (lambda u: torch.log1p(torch.exp(u)), "softplus"),
    "leaky where": (lambda u: torch.where(u > 0, u, 0.2 * u), "leaky_relu(slope=0.2)"),
    "relu by its sign": (lambda u: u * (u > 0), "relu"),
    "relu by a float mask": (lambda u: u * (u > 0).to(u.dtype), "relu"),
    "relu filled": (lambda u: u.masked_fill(u < 0, 0.0), "relu"),
    "relu of zeros": (lambda u: torch.max(u, torch.zeros_like(u)), "relu"),
    "softsign in place": (lambda u: (u * 1).abs_().add_(1).reciprocal_().mul_(u), "softsign"),
    "half way": (lambda u: torch.lerp(u, u.relu(), 0.8), "leaky_relu(slope=0.2)"),
    "root": (lambda u: torch.sqrt(1 + u * u), lambda z: np.sqrt(1 + z * z)),
    "over the root": (lambda u: u / torch.sqrt(1 + u**2), lambda z: z / np.sqrt(1 + z * z)),
    "logarithm": (lambda u: torch.log(1 + u.square()), lambda z: np.log(1 + z * z)),
    "relu by a whole number": (lambda u: u * (torch.sign(u).clamp(min=0) + 0.5).long(), "relu"),
    "sign": (torch.sign, np.sign),
}


@pytest.mark.parametrize("name", WRITTEN_OUT)
def test_functions_written_out_are_one_function(name: str) -> None:
    function, expected = WRITTEN_OUT[name]
    net = Custom(lambda net, x: net.b(function(net.a(x))), a=nn.Linear(4, 8), b=nn.Linear(8, 1))
    found, same = ft.infinite_width(net, rows(), init=GIVEN), by_hand(expected or function)
    np.testing.assert_allclose(found.nngp, same.nngp, rtol=1e-9)
    np.testing.assert_allclose(found.ntk, same.ntk, rtol=1e-9)


def test_the_sign_has_the_kernel_of_angles_and_no_gradient() -> None:
    found = ft.infinite_width(
        Custom(lambda net, x: net.b(torch.sign(net.a(x))), a=nn.Linear(4, 8), b=nn.Linear(8, 1)),
        rows(),
        init=GIVEN,
        rates={"*": (0.7, 0.3)},
    )
    inner = 0.2 + 1.7 * (rows() @ rows().T).numpy() / 4
    scale = np.sqrt(np.diagonal(inner))
    angles = 2 / np.pi * np.arcsin(np.clip(inner / scale / scale[:, None], -1, 1))
    np.testing.assert_allclose(found.nngp, 1.7 * angles + 0.2, rtol=1e-7)
    np.testing.assert_allclose(found.ntk, 0.7 * angles + 0.3, rtol=1e-7)


def test_functions_written_out_stand_in_residual_blocks_streams_and_norms() -> None:
    """The same function written out and by its name, after sums, before norms, in streams and for two fields."""

    def written(u: Tensor) -> Tensor:
        return u / (1 + u.abs())

    def block(soft: Callable[[Tensor], Tensor]) -> Callable[[Any, Tensor], Tensor]:
        def forward(net: Any, x: Tensor) -> Tensor:
            u = net.a(x)
            h = soft(u) + net.b(soft(u))  # two fields meet
            g = functional.layer_norm(soft(h), (8,))
            left, right = (soft(net.c(one)) for one in (g, -g))  # two streams
            result: Tensor = net.d(torch.stack([left, right], 1).mean(1) * torch.sigmoid(net.e(g)))
            return result

        return forward

    parts = {name: nn.Linear(4 if name == "a" else 8, 1 if name == "d" else 8) for name in "abcde"}
    one, two = (
        ft.infinite_width(Custom(block(soft), **parts), rows(2), init=GIVEN, draws=2**10)
        for soft in (written, lambda u: functional.softsign(u))
    )
    np.testing.assert_allclose(one.ntk, two.ntk, rtol=1e-12)
    assert one.standard_error is not None


class Straight(torch.autograd.Function):
    """A step whose gradient is said to be 1."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return gradients[0]


class Heads(nn.Module):
    """Two heads of the same features."""

    def __init__(self, end: Callable[[Tensor, Tensor], Tensor], width: int = 16) -> None:
        super().__init__()
        self.end = end
        self.first, self.one, self.two = nn.Linear(4, width), nn.Linear(width, 3), nn.Linear(width, 2)
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.first(x))
        return self.end(self.one(h), self.two(h))


def test_outputs_may_be_scaled_and_be_of_several_heads() -> None:
    plain = by_hand("relu")
    for end, scale in (
        (lambda a, b: 3 * a, 3.0),
        (lambda a, b: -a / 8, 1 / 8),
        (lambda a, b: torch.cat([a, b], 1), 1.0),
        (lambda a, b: torch.cat([2 * a, 2 * b], 1), 2.0),
        (lambda a, b: torch.cat([a[:, 1:], a[:, :1]], 1), 1.0),
        (lambda a, b: a[:, :2] + b, 2**0.5),
    ):
        for make in (Heads(end), lambda n, end=end: Heads(end, n)):
            found = ft.infinite_width(make, rows(), init=GIVEN)
            np.testing.assert_allclose(found.nngp, scale**2 * plain.nngp, rtol=1e-12)
            np.testing.assert_allclose(found.ntk, scale**2 * plain.ntk, rtol=1e-12)
    for end, words in (
        (lambda a, b: a + 1, "adds fixed numbers to its outputs"),
        (lambda a, b: a + torch.tensor([1.0, 2.0, 3.0]).double(), "adds fixed numbers to its outputs"),
        (lambda a, b: torch.cat([a, 2 * b], 1), "layers with different kernels are concatenated"),
        (lambda a, b: torch.tanh(a), "ends with a nonlinearity"),
    ):
        for make in (Heads(end), lambda n, end=end: Heads(end, n)):
            with pytest.raises(ForetrainError, match=words):
                ft.infinite_width(make, rows(), init=GIVEN)
    with pytest.raises(ForetrainError, match="different kernels"):
        ft.infinite_width(Heads(lambda a, b: torch.cat([a, b], 1)), rows(), init={"*": (2, 0), "two": (1, 0)})


NUMBERS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "difference": lambda net, u: u - u,
    "zero times": lambda net, u: 0 * u,
    "gains of zero": lambda net, u: functional.layer_norm(u, (16,), torch.zeros(16).double()),
}


@pytest.mark.parametrize("shift", [0.0, 0.5])
@pytest.mark.parametrize("name", NUMBERS)
def test_signals_that_are_numbers_go_through_everything(name: str, shift: float) -> None:
    """What follows a number is as large as the number, the same for all inputs."""

    def value(net: Any, x: Tensor) -> Tensor:
        return NUMBERS[name](net, net.first(x)) + shift

    sigmoid = 1 / (1 + np.exp(-shift))
    ways: dict[str, tuple[Callable[[Any, Tensor], Any], float]] = {
        "activation": (lambda net, x: net.last(torch.sigmoid(value(net, x))), sigmoid),
        "nothing": (lambda net, x: net.last(value(net, x)), shift),
        "gate": (lambda net, x: net.last(torch.sigmoid(value(net, x)) * value(net, x)), sigmoid * shift),
        "norm": (lambda net, x: net.last(functional.layer_norm(value(net, x), (16,))), 0.0),
        "two": (lambda net, x: net.last(torch.tanh(torch.relu(value(net, x)))), np.tanh(shift)),
    }
    for way, (forward, size) in ways.items():
        net = Custom(forward, first=nn.Linear(4, 16), last=nn.Linear(16, 1))
        found = ft.infinite_width(net, rows(), init=GIVEN, rates={"*": (0.7, 0.3)})
        np.testing.assert_allclose(found.nngp, np.full((3, 3), 1.7 * size**2 + 0.2), atol=1e-12, err_msg=way)
        np.testing.assert_allclose(found.ntk, np.full((3, 3), 0.7 * size**2 + 0.3), atol=1e-12, err_msg=way)


def test_images_that_are_numbers_go_through_pools_and_norms() -> None:
    for layer, size in (
        (nn.MaxPool2d(2), 0.5),
        (nn.AvgPool2d(2), 0.5),
        (nn.InstanceNorm2d(8), 0.0),
    ):
        net = Custom(
            lambda net, x: net.last(torch.relu(net.layer(net.norm(net.first(x)))).mean((2, 3))),
            first=nn.Conv2d(3, 8, 3),
            norm=nn.BatchNorm2d(8),
            layer=layer,
            last=nn.Linear(8, 1),
        ).eval()
        nn.init.zeros_(net.norm.weight)  # type: ignore[arg-type,union-attr]
        nn.init.constant_(net.norm.bias, 0.5)  # type: ignore[arg-type,union-attr]
        found = ft.infinite_width(net, images(), init={"*": (1.0, 0.0)}).nngp
        np.testing.assert_allclose(found, np.full((3, 3), size**2), atol=1e-12)


def test_branches_side_by_side_are_averaged_like_their_sum() -> None:
    def stacked(net: Any, x: Tensor) -> Any:
        return net.head(torch.stack([torch.relu(net.one(x)), torch.sigmoid(net.two(x))], 1).mean(1))

    def added(net: Any, x: Tensor) -> Any:
        return net.head((torch.relu(net.one(x)) + torch.sigmoid(net.two(x))) / 2)

    parts = {"one": nn.Linear(4, 16), "two": nn.Linear(4, 16), "head": nn.Linear(16, 1)}
    one, two = (
        ft.infinite_width(Custom(forward, **parts), rows(), init=GIVEN) for forward in (stacked, added)
    )
    np.testing.assert_allclose(one.ntk, two.ntk, rtol=1e-10)
    np.testing.assert_allclose(one.nngp, two.nngp, rtol=1e-10)


def test_shuffled_groups_are_those_that_are_written_out() -> None:
    def written(x: Tensor) -> Tensor:
        return x.view(x.size(0), 4, 4, 8, 8).transpose(1, 2).reshape(x.size(0), 16, 8, 8)

    found = []
    for shuffle in (written, lambda x: functional.channel_shuffle(x, 4)):
        net = Custom(
            lambda net, x, shuffle=shuffle: net.head(net.last(shuffle(torch.relu(net.conv(x)))).mean((2, 3))),
            conv=nn.Conv2d(3, 16, 1),
            last=nn.Conv2d(16, 16, 3, groups=4),
            head=nn.Linear(16, 1),
        )
        found.append(ft.infinite_width(net, images(), init=GIVEN).ntk)
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_products_with_weights_and_biases_written_out() -> None:
    class Written(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = (nn.Parameter(torch.randn(*s).double()) for s in ((4, 32), (32, 1)))
            self.bias = nn.Parameter(0.3 * torch.randn(32).double())

        def forward(self, x: Tensor) -> Tensor:
            return torch.relu(x @ self.first + self.bias) @ self.second

    found = ft.infinite_width(
        Written(),
        rows(),
        init={"first": (1.5, 0.0), "second": (1.5, 0.0), "bias": (0.25, 0.0)},
        rates={"[fs]*": (1.0, 0.0)},
    )
    signal = data().linear(C_W=1.5, C_b=0.25, lambda_W=1.0, lambda_b=0.25)
    expected = ft.infinite_width(signal.activation("relu").linear(C_W=1.5, lambda_W=1.0), rows().numpy())
    np.testing.assert_allclose(found.ntk, expected.ntk, rtol=1e-12)


def test_a_tensor_that_was_changed_in_place_is_what_it_became() -> None:
    def changed(net: Any, x: Tensor) -> Any:
        z = net.first(x)
        h = functional.relu(z, inplace=True)
        return net.last(z + net.middle(h))

    def plain(net: Any, x: Tensor) -> Any:
        z = torch.relu(net.first(x))
        return net.last(z + net.middle(z))

    parts = {"first": nn.Linear(4, 16), "middle": nn.Linear(16, 16), "last": nn.Linear(16, 1)}
    one, two = (
        ft.infinite_width(Custom(forward, **parts), rows(), init=GIVEN) for forward in (changed, plain)
    )
    np.testing.assert_allclose(one.ntk, two.ntk, rtol=1e-13)


def test_channels_last_and_first_have_the_same_kernel() -> None:
    def last(net: Any, x: Tensor) -> Tensor:
        h = torch.relu(net.mix(x.permute(0, 2, 3, 1)))
        result: Tensor = net.head(h.flatten(1, 2).mean(1))
        return result

    def first(net: Any, x: Tensor) -> Tensor:
        result: Tensor = net.head(torch.relu(net.mix(x)).mean((2, 3)))
        return result

    linear = Custom(last, mix=nn.Linear(3, 16), head=nn.Linear(16, 1))
    pointwise = Custom(first, mix=nn.Conv2d(3, 16, 1), head=nn.Linear(16, 1))
    one, two = (ft.infinite_width(net, images(), init=GIVEN).ntk for net in (linear, pointwise))
    np.testing.assert_allclose(one, two, rtol=1e-12)


def test_padding_by_a_module_is_padding_of_the_layer() -> None:
    for mode in ("zeros", "circular", "reflect", "replicate"):
        net = nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1, padding_mode=mode), nn.ReLU(), nn.Flatten(), nn.Linear(512, 1)
        ).double()
        signal = data((8, 8)).convolution(3, padding=1, mode=mode, C_W=1.7, C_b=0.2).activation("relu")
        expected = ft.infinite_width(signal.flatten(C_W=1.7, C_b=0.2), images().movedim(1, -1).numpy())
        np.testing.assert_allclose(ft.infinite_width(net, images(), init=GIVEN).ntk, expected.ntk, rtol=1e-12)


@pytest.mark.parametrize(
    ("initialise", "constant", "words"),
    [
        (lambda w: None, 1 / 3, "torch's default"),
        (nn.init.kaiming_normal_, 2.0, "kaiming normal"),
        (lambda w: nn.init.kaiming_uniform_(w, nonlinearity="relu"), 2.0, "kaiming uniform"),
        (lambda w: nn.init.kaiming_normal_(w, a=0.2), 2 / 1.04, "kaiming normal, slope 0.2"),
        (nn.init.orthogonal_, 1.0, "orthogonal"),
        (lambda w: nn.init.normal_(w, std=0.02), 0.0004 * 96, "normal, std 0.02"),
        (lambda w: nn.init.normal_(w, std=0.137), 0.137**2 * 96, "measured"),
        (nn.init.zeros_, 0.0, "all zero"),
    ],
)
def test_laws_are_recognised(initialise: Callable[[Tensor], Any], constant: float, words: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 1)).double()
    middle = net[2]
    assert isinstance(middle, nn.Linear)
    with torch.no_grad():
        initialise(middle.weight)
    row = ft.infinite_width(net, rows()).rows[1]
    assert pytest.approx(constant, rel=0.05) == row.C_W
    assert words in row.known


@pytest.mark.parametrize(
    ("initialise", "reason"),
    [
        (lambda w: nn.init.constant_(w, 0.1), "its weights are all equal"),
        (lambda w: nn.init.kaiming_normal_(w).abs_(), "its weights are around 0.1"),
        (lambda w: nn.init.uniform_(w, 0, 1), "its weights are around 0.4"),
        (
            lambda w: w.copy_(torch.eye(64) * (-1.0) ** torch.arange(64)),
            "at one or two places of each row only",
        ),
        (lambda w: w.copy_(torch.randn(64, 1) * torch.randn(64)), "of low rank"),
        (
            lambda w: w.copy_(torch.randn(64, 64) * torch.logspace(-2, 2, 64)[:, None]),
            "rows that differ in size",
        ),
        (lambda w: w.cauchy_(), "its weights are"),
    ],
    ids=["constant", "positive", "uniform from 0", "diagonal", "rank one", "rows of many sizes", "Cauchy"],
)
def test_weights_that_are_no_independent_draws_are_refused(
    initialise: Callable[[Tensor], Any], reason: str
) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).double()
    with torch.no_grad():
        initialise(net[2].weight)
    with pytest.raises(ForetrainError, match=reason):
        ft.infinite_width(net, rows())
    given = ft.infinite_width(net, rows(), init={"2": (2.0, 0.0)})
    assert [row.known for row in given.rows][1] == "weight: given; bias: given"


def test_equal_biases_and_those_around_a_mean_are_shifts() -> None:
    """relu(z + 1) is an activation of its own."""
    torch.manual_seed(0)
    net = mlp(nn.ReLU(), nn.ReLU(), width=256)
    for layer in (net[0], net[2]):
        nn.init.constant_(layer.bias, 1.0)
    nn.init.zeros_(net[4].bias)
    law = [{"C_W": row.C_W} for row in ft.infinite_width(net, rows()).rows]
    assert [row.C_b for row in ft.infinite_width(net, rows()).rows] == [0.0, 0.0, 0.0]
    signal = data().linear(**law[0]).activation(lambda z: torch.relu(z + 1)).linear(**law[1])
    expected = ft.infinite_width(
        signal.activation(lambda z: torch.relu(z + 1)).linear(**law[2]), rows().numpy()
    )
    np.testing.assert_allclose(ft.infinite_width(net, rows()).nngp, expected.nngp, rtol=1e-9)

    nn.init.normal_(net[2].bias, 1.0, 0.3)
    row = ft.infinite_width(net, rows()).rows[1]
    assert "with the mean" in row.known
    assert pytest.approx(float(net[2].bias.detach().var()), rel=1e-9) == row.C_b


def factory(initialise: Callable[[Tensor], Any]) -> Callable[[int], nn.Module]:
    def make(width: int) -> nn.Module:
        net = mlp(nn.ReLU(), nn.ReLU(), width=width)
        for layer in (net[0], net[2], net[4]):
            initialise(layer.weight)
            nn.init.zeros_(layer.bias)
        return net

    return make


def test_laws_of_a_factory_are_those_of_the_limit() -> None:
    found = ft.infinite_width(factory(lambda w: nn.init.kaiming_normal_(w)), rows())
    assert [row.C_W for row in found.rows] == [2.0, 2.0, 2.0]

    def xavier_but_for_the_first(weight: Tensor) -> None:
        first = weight.shape[1] == 4
        nn.init.kaiming_normal_(weight) if first else nn.init.xavier_normal_(weight)

    found = ft.infinite_width(factory(xavier_but_for_the_first), rows())
    assert [row.C_W for row in found.rows] == pytest.approx([2.0, 1.0, 2.0], rel=1e-6)


@pytest.mark.parametrize(
    ("initialise", "reason"),
    [
        (nn.init.xavier_normal_, r"^0: C_W \(xavier normal\) vanishes with the width"),
        (lambda w: nn.init.normal_(w, std=0.02), r"C_W \(normal, std 0.02\) grows without bound"),
        (
            lambda w: nn.init.normal_(w, std=0.7 / w.shape[1]),
            "0.*at the narrower of two widths and.*at the wider",
        ),
    ],
    ids=["xavier", "one deviation", "mean field"],
)
def test_laws_without_a_limit_are_refused(initialise: Callable[[Tensor], Any], reason: str) -> None:
    with pytest.raises(ForetrainError, match=reason):
        ft.infinite_width(factory(initialise), rows())
    assert ft.infinite_width(factory(initialise)(64), rows()).rows[1].C_W > 0


def test_a_factory_is_asked_for_widths_that_it_can_make() -> None:
    def make(width: int) -> nn.Module:
        norm = nn.GroupNorm(12, width)
        return nn.Sequential(nn.Conv1d(3, width, 1), norm, nn.Flatten(), nn.Linear(8 * width, 1)).double()

    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0)).double()
    with pytest.raises(ForetrainError, match=r"make\(64\) failed .*give widths="):
        ft.infinite_width(make, x)
    assert ft.infinite_width(make, x, widths=(24, 48)).rows[0].taken_for == "convolution"
    with pytest.raises(ForetrainError, match="two different numbers"):
        ft.infinite_width(make, x, widths=(24,))


@pytest.mark.parametrize("init", [(2.0, 0.1), 2.0, [2.0, 0.1], None])
def test_init_is_a_word_or_patterns(init: Any) -> None:
    with pytest.raises(ForetrainError, match="init must be"):
        ft.infinite_width(mlp(nn.ReLU()), rows(), init=init)


@pytest.mark.parametrize("rates", [-1, float("nan"), float("inf"), True, None, (1.0, 2.0)])
def test_rates_are_a_word_a_number_or_patterns(rates: Any) -> None:
    with pytest.raises(ForetrainError, match="rates must be"):
        ft.infinite_width(mlp(nn.ReLU()), rows(), rates=rates)


def test_default_biases_vanish_in_wide_layers_and_stay_in_the_first() -> None:
    found = ft.infinite_width(mlp(nn.ReLU(), nn.ReLU()), rows()).rows
    assert [row.C_b for row in found] == [pytest.approx(1 / 12), 0.0, 0.0]
    assert "C_b" in str(ft.infinite_width(mlp(nn.ReLU()), rows()).reading)


def test_standard_rates_count_the_fan_in_and_frozen_parameters_do_not_train() -> None:
    net = mlp(nn.ReLU(), width=32)
    found = ft.infinite_width(net, rows(), rates="standard").rows
    assert [row.lambda_W for row in found] == [4, 32]
    net[0].requires_grad_(False)
    found = ft.infinite_width(net, rows(), rates=0.5).rows
    assert [(row.lambda_W, row.lambda_b) for row in found] == [(0, 0), (16, 0.5)]


def test_the_most_specific_pattern_wins() -> None:
    found = ft.infinite_width(mlp(nn.ReLU()), rows(), init={"*": (1.0, 0.0), "0": (3.0, 0.5)}).rows
    assert [(row.C_W, row.C_b) for row in found] == [(3.0, 0.5), (1.0, 0.0)]


def test_two_sets_of_inputs_and_positions_of_the_output() -> None:
    torch.manual_seed(0)
    net = UNet(8).double().eval()
    square = ft.infinite_width(net, images(2)).ntk
    assert square.dims == (
        "input_1",
        "position_1_1",
        "position_2_1",
        "input_2",
        "position_1_2",
        "position_2_2",
    )
    np.testing.assert_allclose(ft.infinite_width(net, images(2)[:1], images(2)).ntk, square[:1], rtol=1e-10)
    flat = square.values.reshape(128, 128)
    np.testing.assert_allclose(flat, flat.T, rtol=1e-12)
    assert np.linalg.eigvalsh(flat).min() > -1e-10


def test_a_single_sample_is_read_as_one_of_several() -> None:
    def squeezed(net: Any, x: Tensor) -> Any:
        return net.head(torch.relu(net.conv(x)).squeeze())

    net = Custom(squeezed, conv=nn.Conv2d(3, 16, 8), head=nn.Linear(16, 1))
    both, x = ft.infinite_width(net, images(2)), images(2)
    np.testing.assert_allclose(ft.infinite_width(net, x[:1]).ntk, both.ntk[:1, :1], rtol=1e-12)
    np.testing.assert_allclose(ft.infinite_width(net, x[:1], x[1:]).ntk, both.ntk[:1, 1:], rtol=1e-12)


class Several(nn.Module):
    """A model of two inputs and a number that all samples share, with two outputs."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.one, self.two, self.head = nn.Linear(4, width), nn.Linear(3, width), nn.Linear(width, 2)
        self.double()

    def forward(self, x: Tensor, y: Tensor, scale: Tensor | None = None) -> dict[str, Tensor]:
        hidden = torch.relu(self.one(x) + self.two(y) * (1.0 if scale is None else scale[0]))
        return {"logits": self.head(hidden), "hidden": hidden}


def test_several_inputs_and_outputs() -> None:
    net, x, y = Several(), rows(), rows(6)[3:, :3]
    found = ft.infinite_width(net, (x, y), output="logits", init=GIVEN).ntk

    # Both first layers as one, of both inputs side by side.
    both = data().linear(C_W=1.7 * 2, C_b=0.4, lambda_W=1.7 * 2, lambda_b=0.4)
    sides = np.concatenate([x * np.sqrt(7 / 8), y * np.sqrt(7 / 6)], axis=1)
    expected = ft.infinite_width(both.activation("relu").linear(C_W=1.7, C_b=0.2), sides)
    np.testing.assert_allclose(found, expected.ntk, rtol=1e-12)

    for given in ([x, y], {"x": x, "y": y}, (x, y, torch.ones(1).double())):
        other = ft.infinite_width(net, given, output=lambda result: result["logits"], init=GIVEN)
        np.testing.assert_allclose(other.ntk, found, rtol=1e-12)
    first, second = (x[:1], y[:1]), (x[1:], y[1:])
    cross = ft.infinite_width(net, first, second, output="logits", init=GIVEN).ntk
    np.testing.assert_allclose(cross, found[:1, 1:], rtol=1e-12)
    with pytest.raises(ForetrainError, match=r"returns a dict with logits, hidden: say with output="):
        ft.infinite_width(net, (x, y))
    with pytest.raises(ForetrainError, match=r"has no entry 'loss'"):
        ft.infinite_width(net, (x, y), output="loss")
    with pytest.raises(ForetrainError, match=r"x2 has samples of shape \(4,\), x of \(4,\) and \(3,\)"):
        ft.infinite_width(net, (x, y), x, output="logits")


@pytest.mark.statistical
def test_several_inputs_agree_with_drawn_networks() -> None:
    class Logits(Several):
        def forward(self, x: Tensor, y: Tensor) -> Any:  # type: ignore[override]
            return super().forward(x, y)["logits"]

    found = ft.compare(Logits, (rows(), rows(6)[3:, :3]), draws=160, widths=[16, 32, 64])
    assert found.agrees, found


def test_half_precision_is_read_from_inputs_of_half_precision() -> None:
    half, full = mlp(nn.ReLU()).half(), mlp(nn.ReLU())
    x = rows().half()
    one, two = (ft.infinite_width(net, x, init=GIVEN) for net in (half, full))
    np.testing.assert_allclose(one.ntk, two.ntk, rtol=1e-12)
    with pytest.raises(ForetrainError, match="not finite as float16"):
        ft.infinite_width(half, rows() * 1e6)


def test_a_factory_tells_which_groups_grow() -> None:
    def grouped(channels: int) -> Callable[[int], nn.Module]:
        return lambda n: nn.Sequential(
            nn.Conv1d(3, n, 1),
            nn.ReLU(),
            nn.Conv1d(n, n, 3, groups=n // channels),
            nn.Flatten(),
            nn.Linear(6 * n, 1),
        )

    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    assert "depthwise" in ft.infinite_width(grouped(1), x).rows[1].taken_for
    assert ft.infinite_width(grouped(4), x).rows[1].taken_for == "convolution, groups of 4 channels"
    assert ft.infinite_width(grouped(4)(48), x).rows[1].taken_for == "convolution, 12 groups"


def test_a_factory_tells_which_norms_are_of_few_channels() -> None:
    def normed(groups: Callable[[int], int]) -> Callable[[int], nn.Module]:
        return lambda n: nn.Sequential(
            nn.Conv1d(3, n, 1), nn.GroupNorm(groups(n), n), nn.Flatten(), nn.Linear(8 * n, 1)
        )

    x = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    for groups, words in (
        (lambda n: 4, "GroupNorm, 4 groups"),
        (lambda n: n // 4, "GroupNorm, 4 channels in each group"),
        (lambda n: n, "InstanceNorm"),
    ):
        assert ft.infinite_width(normed(groups), x).rows[1].taken_for == words
    plain = nn.Sequential(nn.Conv1d(3, 8, 1), nn.InstanceNorm1d(8), nn.Flatten(), nn.Linear(64, 1))
    assert ft.infinite_width(plain, x).rows[1].taken_for == "InstanceNorm"
    running = nn.Sequential(nn.Conv1d(3, 8, 1), nn.InstanceNorm1d(8, track_running_stats=True), nn.Flatten())
    with pytest.raises(ForetrainError, match="1: an InstanceNorm with running statistics"):
        ft.infinite_width(running.eval(), x)


def test_the_answer_says_what_went_through_the_pairs(loops: str) -> None:
    kernels = ft.infinite_width(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1)), torch.eye(3))
    assert kernels.loops.startswith(loops)
    assert f"Loops over pairs of inputs: {kernels.loops}." in kernels.answer().parts


def test_the_model_the_inputs_and_the_random_state_stay_as_they_were() -> None:
    net, x = mlp(nn.Tanh()).train(), rows()
    before, state = [p.detach().clone() for p in net.parameters()], torch.random.get_rng_state()
    ft.infinite_width(net, x)
    assert net.training
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters()))
    assert torch.equal(state, torch.random.get_rng_state())
    assert torch.equal(x, rows())
    assert all(p.grad is None for p in net.parameters())


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) if x.sum() > 0 else -self.inner(x)  # type: ignore[no-any-return]


def recurrent(net: Any, x: Tensor) -> Any:
    return net.out(torch.relu(net.mid(torch.relu(net.mid(net.first(x))))))


def detached(net: Any, x: Tensor) -> Any:
    return net.out(torch.relu(net.first(x)).detach())


def without_gradients(net: Any, x: Tensor) -> Any:
    with torch.no_grad():
        hidden = torch.relu(net.first(x))
    return net.out(hidden)


REFUSED: dict[str, tuple[Callable[[], nn.Module], Tensor, str]] = {
    "train mode": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 1)
        ).double(),
        images(),
        "1 .BatchNorm2d. normalises with the statistics of the batch.*call model.eval",
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(), nn.Linear(8, 1)).double(),
        rows(),
        "1 .Dropout. drops values at random.*call model.eval",
    ),
    "functional dropout": (
        lambda: Custom(
            lambda net, x: net.b(functional.dropout(net.a(x))), a=nn.Linear(4, 4), b=nn.Linear(4, 1)
        ),
        rows(),
        r"dropout.*call model\.eval\(\)",
    ),
    "no rule": (
        lambda: Custom(
            lambda net, x: net.blocks[1](net.blocks[0](x)),
            blocks=nn.ModuleList(
                [nn.Linear(4, 8), Custom(lambda net, x: net.a(torch.special.i0(x)), a=nn.Linear(8, 1))]
            ),
        ),
        rows(),
        r"blocks\.1: the operation special_i0 has no rule: measure it with ft\.ensemble",
    ),
    "whole numbers": (lambda: mlp(nn.ReLU()), torch.ones(2, 4, dtype=torch.int64), "inputs of torch.int64"),
    "complex numbers": (
        lambda: nn.Linear(4, 2, dtype=torch.complex128),
        rows().to(torch.complex128),
        "inputs of torch.complex128: give real",
    ),
    "unknown tokens": (
        lambda: nn.Sequential(nn.Embedding(5, 8), nn.Flatten(), nn.Linear(24, 1)).double(),
        torch.full((2, 3), 5),
        "tokens outside of 0 to 4",
    ),
    "no parameters": (lambda: nn.Flatten(), images(), "does not depend on any layer with weights"),
    "bias": (lambda: spoiled(mlp(nn.ReLU())), rows(), "a bias is not finite"),
    "control flow": (lambda: Counting().double(), rows(), "decides what to compute from the values"),
    "wrong shape": (lambda: mlp(nn.ReLU(), inputs=5), rows(), "cannot be called on x of shape"),
    "random branches": (
        lambda: ConvNeXt(8).double(),
        images(2, 16),
        "stochastic_depth: bernoulli draws random numbers .call model.eval.., if",
    ),
    "recurrence": (
        lambda: Custom(recurrent, first=nn.Linear(4, 8), mid=nn.Linear(8, 8), out=nn.Linear(8, 1)),
        rows(),
        "mid: mid.weight is applied again to what comes from its first use, a recurrence",
    ),
    "detached": (
        lambda: Custom(detached, first=nn.Linear(4, 8), out=nn.Linear(8, 1)),
        rows(),
        "a part of the network is detached",
    ),
    "a backward of its own": (
        lambda: Custom(
            lambda net, x: net.out(Straight.apply(net.first(x))), first=nn.Linear(4, 8), out=nn.Linear(8, 1)
        ),
        rows(),
        "Straight has a backward of its own",
    ),
    "not finite": (
        lambda: Custom(
            lambda net, x: net.out(torch.sqrt(net.first(x))), first=nn.Linear(4, 8), out=nn.Linear(8, 1)
        ),
        rows(),
        r"first|what is written out \(sqrt\)",
    ),
    "no gradients": (
        lambda: Custom(without_gradients, first=nn.Linear(4, 8), out=nn.Linear(8, 1)),
        rows(),
        "a part of the network runs without gradients",
    ),
    "token mixing": (
        lambda: Mixer(8).double().eval(),
        images(2, 16),
        r"tokens.0: a layer mixes positions .*random however many channels and hidden units.*ft\.ensemble",
    ),
    "token mixing by a convolution": (
        lambda: Custom(
            lambda net, x: net.head(net.mix(torch.relu(net.inner(x[:, :, 0]))).mean(1)),
            inner=nn.Linear(8, 16),
            mix=nn.Conv1d(3, 5, 1),
            head=nn.Linear(16, 1),
        ),
        images(2),
        "mix: a layer mixes positions",
    ),
    "no layer": (lambda: Custom(lambda net, x: 2 * x), rows(), "does not depend on any layer"),
    "softmax": (
        lambda: Custom(lambda net, x: torch.softmax(net.a(x), -1), a=nn.Linear(4, 8)),
        rows(),
        "a softmax, as of attention or at the end, has no rule here: measure it with ft.ensemble",
    ),
    "ends with an activation": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Tanh()).double(),
        rows(),
        "the model ends with a nonlinearity",
    ),
    "two outputs": (
        lambda: Custom(lambda net, x: (net.a(x), net.a(x)), a=nn.Linear(4, 8)),
        rows(),
        "returns a tuple with 0, 1: say with output=",
    ),
    "trained statistics": (
        lambda: (
            nn.Sequential(nn.Conv2d(3, 8, 3), trained_norm(), nn.Flatten(), nn.Linear(288, 1)).double().eval()
        ),
        images(),
        "1: running means differ from channel to channel",
    ),
}


def spoiled(net: nn.Sequential) -> nn.Module:
    nn.init.constant_(net[0].bias, torch.inf)  # type: ignore[arg-type]
    return net


def trained_norm() -> nn.Module:
    norm = nn.BatchNorm2d(8)
    norm(torch.randn(4, 8, 3, 3))
    return norm


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_limit_or_no_rule_is_refused_by_name(name: str) -> None:
    make, x, sentence = REFUSED[name]
    with pytest.raises(ForetrainError, match=sentence) as caught:
        ft.infinite_width(make(), x)
    assert "\n" not in str(caught.value)


COUPLED: dict[str, Callable[[Tensor], Tensor]] = {
    "centred": lambda x: x - x.mean(0),
    "standardised": lambda x: (x - x.mean(0)) / x.std(0),
    "over the largest": lambda x: x / x.abs().max(),
    "over the smallest": lambda x: x - x.min(),
    "one length": lambda x: x / x.norm(),
    "softmax": lambda x: torch.softmax(x, 0),
    "neighbours": lambda x: x.roll(1, 0),
    "second neighbours": lambda x: x + x.roll(-2, 0) if len(x) > 2 else x + x.roll(1, 0),
    "the last": lambda x: x - x[-1:],
    "a pair": lambda x: x[[1, 0, *range(2, len(x))]],
    "statistics of the batch": lambda x: functional.batch_norm(x, None, None, training=True),
}


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("name", COUPLED)
def test_samples_that_are_coupled_before_the_first_layer_are_refused(name: str, count: int) -> None:
    first, last = nn.Linear(4, 8), nn.Linear(8, 1)
    net = Custom(lambda net, x: net.last(torch.relu(net.first(COUPLED[name](x)))), first=first, last=last)
    with pytest.raises(ForetrainError, match=r"samples are mixed.* before the first layer") as caught:
        ft.infinite_width(net, rows(count))
    assert "ft.ensemble" not in str(caught.value)


@pytest.mark.parametrize(
    ("prepared", "plain"),
    [
        (lambda x: x / x.norm(dim=1, keepdim=True), lambda x: x / x.norm(dim=1, keepdim=True)),
        (lambda x: torch.tensor([3.0, 1.0, 2.0, 5.0]).double()[x.abs().clamp(max=3).long()], None),
        (lambda x: torch.linalg.cholesky(x[:, :, None] * x[:, None] + torch.eye(4)).flatten(1)[:, :4], None),
    ],
    ids=["norms of samples", "looked up", "defined for some inputs only"],
)
def test_inputs_prepared_sample_by_sample_are_read(
    prepared: Callable[[Tensor], Tensor], plain: Callable[[Tensor], Tensor] | None
) -> None:
    parts = {"first": nn.Linear(4, 8), "last": nn.Linear(8, 1)}
    found, expected = (
        ft.infinite_width(Custom(lambda net, x, f=f: net.last(torch.relu(net.first(f(x)))), **parts), x).ntk
        for f, x in ((prepared, rows()), (lambda x: x, (plain or prepared)(rows())))
    )
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_noise_of_numpy_and_inputs_that_become_nan_are_refused() -> None:
    parts = {"first": nn.Linear(4, 8), "last": nn.Linear(8, 1)}
    noise = np.random.default_rng(0)
    noisy = Custom(lambda net, x: net.last(torch.relu(net.first(x + noise.normal()))), **parts)
    with pytest.raises(ForetrainError, match="two passes with the same samples give different outputs"):
        ft.infinite_width(noisy, rows())
    counting = Custom(lambda net, x: net.last(torch.relu(net.first(x))) * len(x), **parts)
    with pytest.raises(ForetrainError, match="change with the other samples"):
        ft.infinite_width(counting, rows())
    with pytest.raises(ForetrainError, match="not finite from its inputs"):
        ft.infinite_width(Custom(lambda net, x: net.last(net.first(torch.log(x))), **parts), rows())


def test_bad_arguments_are_told() -> None:
    net = mlp(nn.ReLU())
    for options, sentence in (
        ({"init": "kaiming"}, "init"),
        ({"rates": "sgd"}, "rates"),
        ({"init": {"nothing": (1, 1)}}, "no layer has a name that matches 'nothing': the names are 0, 2"),
        ({"rates": {"*": 1.0}}, "two numbers for each pattern"),
        ({"init": {"*": (-1, 0)}}, "0 or more"),
    ):
        with pytest.raises(ForetrainError, match=sentence):
            ft.infinite_width(net, rows(), **options)  # type: ignore[arg-type]
    with pytest.raises(ForetrainError, match="not finite"):
        ft.infinite_width(net, rows() * torch.inf)
    with pytest.raises(ForetrainError, match="holds no sample"):
        ft.infinite_width(net, rows()[:0])
    with pytest.raises(ForetrainError, match="x is a str that holds no numbers"):
        ft.infinite_width(net, "rows")
    with pytest.raises(ForetrainError, match="x2 has samples of shape"):
        ft.infinite_width(net, rows(), rows()[:, :2])
    with pytest.raises(ForetrainError, match="must be a torch module or a function"):
        ft.infinite_width(3, rows())  # type: ignore[arg-type]
    for draws in (0, -1, 1, 1.5):
        with pytest.raises(ForetrainError, match="draws"):
            ft.infinite_width(net, rows(), draws=draws)
    two = Custom(lambda net, x, y: net.a(x) + net.b(y), a=nn.Linear(4, 8), b=nn.Linear(4, 8))
    two.forward = lambda x, y: two.compute(two, x, y)  # type: ignore[method-assign,assignment]
    with pytest.raises(
        ForetrainError, match="b: a layer with weights reads what is the same for all samples"
    ):
        ft.infinite_width(two, (rows(), rows()[:1]))
    slopes = nn.Sequential(nn.Linear(4, 8), nn.PReLU(8), nn.Linear(8, 1)).double()
    with pytest.raises(ForetrainError, match="one for each channel, have no rule here"):
        ft.infinite_width(slopes, rows(), rates="standard")
    with pytest.raises(ForetrainError, match="same sizes at every width"):
        ft.infinite_width(lambda n: mlp(nn.ReLU()), rows())


def test_the_reading_is_shown_as_a_table_and_inference_mode_changes_nothing() -> None:
    net = mlp(nn.ReLU())
    found = ft.infinite_width(net, rows(), init=GIVEN)
    assert str(found.reading).splitlines()[0].split()[:2] == ["module", "taken"]
    assert len(str(found.reading).splitlines()) == 4
    with torch.inference_mode():
        for inside in (net, mlp(nn.ReLU()), lambda n: mlp(nn.ReLU(), width=n)):
            np.testing.assert_array_equal(ft.infinite_width(inside, 1 * rows(), init=GIVEN).ntk, found.ntk)


def test_a_class_token_alone_sees_nothing_of_the_patches() -> None:
    found = ft.infinite_width(VitStem(16, "token").double().eval(), images(2, 16), init=GIVEN)
    np.testing.assert_allclose(found.nngp, np.full((2, 2), 1.9), rtol=1e-5)  # of what a norm leaves
    np.testing.assert_allclose(found.ntk, np.full((2, 2), found.ntk[0, 0]), rtol=1e-12)
    assert found.standard_error is None
    assert "exact" in str(found)


def test_gates_that_pool_and_scale_channels() -> None:
    """Squeeze and excitation: a gate of each channel, the same at all positions."""

    def forward(net: Any, x: Tensor) -> Tensor:
        h = torch.relu(net.conv(x))
        gate = torch.sigmoid(net.up(torch.relu(net.down(functional.adaptive_avg_pool2d(h, 1)))))
        result: Tensor = net.head((h * gate).mean((2, 3)))
        return result

    net = Custom(
        forward,
        conv=nn.Conv2d(3, 16, 3),
        down=nn.Conv2d(16, 8, 1),
        up=nn.Conv2d(8, 16, 1),
        head=nn.Linear(16, 1),
    )
    found = ft.infinite_width(net, images(), init=GIVEN)
    h = data((8, 8)).convolution(3, C_W=1.7, C_b=0.2).activation("relu")
    gate = h.mean().linear(C_W=1.7, C_b=0.2).activation("relu").linear(C_W=1.7, C_b=0.2).activation("sigmoid")
    expected = ft.infinite_width(
        (h * gate.broadcast((6, 6))).mean().linear(C_W=1.7, C_b=0.2), images().movedim(1, -1).numpy()
    )
    np.testing.assert_allclose(found.ntk, expected.ntk, rtol=1e-10)


def test_public_blocks_are_read_whole() -> None:
    found = ft.infinite_width(ConvNeXt(16).double().eval(), images(2, 16))
    kinds = [row.taken_for for row in found.rows]
    assert [kinds.count(one) for one in ("depthwise convolution", "gains", "LayerNorm")] == [4, 4, 7]


def test_several_threads_leave_functions_of_torch_as_they_were() -> None:
    plain = torch.autograd.Function.__dict__["apply"]
    with ThreadPoolExecutor(4) as pool:
        kernels = list(
            pool.map(lambda _: ft.infinite_width(mlp(nn.ReLU()), rows(), init=GIVEN).ntk, range(8))
        )
    assert torch.autograd.Function.__dict__["apply"] is plain
    for kernel in kernels:
        np.testing.assert_array_equal(kernel, kernels[0])
