"""ft.flow: Theta, H1, D, F, A, B against the reference's numbers, exact solutions and limits."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import InputError, NotEnoughMemoryError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

ALL = ["K", "Theta", "V", "D", "F", "A", "B"]
X = np.array([[1, 0.5, -0.7], [0.2, -1.1, 0.9], [1.3, 0.4, 0.6], [-0.5, 0.8, 0.3]])
RATES = {"lambda_b": (0.3, 0.2, 0.5, 0.1), "lambda_W": (1, 0.7, 1.2, 0.5)}
NETS = {
    "tanh": MLP(
        "tanh", depth=4, width=[36, 24, 48], C_b=(0.1, 0.05, 0.2, 0.1), C_W=(1, 1.5, 1.3, 1.2), **RATES
    ),
    "relu": MLP(
        "relu", depth=4, width=[36, 24, 48], C_b=(0.1, 0.05, 0.2, 0.1), C_W=(1.5, 2, 1.8, 2), **RATES
    ),
}
TWO_INPUTS = {
    "tanh": {
        "K": {"00": 0.454886196, "01": 0.180017769, "11": 0.460107646},
        "Theta": {"00": 1.40256225, "01": 0.439089051, "11": 1.42291789},
        "H1": {"00": -0.0906339451, "01": 0.231489533, "11": -0.0771862772},
        "G1": {"00": -0.0876664051, "01": 0.0813509519},
        "V": {"0000": 0.136358562, "0001": 0.00989467046, "0101": 0.280962604, "0011": 0.00555805025},
        "D": {
            "0000": -0.258919397,
            "0001": -0.0668463094,
            "0100": 0.00578768199,
            "0101": 0.288234421,
            "0011": -0.010003282,
            "1100": -0.00957288788,
        },
        "F": {
            "0000": 0.239773408,
            "0001": 0.0778393303,
            "0101": 0.712860509,
            "0011": 0.00823201633,
            "0110": 0.00462087009,
        },
        "A": {"0000": 0.560138511, "0001": 0.157832141, "0101": 0.462771216, "0011": 0.0196927964},
        "B": {
            "0000": 2.92863916,
            "0001": 0.488799558,
            "0101": 2.01702803,
            "0011": 0.12938243,
            "0110": 0.127836781,
        },
    },
    "relu": {
        "K": {"00": 1.218, "01": 0.837781066, "11": 1.362},
        "Theta": {"00": 2.76905, "01": 0.891521358, "11": 3.04745},
        "H1": {"00": 0.0, "01": 0.416457317},
        "V": {"0000": 19.75772, "0001": 8.02313126, "0101": 7.03243924, "0011": 2.99181574},
        "D": {
            "0000": 21.6621177,
            "0001": 4.76171025,
            "0100": 8.47457344,
            "0101": 4.49024588,
            "0011": 2.66293132,
            "1100": 2.71442376,
        },
        "F": {
            "0000": 11.8779734,
            "0001": 2.06755455,
            "0101": 8.17008903,
            "0011": 1.6896112,
            "0110": 1.71520224,
        },
        "A": {"0000": 33.4057919, "0001": 6.44510062, "0101": 3.8649832, "0011": 3.07927359},
        "B": {
            "0000": 19.6211384,
            "0001": 3.32286336,
            "0101": 10.4248836,
            "0011": 1.20580549,
            "0110": 1.14486109,
        },
    },
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", NETS)
def test_two_inputs_of_the_reference(name: str) -> None:
    expected = TWO_INPUTS[name]
    found = flow(NETS[name], X[:2], list(expected))
    for key, entries in expected.items():
        last = found[key].values[-1]
        for places, value in entries.items():
            assert last[*map(int, places)] == pytest.approx(value, rel=6e-9, abs=1e-12), (key, places)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("name", "C_W", "expected"),
    [
        (
            "tanh",
            1.5,
            {"V": -0.063245959, "D": -0.14764325, "F": -0.10799136, "B": 0.075695223, "A": -0.19304154},
        ),
        (
            "relu",
            2.0,
            {"V": 1.6234374, "D": 1.3691906, "F": 0.83662906, "B": 0.26678525, "A": 1.1253603},
        ),
    ],
)
def test_four_inputs_of_the_reference(name: str, C_W: float, expected: dict[str, float]) -> None:
    net = MLP(name, depth=3, width=[20, 30], C_b=0.1, C_W=C_W, lambda_b=0.4, lambda_W=1.2)
    for quadruple, names in (([0, 1, 2, 3], "VDA"), ([0, 2, 1, 3], "FB")):
        found = flow(net, X, list(names), quadruples=[quadruple])
        for key in names:
            assert float(found[key].values[-1, 0]) == pytest.approx(expected[key], rel=8e-8)


def single(net: MLP, names: list[str], layer: int, x: float = 1.0) -> list[float]:
    found = flow(net, [[x]], names)
    return [float(found[name].values.ravel()[layer - 1]) for name in names]


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (2, (0.39429449, 1.8231003, 0.0975237381, -0.118597367, 0.150101906, 0.168638133, 1.36603683, 0)),
        (
            3,
            (
                0.23645041,
                1.73026832,
                0.0678074939,
                -0.120140774,
                0.169018485,
                0.271846227,
                2.21289732,
                -0.0219301017,
            ),
        ),
        (
            10,
            (
                0.0580118478,
                1.55397299,
                0.0185887276,
                -0.10916403,
                0.179085839,
                1.07070488,
                7.09889734,
                -0.444991152,
            ),
        ),
        (
            50,
            (
                0.0104307384,
                1.49049692,
                0.00344655646,
                -0.107562469,
                0.182625797,
                6.43282274,
                35.4598243,
                -4.14243052,
            ),
        ),
    ],
)
def test_single_input_tanh_table(layer: int, expected: tuple[float, ...]) -> None:
    net = MLP("tanh", depth=50, width=10, lambda_b=[1 / (k + 1) for k in range(50)])
    np.testing.assert_allclose(single(net, [*ALL, "H1"], layer), expected, rtol=6e-9, atol=1e-14)


def bent(z: np.ndarray) -> np.ndarray:
    return np.tanh(z) + 0.6 * np.tanh(z) ** 2


LAYERS = np.arange(1, 101)
P = 0.56 / 0.92
SINGLE = {
    "uniform tanh": (
        MLP("tanh", depth=10, width=10),
        {"Theta": 5.9132172, "D": -0.437020421, "F": 0.54286408, "A": 14.2734519, "B": 60.2319421},
    ),
    "sin": (
        MLP("sin", depth=10, width=10, lambda_b=1 / LAYERS[:10]),
        {
            "K": 0.0921811387,
            "Theta": 2.10247713,
            "V": 0.0500900686,
            "D": -0.203798032,
            "F": 0.420795572,
            "A": 1.41089937,
            "B": 14.1147853,
        },
    ),
    "gelu": (
        MLP("gelu", depth=10, width=10, C_b=0.1, C_W=1.8),
        {
            "K": 0.541538647,
            "Theta": 6.3771442,
            "V": 12.0761094,
            "D": 93.8057118,
            "F": 29.3797153,
            "A": 827.788883,
            "B": 147.559033,
        },
    ),
    "not odd": (
        MLP(bent, depth=100, width=10, lambda_b=0.5 * LAYERS**-P, lambda_W=1.3 * LAYERS ** (1 - P)),
        {
            "K": 0.0102494341,
            "Theta": 10.3730815,
            "V": 0.00791389318,
            "D": 0.637938798,
            "F": 2.62487952,
            "A": 287.134572,
            "B": 3579.35749,
        },
    ),
    "recommended tanh": (
        MLP("tanh", depth=20, width=10, lambda_b=1 / LAYERS[:20]),
        {"Theta": 1.51120609, "D": -0.107426536, "F": 0.180675831, "A": 2.35193628, "B": 14.0559248},
    ),
    "recommended relu": (
        MLP("relu", depth=20, width=10, C_W=2.0, lambda_b=1 / 20, lambda_W=1 / 20),
        {"Theta": 2.0, "V": 380.0, "D": 133.0, "F": 76.0, "A": 68.875, "B": 49.4},
    ),
}


@pytest.mark.slow(after=3)
@pytest.mark.parametrize("case", SINGLE)
def test_single_input_of_other_networks(case: str) -> None:
    net, expected = SINGLE[case]
    np.testing.assert_allclose(single(net, list(expected), net.depth), list(expected.values()), rtol=6e-9)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (2, (4, 20, 14, 8, 13, 8)),
        (10, (20, 180, 630, 360, 3225, 2280)),
        (50, (100, 980, 17150, 9800, 447125, 323400)),
    ],
)
def test_relu_has_exact_integers(layer: int, expected: tuple[int, ...]) -> None:
    found = single(MLP("relu", depth=50, width=10, C_W=2.0), ALL[1:], layer)
    np.testing.assert_allclose(found, expected, rtol=1e-13)


@pytest.mark.parametrize("slopes", [(1.0, 0.0), (1.0, 0.3), (1.0, 1.0), (1.0, -1.0)])
def test_closed_forms_of_scale_invariant_networks(slopes: tuple[float, float]) -> None:
    plus, minus = slopes
    A_2, A_4 = (plus**2 + minus**2) / 2, (plus**4 + minus**4) / 2
    b, rate, x = 0.4, 1.3, 0.9
    K, a_4 = x**2 / A_2, A_4 / A_2**2
    w, k = rate * A_2 * K, np.arange(1, 31)
    c = (a_4 - 1) * b**2 + 3 * (a_4 - 1) * b * w + (5 * a_4 - 3) * w**2
    squares, line = k * (k - 1) * (2 * k - 1) / 6, k * (k - 1) / 2
    expected = {
        "Theta": (b + w) * k,
        "V": (k - 1) * (3 * a_4 - 1) * K**2,
        "D": line * K * ((a_4 - 1) * b + (4 * a_4 - 2) * w),
        "F": line * a_4 * (b + w) * K,
        "B": squares * a_4 * (b + w) ** 2,
        "A": squares * c + line * (a_4 - 1) * w * (b + w),
        "H1": np.zeros(30),
    }
    net = MLP(
        lambda z: np.where(z > 0, plus * z, minus * z),
        depth=30,
        width=10,
        C_W=1 / A_2,
        lambda_b=b,
        lambda_W=rate,
    )
    found = flow(net, [[x]], list(expected))
    for name, values in expected.items():
        np.testing.assert_allclose(found[name].values.ravel(), values, rtol=2e-11, atol=1e-10)


def exact_deep_linear(n: int, layers: int, g: float, b: float, w: float) -> dict[str, float]:
    """Deep linear network of hidden width n, exact in n: moments of q, t, s, u layer by layer."""
    h = b + w * g
    qq, qt, tt, s, u = g**2 * (1 + 2 / n), g * h, h**2, h * g, h**2
    for _ in range(layers - 2):
        qc, ct, cc = b * g + w * qq, b * h + w * qt, b**2 + 2 * b * w * g + w**2 * qq
        q_t = qc + qt + 2 / n**2 * s
        t_t = cc + 2 * ct + tt + 2 / n**2 * u
        s, u = qc + qt + (1 + 1 / n) * s, cc + 2 * ct + tt + (1 + 1 / n) * u
        qq, qt, tt, h = (1 + 2 / n) * qq, q_t, t_t, b + w * g + h
    c = b + w * g
    return {
        "V": n * (qq - g**2),
        "D": n * (b * g + w * qq + qt - g * (c + h)),
        "A": n * (b**2 + 2 * b * w * g + w**2 * qq + 2 * (b * h + w * qt) + tt - (c + h) ** 2),
        "F": s,
        "B": u,
    }


def test_deep_linear_networks() -> None:
    """The exact values of the reference at n = 8, and the leading order as their limit."""
    at_eight = exact_deep_linear(8, 4, 0.7, 0.4, 1.3)
    exact = {"V": 3.73625, "D": 9.98309375, "F": 6.700203125, "A": 31.612415625, "B": 26.7872078125}
    for name, value in exact.items():
        assert at_eight[name] == pytest.approx(value, rel=1e-12)
    net = MLP("linear", depth=4, width=8, lambda_b=0.4, lambda_W=1.3)
    leading = {"V": 2.94, "D": 7.644, "F": 5.502, "A": 23.1868, "B": 24.0254}
    found = single(net, list(leading), 4, np.sqrt(0.7))
    np.testing.assert_allclose(found, list(leading.values()), rtol=1e-12)
    wide, wider = (exact_deep_linear(n, 4, 0.7, 0.4, 1.3) for n in (10**3, 10**4))
    for name, value in leading.items():
        assert (wide[name] - value) / (wider[name] - value) == pytest.approx(10, rel=0.02)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "relu", "gelu"])
def test_copies_of_an_input_behave_like_one(name: str) -> None:
    net, names = NETS["tanh"].replace(activation=name), [*ALL, "G1", "H1"]
    both, alone = flow(net, X[[0, 0]], names), flow(net, X[:1], names)
    for key in names:
        doubled = both[key].values.reshape(4, -1)
        single_value = alone[key].values.reshape(4, 1)
        np.testing.assert_allclose(
            doubled, np.broadcast_to(single_value, doubled.shape), rtol=2e-9, atol=1e-12
        )


def test_one_input_among_several_is_the_single_input_to_twelve_digits() -> None:
    for net in NETS.values():
        several, alone = flow(net, X[:2], ALL), flow(net, X[:1], ALL)
        for key in ALL:
            entry = several[key].values[(slice(None), *(0,) * (several[key].ndim - 1))]
            np.testing.assert_allclose(entry, alone[key].values.ravel(), rtol=1e-12, atol=1e-14)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_inputs_that_depend_on_each_other(name: str) -> None:
    """Three inputs in a plane and no biases: K of layer 1 has rank two; beside inputs a little apart."""
    plane = np.stack([X[0], X[1], 0.6 * X[0] - 0.8 * X[1]])
    net = NETS[name].replace(C_b=0.0, depth=3, width=[36, 24], C_W=1.6, lambda_b=0.3, lambda_W=1.1)
    off = np.array([[0, 0, 0], [0, 0, 0], [1, 1, 1]])
    names = ["D", "F", "A", "B"]
    flat, near, nearer = (flow(net, plane + gap * off, names) for gap in (0.0, 2e-3, 1e-3))
    for key in names:
        first, second = near[key].values[2], nearer[key].values[2]
        np.testing.assert_allclose(2 * second - first, flat[key].values[2], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the kernel of input 0 is exactly zero")
@pytest.mark.parametrize("name", ["relu", "tanh", "elu"])
def test_a_zero_input_leaves_the_others_alone(name: str) -> None:
    net, names = MLP(name, depth=4, width=[9, 14, 11], C_W=1.3, lambda_b=0.3), [*ALL, "H1"]
    found, alone = flow(net, np.concatenate([np.zeros((1, 3)), X[:2]]), names), flow(net, X[:2], names)
    for key in names:
        values = found[key].values
        assert np.isfinite(values).all()
        inner = values[np.ix_(range(4), *[[1, 2]] * (values.ndim - 1))]
        np.testing.assert_allclose(inner, alone[key].values, rtol=1e-7, atol=1e-10)


def test_multiples_of_an_input_of_relu() -> None:
    """F has two legs that scale with the input, D as well; A and B none, without learning of weights."""
    net = MLP("relu", depth=4, width=[9, 14, 11], C_W=1.8, lambda_b=0.7, lambda_W=0.0)
    found = flow(net, np.stack([X[0], 2 * X[0]]), ["D", "F", "A", "B", "H1"])
    alone = flow(net, X[:1], ["D", "F", "A", "B"])
    for places in np.ndindex(2, 2, 2, 2):
        a, b, c, _ = places
        for name, power in (("D", a + b), ("F", a + c), ("A", 0), ("B", 0)):
            np.testing.assert_allclose(
                found[name].values[:, *places], 2**power * alone[name].values.ravel(), rtol=1e-9, atol=1e-12
            )
    np.testing.assert_allclose(found["H1"].values, 0.0, atol=1e-11)


def test_nearly_parallel_inputs_of_relu_keep_the_first_order_in_the_angle() -> None:
    net = MLP("relu", depth=4, width=30, C_W=2.0)
    slopes = []
    for psi in (1e-2, 1e-3, 1e-4):
        inputs = np.sqrt(2) * np.array([[1.0, 0.0], [np.cos(psi), np.sin(psi)]])
        found = flow(net, inputs, ["A", "B"])
        last = {name: found[name].values[-1] for name in ("A", "B")}
        slopes.append(
            [
                (last["A"][0, 1, 0, 1] / last["A"][0, 0, 0, 0] - 1) / psi,
                (last["B"][0, 1, 0, 1] / last["B"][0, 0, 0, 0] - 1) / psi,
            ]
        )
    np.testing.assert_allclose(slopes[2], slopes[1], rtol=4e-3)
    np.testing.assert_allclose(slopes[2], [-0.2263, -0.5911], rtol=1e-3)


@pytest.mark.slow
def test_mean_correction_of_nearly_parallel_inputs_of_relu() -> None:
    """H1 between inputs at an angle psi vanishes with psi, as 2.546 psi."""
    net = MLP("relu", depth=4, width=30, C_W=2.0)
    for psi in (1e-2, 1e-3, 1e-4, 1e-5):
        inputs = np.sqrt(2) * np.array([[1.0, 0.0], [np.cos(psi), np.sin(psi)]])
        found = flow(net, inputs, ["H1"])["H1"].values[-1]
        assert found[0, 1] == pytest.approx(2.546 * psi, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("name", NETS)
def test_symmetries(name: str) -> None:
    found = {key: flow(NETS[name], X[:3], ["D", "F", "A", "B"])[key].values for key in ("D", "F", "A", "B")}
    D, F, A, B = (found[key] for key in ("D", "F", "A", "B"))

    def same(tensor: np.ndarray, order: tuple[int, ...]) -> bool:
        return np.allclose(tensor, tensor.transpose(0, *(1 + k for k in order)), rtol=1e-7, atol=1e-9)

    kept = [(D, (1, 0, 2, 3)), (D, (0, 1, 3, 2)), (F, (2, 3, 0, 1)), (B, (1, 0, 3, 2)), (B, (2, 3, 0, 1))]
    kept += [(A, order) for order in ((1, 0, 2, 3), (0, 1, 3, 2), (2, 3, 0, 1))]
    lost = [(D, (2, 3, 0, 1)), (F, (1, 0, 3, 2)), (F, (1, 0, 2, 3)), (B, (1, 0, 2, 3))]
    assert all(same(tensor, order) for tensor, order in kept)
    assert not any(same(tensor, order) for tensor, order in lost)
    for layer in range(1, 4):
        assert np.linalg.eigvalsh(A[layer].reshape(9, 9)).min() > -1e-8 * np.abs(A).max()
        assert np.linalg.eigvalsh(found["B"][layer].reshape(9, 9)).min() > -1e-8 * np.abs(B).max()


@pytest.mark.slow
def test_permuting_inputs_permutes_the_tensors() -> None:
    order, names = [2, 0, 1], ["Theta", "H1", "D", "F", "A", "B"]
    found, permuted = flow(NETS["tanh"], X[:3], names), flow(NETS["tanh"], X[:3][order], names)
    for key in names:
        values = found[key].values
        chosen = values[np.ix_(range(4), *[order] * (values.ndim - 1))]
        np.testing.assert_allclose(permuted[key].values, chosen, rtol=1e-7, atol=1e-9)


def test_corrections_of_the_initialisation_shift_the_mean() -> None:
    """C_W + C_W_1 / n with one n for all layers: H1 is the derivative of Theta."""
    h, names = 1e-5, ["H1"]
    net = NETS["tanh"].replace(width=20)
    added = flow(net, X[:2], names, C_W_1=[0.0, 0.3, -0.2, 0.5])["H1"].values
    plain = flow(net, X[:2], names)["H1"].values
    C_W = np.array(net.C_W)
    up, down = (
        flow(net.replace(C_W=C_W + sign * h * np.array([0.0, 0.3, -0.2, 0.5])), X[:2], ["Theta"])[
            "Theta"
        ].values
        for sign in (1, -1)
    )
    np.testing.assert_allclose(added - plain, (up - down) / (2 * h), rtol=1e-6, atol=1e-8)
    alone = [flow(net, X[:1], names, C_W_1=c)["H1"].values[:, 0, 0] for c in ([0.0, 0.3, -0.2, 0.5], 0.0)]
    np.testing.assert_allclose(alone[0] - alone[1], (added - plain)[:, 0, 0], rtol=1e-8, atol=1e-12)


@pytest.mark.parametrize(
    ("name", "C_W", "expected"),
    [
        ("tanh", 1.0, (1.377696343, 1.083947697, 1.396870118)),
        ("relu", 2.0, (2.18392, 1.318403390, 2.299746667)),
    ],
)
def test_tangent_kernel_of_residual_networks(name: str, C_W: float, expected: tuple[float, ...]) -> None:
    net = MLP(name, depth=5, width=9, C_b=0.05, C_W=C_W * 0.64, lambda_b=0.3, lambda_W=0.7, gamma=0.6)
    found = flow(net, [[1, 0.2, -0.5], [0.4, 1.1, 0.3]], ["K", "Theta"])["Theta"].sel(layer=4).values
    np.testing.assert_allclose([found[0, 0], found[0, 1], found[1, 1]], expected, rtol=1e-9)


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (
            MLP(
                "tanh",
                depth=3,
                width=9,
                C_b=[0.1, 0.1, 0.05],
                C_W=[1.2, 1.3, 1],
                lambda_b=[0.2, 0.3, 0.1],
                lambda_W=[0.6, 0.8, 0.5],
            ),
            {(0, 0): 0.8089803799, (0, 1): 0.2561721197, (3, 4): 0.2318013940},
        ),
        (
            MLP("relu", depth=4, width=9, C_W=2.0, lambda_b=0.125, lambda_W=0.2),
            {(0, 0): 1.08136, (0, 1): 0.4051299111},
        ),
    ],
    ids=["tanh", "relu"],
)
def test_tangent_kernel_of_five_inputs(net: MLP, expected: dict[tuple[int, int], float]) -> None:
    inputs = 1.3 * np.array(
        [[1, 0.2, -0.5], [-0.4, 1.1, 0.3], [0.1, -0.6, 1.2], [0.8, 0.7, 0.1], [-0.9, 0.3, 0.8]]
    )
    found = flow(net, inputs, ["Theta"])["Theta"].values[-1]
    for places, value in expected.items():
        assert found[places] == pytest.approx(value, rel=1e-9)


@pytest.mark.slow
def test_depth_of_a_hundred_thousand_follows_the_asymptotic_laws() -> None:
    L = 100_000
    net = MLP("tanh", depth=L, width=10, lambda_b=1 / np.arange(1, L + 1))
    K, Theta, D, F, A, B = single(net, ["K", "Theta", "D", "F", "A", "B"], L)
    found = [D / (K * Theta) / L, F / (K * Theta) / L, B / Theta**2 / L, A / Theta**2 / L]
    t = 1.5
    np.testing.assert_allclose(found, [-2 / (9 * t), 1 / 4, 1 / 3, 4 / (27 * t**2)], rtol=2e-3)


def test_what_cannot_be_had_is_refused() -> None:
    residual = MLP("tanh", depth=4, width=10, gamma=0.5)
    for name in ("H1", "D", "F", "A", "B"):
        with pytest.raises(NotSupportedError, match=f"{name} .*without skip"):
            flow(residual, X, [name])
    with pytest.raises(NotSupportedError, match="jumps"):
        flow(MLP("sign", depth=3, width=10), X, ["Theta"])
    with pytest.raises(InputError, match="none of which"):
        flow(NETS["tanh"], X, ["Theta"], quadruples=[[0, 1, 2, 3]])


def test_tensors_that_do_not_fit_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    with pytest.raises(NotEnoughMemoryError, match="quadruples"):
        flow(NETS["tanh"], np.ones((40, 3)), ["F"])
