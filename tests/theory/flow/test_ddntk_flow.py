"""ft.flow: R, S, T and U of the ddNTKs against the reference's numbers, exact solutions and limits."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics import linear_dntk
from foretrain.theory.flow import flow

TENSORS = tuple("VDFABPQRSTU")
X = np.array([[1, 0.5], [-0.4, 1.1], [0.3, -0.6]])


def network(name: object, depth: int = 3, C_W: float = 1.3) -> MLP:
    return MLP(name, depth=depth, width=20, C_b=0.1, C_W=C_W, lambda_b=0.5)


def cubic(z: np.ndarray) -> np.ndarray:
    return z + 0.2 * z**2 - z**3 / 6


SINGLE = {
    2: {"V": 0.097523738, "D": -0.11859737, "F": 0.15010191, "A": 0.16863813, "B": 1.3660368},
    3: {"V": 0.067807494, "D": -0.16376695, "F": 0.20934914, "A": 0.45882556, "B": 3.2479174},
    5: {"V": 0.039398443, "D": -0.24138905, "F": 0.30604870, "A": 1.8451707, "B": 10.250633},
    10: {"V": 0.018588728, "D": -0.43702042, "F": 0.54286408, "A": 14.273452, "B": 60.231942},
}
SINGLE[2] |= {"P": -0.38274194, "Q": -0.23264003, "R": -4.2252963, "S": 2.4470988, "T": 0.46568002}
SINGLE[3] |= {"P": -0.92521765, "Q": -0.52066935, "R": -13.294748, "S": 7.0187693, "T": 1.5627830}
SINGLE[5] |= {"P": -2.6951956, "Q": -1.6275733, "R": -69.176366, "S": 28.945048, "T": 10.637090}
SINGLE[10] |= {"P": -13.611857, "Q": -9.7516315, "R": -1047.2336, "S": 267.43896, "T": 242.25497}
FOURTH = {2: 1.0810620, 3: 2.5655936, 5: 8.2907538, 10: 51.740616}


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("inputs", [1, 2])
def test_single_input_of_the_reference(inputs: int) -> None:
    """The scalar recursion, and the entry of one input of a flow of two."""
    net, second = MLP("tanh", depth=10, width=20), [[0.4, -0.7]]
    data = np.array([[1.0, 1.0], *second][:inputs])
    found = flow(net, data, TENSORS)
    for layer, expected in SINGLE.items():
        for name, value in {**expected, "U": FOURTH[layer]}.items():
            assert found[name].values[layer - 1, 0, 0, 0, 0] == pytest.approx(value, rel=6e-8), (name, layer)


PLACES = ("0000", "0011", "0101", "0110", "0001", "1000")
TWO_INPUTS = {
    "V": (0.14537998, 0.011397747, 0.24739468, 0.24739468, 0.052166438, 0.052166438),
    "D": (-0.18442795, -0.012052514, 0.22026650, 0.22026650, -0.056630681, -0.059689297),
    "F": (0.23527784, 0.024905281, 0.57599416, 0.015899019, 0.15690678, 0.058792431),
    "A": (0.27114542, 0.012862859, 0.40434255, 0.40434255, 0.082084632, 0.082084632),
    "B": (2.2063694, 0.46547224, 1.5820919, 0.45029865, 0.90717805, 0.90717805),
    "P": (-0.71121374, -0.056953547, -0.056953547, -0.24100801, -0.17727532, -0.028790151),
    "Q": (-0.33686205, -0.025714933, 0.53571204, -0.23259458, -0.074794473, 0.11292566),
    "R": (-6.0280135, -1.1089572, -0.88693169, -0.88693169, -2.3133687, -0.37118689),
    "S": (3.6028312, 0.87181191, 1.4814485, 0.41519880, 1.5266058, 0.85997729),
    "T": (0.59854805, 0.027963095, -0.43856534, 1.0559165, -0.14317467, -0.14317467),
    "U": (1.2272871, 0.023461326, 0.39104286, 0.080445317, 0.61695618, 0.050393414),
}


def test_two_inputs_of_the_reference() -> None:
    found = flow(network("tanh"), X[:2], ["K", "Theta", *TENSORS])
    np.testing.assert_allclose(found["K"].values[-1, 0], [0.49182467, 0.22473621], atol=6e-9)
    np.testing.assert_allclose(found["Theta"].values[-1, 0], [1.95460736, 1.14413476], atol=6e-9)
    for name, expected in TWO_INPUTS.items():
        values = [found[name].values[-1][tuple(map(int, places))] for places in PLACES]
        np.testing.assert_allclose(values, expected, rtol=6e-8, err_msg=name)


@pytest.mark.parametrize(
    ("net", "expected"),
    [
        (
            network("sin", depth=4),
            {
                "R0000": -24.043536,
                "R0011": -5.2124538,
                "S0101": 6.3721014,
                "T0101": -2.0935061,
                "T0110": 4.8465211,
                "U0101": 1.5400017,
            },
        ),
        (
            network(cubic, C_W=1.0),
            {
                "R0000": -6.4264304,
                "S0000": 9.9768389,
                "T0000": 4.1283836,
                "U0000": 3.2847192,
                "R1000": -0.39892478,
                "T0110": 2.3499286,
            },
        ),
    ],
    ids=["sin", "cubic"],
)
def test_other_activations_of_the_reference(net: MLP, expected: dict[str, float]) -> None:
    found = flow(net, X[:2], list("RSTU"))
    for entry, value in expected.items():
        assert found[entry[0]].values[-1][tuple(map(int, entry[1:]))] == pytest.approx(value, rel=6e-8), entry


def test_deep_linear_network_of_the_reference() -> None:
    found = flow(MLP("linear", depth=10, width=20, lambda_b=0.1, lambda_W=0.1), [[1.0]], ["Theta", *TENSORS])
    expected = {"Theta": 2, "V": 18, "D": 9, "F": 9, "A": 5.7, "B": 11.4, "Q": 3.3, "S": 3.3, "T": 1.65}
    for name, value in {**expected, "P": 0, "R": 0, "U": 0}.items():
        assert found[name].values.ravel()[-1] == pytest.approx(value, rel=1e-12), name


@pytest.mark.slow
def test_deep_linear_networks_of_several_inputs() -> None:
    net = MLP("linear", depth=6, width=9, lambda_b=0.4, lambda_W=1.3)
    found = flow(net, X, list("FBPQRSTU"))
    for layer in range(1, 7):
        for name, expected in linear_dntk(X @ X.T / 2, layer, 0.4, 1.3).items():
            np.testing.assert_allclose(found[name].values[layer - 1], expected, rtol=1e-10, atol=1e-12)


def test_a_thousand_layers_of_the_reference() -> None:
    layer = np.arange(1, 1001)
    found = flow(
        MLP("tanh", depth=1000, width=20, lambda_b=list(1 / layer)), [[1.0]], ["K", "Theta", *TENSORS]
    )
    K, Theta = (float(found[name].values.ravel()[-1]) for name in ("K", "Theta"))
    expected = {"A": 0.0648237, "B": 0.331563, "P": -0.0829582, "Q": -0.0413048}
    for name, value in expected.items():
        assert found[name].values.ravel()[-1] / Theta**2 / 1000 == pytest.approx(value, rel=1e-5)
    cubed = {"R": -0.0691333, "S": 0.0278767, "T": 0.0136661, "U": 4.95412e-7}
    for name, value in cubed.items():
        assert found[name].values.ravel()[-1] * K / Theta**3 / 1000 == pytest.approx(value, rel=1e-5)


KEPT = {"R": [(0, 1, 3, 2)], "S": [(1, 0, 3, 2)], "T": [(3, 2, 1, 0)], "U": [(2, 3, 0, 1)]}
SWAPS = [(1, 0, 2, 3), (0, 2, 1, 3), (0, 1, 3, 2), (1, 0, 3, 2), (2, 3, 0, 1), (3, 2, 1, 0)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tanh", "gelu"])
def test_symmetries(name: str) -> None:
    """Those of the table of decompositions hold, and no other exchange of indices does."""
    net = MLP(name, depth=4, width=[9, 20, 12], C_b=0.1, C_W=1.4, lambda_b=0.5)
    found = flow(net, X, list("RSTU"))
    for key, kept in KEPT.items():
        tensor = found[key].values[1:]
        for order in SWAPS:
            gap = np.abs(tensor.transpose(0, *(1 + place for place in order)) - tensor).max()
            assert (gap < 1e-8 * np.abs(tensor).max()) == (order in kept), (key, order)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "gelu", "elu"])
def test_copies_of_an_input_behave_like_one(name: str) -> None:
    both, alone = (flow(network(name), X[chosen], list("RSTU")) for chosen in ([0, 0], [0]))
    for key in "RSTU":
        single = np.broadcast_to(alone[key].values, both[key].shape)
        np.testing.assert_allclose(both[key].values, single, rtol=5e-8 if name == "elu" else 2e-9, atol=1e-12)


@pytest.mark.slow
def test_quadruples_are_entries_of_the_whole() -> None:
    net = MLP("gelu", depth=4, width=[9, 20, 12], C_b=0.1, C_W=1.4, lambda_b=0.5)
    quadruples = np.array(
        [[0, 1, 2, 0], [2, 1, 0, 1], [0, 0, 1, 2], [1, 2, 1, 2], [2, 2, 0, 0], [1, 1, 1, 1]]
    )
    names = list("FBPQRSTU")
    whole, chosen = flow(net, X, names), flow(net, X, names, quadruples=quadruples)
    for key in names:
        entries = whole[key].values[:, *quadruples.T]
        np.testing.assert_allclose(chosen[key], entries, rtol=1e-9, atol=1e-10 * np.abs(entries).max())
    for key in "QT":
        entries = whole[key].values[:, *quadruples[:2].T]
        alone = flow(net, X, [key], quadruples=quadruples[:2])[key]
        np.testing.assert_allclose(alone, entries, rtol=1e-9, atol=1e-10 * np.abs(entries).max())


def test_training_the_last_layer_alone_moves_no_representation() -> None:
    """Rates zero below the output: Theta = K and A = V with rates C, and nothing else."""
    net = MLP("tanh", depth=4, width=20, C_b=0.1, C_W=1.3, lambda_b=[0, 0, 0, 0.1], lambda_W=[0, 0, 0, 1.3])
    found = flow(net, X, ["K", "Theta", *TENSORS])
    np.testing.assert_allclose(found["Theta"].values[-1], found["K"].values[-1], rtol=1e-12)
    np.testing.assert_allclose(found["A"].values[-1], found["V"].values[-1], rtol=1e-9, atol=1e-12)
    for name in "FBPQRSTU":
        assert not found[name].values.any()


@pytest.mark.slow
def test_kinks_are_refused_with_the_reason() -> None:
    for name in ("relu", "leaky_relu"):
        with pytest.raises(NotSupportedError, match=r"slope jumps.*1/sqrt"):
            flow(MLP(name, depth=3, width=10, C_W=2.0), X, ["S"])
    found = flow(MLP("elu", depth=3, width=10), X, ["S"])["S"].values
    assert np.isfinite(found).all()
