"""ft.flow: P and Q of the dNTK against the reference's numbers, exact solutions and limits."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import InputError, NotEnoughMemoryError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.flow import flow

X = np.array([[1, 0.3, -0.5], [0.2, -0.9, 0.8], [-0.4, 0.7, 0.6], [0.9, 0.9, 0.1]])
RATES = {"lambda_b": (0.3, 0.5, 0.4, 0.2), "lambda_W": (1, 0.7, 1.3, 0.9)}
NAMES = ["K", "Theta", "F", "B", "P", "Q"]


def network(name: object) -> MLP:
    return MLP(name, depth=4, width=[20, 30, 20], C_b=0.1, C_W=1.4, **RATES)


def shifted_sine(z: np.ndarray) -> np.ndarray:
    return np.sin(z + 0.5) - np.sin(0.5)


SINGLE = {
    "tanh": (
        MLP("tanh", depth=20, width=10),
        1.0,
        {
            2: (0.39429449, 2.3231003, 0.150101906, 1.36603683, -0.382741936, -0.23264003),
            3: (0.23645041, 2.71520727, 0.209349144, 3.2479174, -0.925217648, -0.520669347),
            4: (0.166656354, 3.13987536, 0.258659872, 6.10699328, -1.67578737, -0.968387427),
            10: (0.0580118478, 5.9132172, 0.54286408, 60.2319421, -13.611857, -9.75163151),
            20: (0.0272861595, 10.7540387, 1.02735217, 421.59239, -84.0698255, -69.292286),
        },
    ),
    "relu": (
        MLP("relu", depth=10, width=10, C_W=2.0),
        0.5,
        {2: (1, 3, 3, 4.5, 0, 1.5), 10: (1, 15, 135, 1282.5, 0, 247.5)},
    ),
    "linear": (
        MLP("linear", depth=10, width=10),
        1.0,
        {2: (1, 4, 2, 4, 0, 2), 10: (1, 20, 90, 1140, 0, 330)},
    ),
    "gelu": (
        MLP("gelu", depth=10, width=10, C_b=0.1, C_W=1.4),
        1.0,
        {
            2: (1.04060963, 3.00956654, 2.9637907, 3.72806838, 0.247879074, 2.36487243),
            4: (0.509261132, 3.34539508, 4.09254325, 12.2233253, 1.84982601, 7.59138866),
            10: (0.187539353, 2.10169326, 0.360533254, 2.77066056, 0.737919073, 1.4263119),
        },
    ),
    "shifted sine": (
        MLP(shifted_sine, depth=10, width=10, C_W=np.cos(0.5) ** -2, lambda_b=0.5),
        np.cos(0.5) ** 2,
        {
            3: (0.372034634, 2.169854, 0.545651003, 3.20741243, -0.73491775, -0.0266315114),
            10: (0.120586914, 4.180194, 1.16866989, 43.7035553, -9.57145728, -3.57275107),
        },
    ),
    "matched rates": (
        MLP("tanh", depth=100, width=10, lambda_b=list(0.6 / np.arange(1, 101))),
        1.0,
        {
            10: (0.0580118478, 1.18203639, 0.137055754, 4.17672729, -1.25387586, -0.407361619),
            100: (0.00512071567, 1.10072617, 0.136324394, 39.5113244, -10.1409428, -3.97924194),
        },
    ),
}


@pytest.mark.slow(after=4)
@pytest.mark.parametrize("case", SINGLE)
def test_single_input_of_the_reference(case: str) -> None:
    net, signal, rows = SINGLE[case]
    found = flow(net, [[np.sqrt(signal)]], NAMES)
    for layer, expected in rows.items():
        values = [found[name].values.ravel()[layer - 1] for name in NAMES]
        np.testing.assert_allclose(values, expected, rtol=8e-9, atol=1e-12)


PLACES = ("0000", "0001", "0110", "0011", "1010")
TWO_INPUTS = {
    ("tanh", 2): (
        (-0.11335500, 0.01370948, -0.00571022, 0.00145428, 0.00151865),
        (-0.05552819, 0.00645527, -0.00663021, 0.00053429, 0.13327239),
        (-0.00183999, 0.01072100),
    ),
    ("tanh", 3): (
        (-0.60107233, -0.00839129, -0.09863842, -0.00327291, -0.00328695),
        (-0.20354017, 0.00402513, -0.10395945, -0.00080185, 0.66812699),
        (0.00038767, 0.19890103),
    ),
    ("tanh", 4): (
        (-1.22118906, -0.18653624, -0.25913323, -0.05301161, -0.05326224),
        (-0.61210175, -0.07938120, -0.25771963, -0.02782547, 0.73331717),
        (0.01059225, 0.52056345),
    ),
    ("gelu", 4): (
        (0.25636703, 0.22720667, 0.03895475, 0.14213144, 0.13756063),
        (0.89741204, 0.48271101, 0.14838368, 0.26292982, 0.41559918),
        (0.13061593, 0.24340524),
    ),
    ("relu", 3): (
        (0, 0.31514276, 0, 0.12906791, 0.12515151),
        (1.26325870, 0.83361717, 0.21322272, 0.34036266, 0.84623852),
        (0.21733173, 0.23208363),
    ),
}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("name", "layer"), TWO_INPUTS)
def test_two_inputs_of_the_reference(name: str, layer: int) -> None:
    found = flow(network(name), X[:2], ["P", "Q", "F", "B"])
    at = {key: found[key].values[layer - 1] for key in found}
    P, Q, (F0110, B0011) = TWO_INPUTS[name, layer]
    for places, p, q in zip(PLACES, P, Q, strict=True):
        indices = tuple(map(int, places))
        np.testing.assert_allclose([at["P"][indices], at["Q"][indices]], [p, q], atol=6e-9, err_msg=places)
    np.testing.assert_allclose([at["F"][0, 1, 1, 0], at["B"][0, 0, 1, 1]], [F0110, B0011], atol=6e-9)


def test_kernels_of_two_inputs() -> None:
    found = flow(network("tanh"), X[:2], ["K", "Theta"]).to_dataset().sel(layer=3, input_1=0)
    np.testing.assert_allclose(found.K.values, [0.51402608, 0.11941816], atol=6e-9)
    np.testing.assert_allclose(found.Theta.values, [1.80312410, 0.79683321], atol=6e-9)


def test_kinks_almost_everywhere() -> None:
    found = flow(network("relu"), X[:2], ["P", "Q"], kinks="almost_everywhere")
    assert not found["P"].values.any()
    expected = dict(zip(PLACES, (1.26326, 0.64227, 0.20836, 0.21007, 0.70621), strict=True))
    for places, value in expected.items():
        assert found["Q"].values[2][tuple(map(int, places))] == pytest.approx(value, abs=6e-6)


def test_smooth_activations_do_not_feel_how_kinks_count() -> None:
    plain, other = (flow(network("gelu"), X[:2], ["P", "Q"], kinks=k) for k in ("delta", "almost_everywhere"))
    for name in "PQ":
        np.testing.assert_array_equal(plain[name], other[name])


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tanh", {"P0123": -0.06983002, "Q0123": -0.08865724, "P3120": -0.10671162, "Q3120": -0.11809597}),
        ("gelu", {"P0123": 0.02489918, "Q0123": 0.09540334}),
    ],
)
def test_four_inputs_of_the_reference(name: str, expected: dict[str, float]) -> None:
    net = MLP(
        name, depth=3, width=[20, 30], C_b=0.1, C_W=1.4, lambda_b=(0.3, 0.5, 0.4), lambda_W=(1, 0.7, 1.3)
    )
    found = flow(net, X, ["P", "Q"], quadruples=[[0, 1, 2, 3], [3, 1, 2, 0]])
    for entry, value in expected.items():
        column = 0 if entry[1:] == "0123" else 1
        assert found[entry[0]].values[-1, column] == pytest.approx(value, abs=6e-9)


@pytest.mark.slow
def test_delta_functions_are_the_limit_of_smooth_bends() -> None:
    """w gelu(z / w) tends to ReLU: a GELU network in the units z / w, with Theta / w^2 and hence P / w^4."""
    quadruples = [[0, 0, 0, 1], [0, 0, 1, 1], [1, 0, 1, 0]]

    def entries(name: str, width: float) -> np.ndarray:
        net = MLP(name, depth=3, width=10, C_W=2.0, lambda_b=0.4 / width**2)
        found = flow(net, X[:2] / width, ["P", "Q"], quadruples=quadruples, tolerance=1e-8)
        return width**4 * np.stack([found[key].values[1:] for key in "PQ"])

    limit, wide, narrow = entries("relu", 1.0), entries("gelu", 0.1), entries("gelu", 0.05)
    ratio = (narrow - limit) / (wide - limit)
    assert ((ratio > 0.35) & (ratio < 0.7)).all()
    np.testing.assert_allclose(2 * narrow - wide, limit, rtol=0.03)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "relu", "gelu"])
def test_symmetries(name: str) -> None:
    found = flow(network(name), X[:3], ["P", "Q"])
    P, Q = found["P"].values[1:], found["Q"].values[1:]
    np.testing.assert_allclose(P, P.transpose(0, 1, 3, 2, 4), rtol=1e-7, atol=1e-9)
    for tensor in (P, Q):
        for order in ((1, 0, 2, 3), (0, 1, 3, 2), (3, 1, 2, 0), (2, 3, 0, 1)):
            other = tensor.transpose(0, *(1 + place for place in order))
            assert np.abs(other - tensor).max() > 1e-3 * np.abs(tensor).max()
    assert np.abs(Q.transpose(0, 1, 3, 2, 4) - Q).max() > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tanh", "relu", "gelu"])
def test_copies_of_an_input_behave_like_one(name: str) -> None:
    both, alone = (flow(network(name), X[chosen], ["P", "Q"]) for chosen in ([0, 0, 1], [0, 1]))
    for key in "PQ":
        doubled = alone[key].values[np.ix_(range(4), *[[0, 0, 1]] * 4)]
        np.testing.assert_allclose(both[key].values, doubled, rtol=2e-8, atol=1e-9)


@pytest.mark.slow(after=2)
@pytest.mark.parametrize("name", ["tanh", "relu", "elu"])
def test_one_input_among_several_is_the_single_input(name: str) -> None:
    several, alone = flow(network(name), X[:2], ["P", "Q"]), flow(network(name), X[:1], ["P", "Q"])
    for key in "PQ":
        entry = several[key].values[:, 0, 0, 0, 0]
        np.testing.assert_allclose(entry, alone[key].values.ravel(), rtol=1e-11, atol=1e-13)


def test_permuting_inputs_permutes_the_tensors() -> None:
    order = [2, 0, 1]
    found, permuted = (flow(network("tanh"), X[:3][chosen], ["P", "Q"]) for chosen in ([0, 1, 2], order))
    for key in "PQ":
        chosen = found[key].values[np.ix_(range(4), *[order] * 4)]
        np.testing.assert_allclose(permuted[key].values, chosen, rtol=1e-9, atol=1e-11)


@pytest.mark.slow
def test_contractions_sum_all_entries() -> None:
    left, right = np.random.default_rng(5).standard_normal((2, 3, 3))
    whole = flow(network("tanh"), X[:3], ["P", "F", "R"])
    found = flow(network("tanh"), X[:3], ["P", "F", "R"], contract=(left, right))
    for key in "PFR":
        expected = np.einsum("ab,labcd,cd->l", left, whole[key].values, right)
        np.testing.assert_allclose(found[key], expected, rtol=1e-8, atol=1e-10)
        np.testing.assert_array_equal(found[key].standard_error, 0.0)
    alone = flow(network("tanh"), X[:1], ["P"], contract=[([[2.0]], [[0.5]]), ([[1.0]], [[3.0]])])["P"]
    np.testing.assert_allclose(alone[:, 1], 3 * alone[:, 0])


@pytest.mark.slow
def test_kernels_of_rank_two() -> None:
    """Three inputs in a plane and no biases, beside inputs a little apart."""
    plane = np.stack([X[0], X[1], 0.6 * X[0] - 0.8 * X[1]])
    net = MLP("tanh", depth=3, width=[20, 30], C_W=1.6)
    off = np.array([[0, 0, 0], [0, 0, 0], [1, 1, 1]])
    chosen = [[0, 1, 2, 0], [2, 0, 1, 2], [1, 2, 2, 0]]
    flat, near, nearer = (
        flow(net, plane + gap * off, ["P", "Q"], quadruples=chosen) for gap in (0.0, 2e-3, 1e-3)
    )
    for key in "PQ":
        first, second = near[key].values[2], nearer[key].values[2]
        np.testing.assert_allclose(2 * second - first, flat[key].values[2], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_an_input_that_is_zero() -> None:
    """tanh(0) = 0: it leaves the others alone, and its own entries are finite."""
    net = MLP("tanh", depth=4, width=[9, 14, 11], C_W=1.3, lambda_b=0.3)
    found, alone = (
        flow(net, np.concatenate([np.zeros((1, 3)), X[:2]]), ["P", "Q"]),
        flow(net, X[:2], ["P", "Q"]),
    )
    for key in "PQ":
        assert np.isfinite(found[key].values).all()
        inner = found[key].values[np.ix_(range(4), *[[1, 2]] * 4)]
        np.testing.assert_allclose(inner, alone[key].values, rtol=1e-8, atol=1e-11)
        assert not found[key].values[..., 0].any()  # no correlation with what is always zero


def test_multiples_of_an_input_have_no_delta_form() -> None:
    inputs = np.stack([X[0], 2 * X[0]])
    net = MLP("relu", depth=3, width=10, C_W=2.0)
    with pytest.raises(NotSupportedError, match="almost_everywhere"):
        flow(net, inputs, ["Q"])
    found = flow(net, inputs, ["Q"], kinks="almost_everywhere")["Q"].values
    rest = flow(net, X[:1], ["Q"])["Q"].values.ravel()
    np.testing.assert_allclose(found[:, 0, 0, 0, 0], rest, rtol=1e-10)


def test_what_cannot_be_had_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in "PQRSTU":
        with pytest.raises(NotSupportedError, match=f"{name} .*without skip"):
            flow(MLP("tanh", depth=4, width=10, gamma=0.5), X, [name])
    with pytest.raises(NotSupportedError, match="jumps"):
        flow(MLP("sign", depth=3, width=10), X, ["P"])
    with pytest.raises(InputError, match="kinks"):
        flow(network("relu"), X, ["P"], kinks="never")
    monkeypatch.setenv("FORETRAIN_MEMORY", "1MB")
    with pytest.raises(NotEnoughMemoryError, match="quadruples"):
        flow(network("tanh"), np.ones((30, 3)), ["P"])
