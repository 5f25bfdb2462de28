"""Laws of the dNTK and the ddNTKs in depth, against the recursion and the reference's coefficients."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics import dntk_laws, linear_dntk
from foretrain.theory.learning_rates import recommended

TENSORS = tuple("PQRSTU")


def bent(z: np.ndarray) -> np.ndarray:
    """p_perp = 0.56 / 0.92."""
    return np.tanh(z) + 0.6 * np.tanh(z) ** 2


def matched(name: object, depth: int, b: float, w: float, p: float) -> MLP:
    layer = np.arange(1.0, depth + 1)
    return MLP(name, depth, 100, lambda_b=list(b * layer**-p), lambda_W=list(w * layer ** (1 - p)))


@pytest.mark.parametrize("slopes", [(0.0, 1.0), (0.2, 1.0), (1.0, 1.0), (1.5, 1.5)])
@pytest.mark.parametrize("uniform", [True, False])
def test_closed_forms_are_exact_in_depth(slopes: tuple[float, float], uniform: bool) -> None:
    def act(z: np.ndarray) -> np.ndarray:
        return np.where(z > 0, slopes[1], slopes[0]) * z

    name = {(0.0, 1.0): "relu", (1.0, 1.0): "linear"}.get(slopes, act)
    source = np.random.default_rng(2)
    rates = source.uniform(0.1, 1.5, (2, 20)) if not uniform else np.array([[0.4] * 20, [1.3] * 20])
    C_W = 2 / (slopes[0] ** 2 + slopes[1] ** 2)
    net = MLP(name, 20, 100, C_W=C_W, lambda_b=list(rates[0]), lambda_W=list(rates[1]))
    laws = dntk_laws(net, [1.1, -0.3])
    assert ("R" in laws) == (slopes[0] == slopes[1])
    for tensor in TENSORS:
        if tensor in laws:
            np.testing.assert_allclose(*laws[tensor].values, rtol=1e-10, atol=1e-12, err_msg=tensor)
            assert laws[tensor].attrs["remainder"] == "none"
    assert ("Q/(nTheta^2)" in laws.attrs) == uniform


def test_uniform_rates_are_polynomials_of_the_layer() -> None:
    laws = dntk_laws(MLP("relu", 20, 100, C_W=2.0, lambda_b=0.4 / 20, lambda_W=1.3 / 20), [1.0])
    layer, X = np.arange(1, 21), 0.4 + 1.3 * 0.5 * 2.0
    Q = layer * (layer**2 - 1) / (6 * 20**2) * (0.5 / 0.5) * X * 1.3 * 2.0  # (11.80), A_4 = A_2 = 1/2, K* = 2
    np.testing.assert_allclose(laws["Q"].sel(law="asymptotic"), Q, rtol=1e-12)
    linear = dntk_laws(MLP("linear", 10, 100, lambda_b=0.1, lambda_W=0.1), [1.0]).sel(law="asymptotic")
    for name, value in linear_dntk([[1.0]], 10, 0.1, 0.1).items():
        assert float(linear[name].sel(layer=10)) == pytest.approx(value.item(), rel=1e-12)


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("name", ["tanh", "sin", "erf"])
@pytest.mark.parametrize(("b", "w"), [(1.0, 1.0), (0.3, 2.0)])
def test_odd_activations(name: str, b: float, w: float) -> None:
    """All within 1.5 % at layer 4000."""
    C_W = {"erf": np.pi / 4}.get(name, 1.0)
    laws = dntk_laws(matched(name, 4_000, b, w, 1.0).replace(C_W=C_W), [1.0]).isel(layer=-1)
    for tensor in TENSORS:
        exact, law = laws[tensor].values
        assert law == pytest.approx(exact, rel=1.5e-2), tensor


def test_coefficients_of_the_reference() -> None:
    """tanh at the matched rates: a_1 = -2, e = b + w / 2."""
    b, w = 0.6, 1.0
    laws = dntk_laws(matched("tanh", 50, b, w, 1.0), [1.0])
    e = b + w / 2
    expected = {
        "P/(nTheta^2)": -1 / 12,
        "Q/(nTheta^2)": -b / (16 * e),
        "RK/(nTheta^3)": -(3 * b + 4 * w / 2) / (48 * e),
        "SK/(nTheta^3)": w / 2 / (12 * e),
        "TK/(nTheta^3)": (b / e) ** 2 / 32,
        "p_P": -1,
        "p_Q": -1,
        "p_R": -2,
        "p_S": -2,
        "p_T": -2,
        "p_U": 0,
    }
    for name, value in expected.items():
        assert laws.attrs[name] == pytest.approx(value, abs=1e-12), name
    assert laws["U"].values[1, -1] == pytest.approx(e**3)  # (-a_1) e^3 / 2
    own = recommended(MLP("tanh", 50, 100)).on(MLP("tanh", 50, 100))
    assert dntk_laws(own, [1.0]).attrs["P/(nTheta^2)"] == pytest.approx(-1 / 12)


@pytest.mark.slow
@pytest.mark.parametrize("case", ["matched", "uniform", "uniform tanh"])
def test_laws_that_were_derived(case: str) -> None:
    """Errors fall with depth; at layer 20000, 1 % (T of the first 7 %) is left."""
    depth, p = 5_000, 0.56 / 0.92
    nets = {
        "matched": matched(bent, depth, 0.5, 1.3, p),
        "uniform": MLP(bent, depth, 100, lambda_b=0.5, lambda_W=1.3),
        "uniform tanh": MLP("tanh", depth, 100, lambda_b=0.5, lambda_W=1.3),
    }
    laws = dntk_laws(nets[case], [0.3])
    for tensor in TENSORS:
        exact, law = laws[tensor].values
        miss = np.abs(law[1:] / exact[1:] - 1)
        assert miss[-1] < (0.25 if tensor == "T" else 0.04), tensor
        assert miss[-1] < 0.6 * miss[depth // 10], tensor


def test_what_has_no_law_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="no law is known"):
        dntk_laws(MLP("gelu", 5, 10), [1.0])
    with pytest.raises(NotSupportedError, match="equal hidden widths"):
        dntk_laws(MLP("tanh", 3, [5, 6]), [1.0])
    with pytest.raises(InputError, match="zero"):
        dntk_laws(MLP("tanh", 3, 5), [0.0])
    with pytest.raises(InputError, match="square"):
        linear_dntk([1.0], 3)
    with pytest.raises(InputError, match="layer"):
        linear_dntk([[1.0]], 0)
