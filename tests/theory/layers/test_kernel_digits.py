"""Kernels of small networks to the digits of the reference (architectures, section 12).

Inputs are field(shape).flat[k] = sin(0.9 + 1.1 k + 0.05 k^2), layout (N, positions..., channels), N = 2; the numbers
are the entries 00, 01, 11 of NNGP and NTK. V: layers whose constants and rates all differ. P: ntk rates, C_W = 1.5
and C_b = 0.1 everywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foretrain.theory.layers import Signal, concatenated, data, joined, kernels, table, tokens

pytestmark = pytest.mark.usefixtures("loops")

NAMES = ("C_W", "C_b", "lambda_W", "lambda_b")
H0 = dict(zip(NAMES, (1.5, 0.2, 0.7, 0.3)))
H1 = dict(zip(NAMES, (1.8, 0.1, 0.9, 0.2)))
H2 = dict(zip(NAMES, (1.2, 0.3, 0.5, 0.4)))
HO = dict(zip(NAMES, (1.1, 0.1, 0.6, 0.25)))
P = {"C_W": 1.5, "C_b": 0.1}
TOKENS = np.array([[0, 1, 2], [2, 1, 1]])


def field(*shape: int) -> NDArray[np.float64]:
    k = np.arange(np.prod(shape))
    return np.sin(0.9 + 1.1 * k + 0.05 * k**2).reshape(shape)


def gate() -> Signal:
    return data(4).linear(**H0).activation("erf")


def half_gated() -> Signal:
    both = gate().linear(**H1)
    return both.channels(0, 0.5) * both.channels(0.5, 1).activation("sigmoid")


def two_layers() -> tuple[Signal, Signal]:
    first = data().linear(**H0)
    return first, first.activation("relu")


def embedded() -> Signal:
    words = tokens(3, variance=1, rate=0.6) + table(3, variance=0.5, rate=0.3)
    return joined([table(1, variance=0.8, rate=0.2), words])


def post_activation_block() -> Signal:
    y = data(4).linear(**H0).activation("relu")
    return (y + y.convolution(3, padding=1, **H1)).activation("relu").mean().linear(**HO)


def v8() -> Signal:
    a, relu = two_layers()
    both = concatenated([relu.linear(**H1), a.activation("erf").linear(**H2)], [1, 3])
    return both.linear(**HO).activation("relu").linear(**H2)


def v8b() -> Signal:
    a, relu = two_layers()
    return (a + 0.5 * relu.linear(**H1)).activation("gelu").linear(**HO)


def v8c() -> Signal:
    a, relu = two_layers()
    return (relu + a.activation("erf").linear(**H2)).linear(**HO)


def pooled(count_include_pad: bool) -> Signal:
    images = data((4, 5)).convolution(3, padding=1, **H0).activation("relu")
    small = images.average_pool(
        (3, 2), stride=2, padding=1, ceil_mode=True, count_include_pad=count_include_pad
    )
    return small.linear(**H1).activation("erf").flatten(**HO)


def smoothed(count_include_pad: bool) -> Signal:
    images = data((4, 5)).convolution(3, padding=1, **P).activation("relu")
    small = images.average_pool(3, stride=1, padding=1, count_include_pad=count_include_pad)
    return small.linear(**P).activation("erf").flatten(**P)


def gated_product() -> Signal:
    b = data().linear(**P).activation("erf")
    return (b.linear(**P).activation("relu") * b.linear(**P)).linear(**P)


def two_streams() -> Signal:
    c = data(8).convolution(3, padding=1, **P)
    both = joined([c.activation("erf").linear(**P), c.activation("relu").linear(**P)])
    return both.activation("relu").mean().linear(**P)


CASES: dict[str, tuple[Callable[[], Signal], Any, str, str]] = {
    "V1": (
        lambda: (
            data(8)
            .convolution(3, stride=2, padding=1, **H0)
            .activation("tanh")
            .convolution(2, dilation=2, **H1)
            .activation("relu")
            .mean()
            .linear(**HO)
        ),
        field(2, 8, 3),
        ".384828323 .2874575831 .4300144787",
        ".7438195995 .4911719812 .8331490643",
    ),
    "V2": (
        lambda: (
            data((4, 5))
            .convolution(3, padding=1, mode="reflect", **H0)
            .activation("relu")
            .convolution(3, padding=1, mode="circular", **H1)
            .activation("erf")
            .flatten(**HO)
        ),
        field(2, 4, 5, 2),
        ".5926853987 .3151070975 .6140805939",
        "1.280872276 .6223745417 1.321858866",
    ),
    "V2b": (
        lambda: (
            data((4, 5))
            .convolution(3, padding=1, **H0)
            .activation("relu")
            .convolution(3, padding=1, **H1)
            .activation("erf")
            .flatten(**HO)
        ),
        field(2, 4, 5, 2),
        ".4927382064 .2949882604 .5125713574",
        "1.074665915 .6192182617 1.107606579",
    ),
    "V3": (
        lambda: (
            data(4)
            .linear(**H0)
            .activation("gelu")
            .transposed_convolution(3, stride=2, padding=1, output_padding=1, **H1)
            .activation("relu")
            .mean()
            .linear(**HO)
        ),
        field(2, 4, 3),
        ".2333819345 .2284412876 .2337306027",
        ".4415717092 .4237312293 .4422474378",
    ),
    "V4": (
        lambda: pooled(True),
        field(2, 4, 5, 2),
        ".333929248 .3060712139 .3420007198",
        ".7419392882 .6761344146 .7516772364",
    ),
    "V4b": (
        lambda: pooled(False),
        field(2, 4, 5, 2),
        ".4668755306 .3725275128 .4782326454",
        ".992652536 .7661015606 1.006711298",
    ),
    "V5": (
        lambda: (
            data(4)
            .linear(**H0)
            .activation("relu")
            .layer_norm(gain=0.7, shift=0.4)
            .linear(**H1)
            .activation("gelu")
            .mean()
            .linear(**HO)
        ),
        field(2, 4, 3),
        ".6000349024 .5650755518 .6252389097",
        "1.666010257 1.492110832 1.796280354",
    ),
    "V5b": (
        lambda: (
            data(4)
            .linear(**H0)
            .activation("relu")
            .rms_norm(gain=0.7)
            .linear(**H1)
            .activation("gelu")
            .mean()
            .linear(**HO)
        ),
        field(2, 4, 3),
        ".7170291331 .6937033779 .7333191941",
        "1.510444427 1.403611718 1.593328134",
    ),
    "V5c": (
        lambda: (
            data(4)
            .linear(**H0)
            .activation("relu")
            .layer_norm(over_positions=True, gain=0.7, shift=0.4)
            .convolution(3, padding=1, **H1)
            .activation("relu")
            .mean()
            .linear(**HO)
        ),
        field(2, 4, 3),
        ".5931054602 .5099855983 .5477559016",
        "1.379390619 1.003150608 1.271507297",
    ),
    "V5d": (
        lambda: gate().linear(**H1).layer_norm(gain=0.7).activation("relu").flatten(**HO),
        field(2, 4, 3),
        ".6499939634 .432464275 .6499936516",
        "1.709627643 1.008593894 1.730084673",
    ),
    "V5e": (
        lambda: (
            data(8)
            .convolution(3, padding=1, **H0)
            .activation("relu")
            .convolution(3, padding=1, **H1)
            .batch_norm(gain=0.7, shift=0.4)
            .activation("relu")
            .mean()
            .linear(**HO)
        ),
        field(2, 8, 3),
        ".4036752629 .3640489348 .3963348854",
        "1.018087629 .8872603704 1.013076738",
    ),
    "V5f": (
        lambda: gate().linear(**H1).layer_norm(gain=0.7, shift=0.4).activation("tanh").flatten(**HO),
        field(2, 4, 3),
        ".5337217445 .2796384331 .5337216312",
        "1.493416383 .9203699747 1.512417635",
    ),
    "V6": (
        lambda: (gate_pair(lambda g: g.linear(**H1).activation("swish") * g.linear(**H2))).flatten(**HO),
        field(2, 4, 3),
        ".3980255648 .222529126 .399219674",
        "1.240488516 .6571364542 1.247345039",
    ),
    "V6b": (
        lambda: half_gated().mean().linear(**HO),
        field(2, 4, 3),
        ".2190033699 .2090797558 .216457491",
        ".5450802996 .5213353172 .5508187719",
    ),
    "V7": (
        post_activation_block,
        field(2, 4, 3),
        ".8562349164 .8147435496 .8539948995",
        "1.118519507 .9947776389 1.112832177",
    ),
    "V8": (v8, field(2, 6), ".9632678524 .6329707339 .9084223908", "1.917056836 .8699877559 1.810867031"),
    "V8b": (v8b, field(2, 6), ".7382967237 .204865652 .6024594012", "1.129052605 .3750061327 .9709344099"),
    "V8c": (v8c, field(2, 6), "1.635707249 .5043774643 1.46877442", "2.686654624 1.015394305 2.489650499"),
    "V9": (
        lambda: embedded().linear(**H1).activation("relu").mean().linear(**HO),
        TOKENS,
        ".782739313 .7664200736 .8593193743",
        "1.035661112 .9627256556 1.180918624",
    ),
    "V9b": (
        lambda: embedded().convolution(3, padding=1, **H1).activation("relu").take(0, 0).linear(**HO),
        TOKENS,
        ".914 .6484271797 .914",
        "1.5465 .8931075941 1.5465",
    ),
    "P1": (
        lambda: (
            data((4, 5))
            .convolution(3, padding=1, **P)
            .activation("leaky_relu(slope=0.2)")
            .convolution((3, 1), padding=(1, 0), **P)
            .activation("sin")
            .sum()
            .linear(**P)
        ),
        field(2, 4, 5, 2),
        "76.84225267 73.91405568 79.19777332",
        "174.9941591 163.8499763 183.3166249",
    ),
    "P2": (
        lambda: (
            data(8)
            .linear(**P)
            .activation("gelu")
            .transposed_convolution(3, stride=2, **P)
            .activation("relu")
            .mean()
            .linear(**P)
        ),
        field(2, 8, 3),
        ".2497550951 .2342764372 .2387156207",
        ".355770001 .3067280937 .3379755437",
    ),
    "P3": (
        lambda: (
            data(8)
            .linear(**P)
            .activation("relu")
            .convolution(3, shared=False, **P)
            .activation("relu")
            .mean()
            .linear(**P)
        ),
        field(2, 8, 3),
        ".3352955932 .2921418015 .3364260959",
        ".5044419715 .311629996 .506601458",
    ),
    "P4": (
        lambda: smoothed(False),
        field(2, 4, 5, 2),
        ".4868770474 .4507020806 .5148157969",
        "1.024856762 .8739846595 1.109399703",
    ),
    "P4b": (
        lambda: smoothed(True),
        field(2, 4, 5, 2),
        ".3969602017 .380075146 .4154615271",
        ".7773022585 .7045230488 .8296624604",
    ),
    "P5": (
        lambda: data(8).convolution(3, padding=1, **P).activation("relu").take(0, 2).linear(**P),
        field(2, 8, 3),
        ".7479068865 .2131021454 .7587949796",
        "1.395813773 .1294707441 1.417589959",
    ),
    "P6": (
        gated_product,
        field(2, 6),
        ".5601385638 .09229859847 .4823682637",
        "2.455595806 .0639967421 2.013373007",
    ),
    "P7": (
        lambda: (
            data((4, 5))
            .convolution(3, padding=1, **P)
            .layer_norm(over_positions=True, epsilon=1e-12)
            .activation("relu")
            .flatten(**P)
        ),
        field(2, 4, 5, 2),
        ".85 .3571546266 .85",
        "1.6 .3780637416 1.6",
    ),
    "P8": (
        two_streams,
        field(2, 8, 3),
        ".3433561541 .3145293515 .3366845438",
        ".4814223514 .3803359343 .4810472715",
    ),
    "P9": (
        lambda: data(8).convolution(2, **P).activation("abs").flatten(**P),
        field(2, 8, 3),
        "1.397524885 .9335646849 1.346688219",
        "2.69504977 .9987558479 2.593376439",
    ),
}


def gate_pair(combine: Callable[[Signal], Signal]) -> Signal:
    return combine(gate())


@pytest.mark.parametrize("name", CASES)
def test_kernels_to_the_digits_of_the_reference(name: str) -> None:
    network, x, nngp, ntk = CASES[name]
    found = kernels(network(), x)
    for values, digits in zip(found, (nngp, ntk), strict=True):
        entries = [values[0, 0], values[0, 1], values[1, 1]]
        np.testing.assert_allclose(entries, [float(text) for text in digits.split()], rtol=2e-9)


@pytest.mark.parametrize("name", ["V1", "V4", "V5c", "V6b", "V9", "P3", "P8"])
def test_a_rectangle_of_two_sets_is_a_part_of_the_square(name: str) -> None:
    network, x, _, _ = CASES[name]
    output = network()
    square = kernels(output, x)
    np.testing.assert_allclose(kernels(output, x[:1], x), square[:, :1], rtol=1e-12)
    np.testing.assert_allclose(square, np.swapaxes(square, 1, 2), rtol=1e-13)


@pytest.mark.parametrize(
    ("width", "first", "second"), [(64, 33.56252086, 10.58066629), (1024, 489.9999477, 145.3040336)]
)
def test_standard_rates_make_the_kernel_grow_with_the_width(width: int, first: float, second: float) -> None:
    """V15."""

    def layer(fan_in: int) -> dict[str, float]:
        return dict(zip(NAMES, (1.6, 0.1, fan_in, 1.0)))

    output = (
        data(8)
        .convolution(3, stride=2, padding=1, **layer(9))
        .activation("tanh")
        .convolution(2, dilation=2, **layer(2 * width))
        .activation("relu")
        .mean()
        .linear(**layer(width))
    )
    ntk = kernels(output, field(2, 8, 3))[1]
    np.testing.assert_allclose([ntk[0, 0], ntk[0, 1]], [first, second], rtol=1e-9)
