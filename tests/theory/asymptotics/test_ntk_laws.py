"""Laws of the tangent kernel in depth, and deep linear networks exactly."""

from __future__ import annotations

import numpy as np
import pytest

from foretrain.support.errors import InputError, NotSupportedError
from foretrain.theory.architecture import MLP
from foretrain.theory.asymptotics.ntk_laws import exact_linear_ntk, ntk_laws
from foretrain.theory.ensembles import forward, sample_parameters
from foretrain.theory.flow import flow
from foretrain.theory.learning_rates import recommended
from foretrain.theory.network_tangent_kernel import output_kernel

TENSORS = ("K", "V", "Theta", "D", "F", "B", "A")


def powers(name: object, depth: int, b: float, w: float, p: float) -> MLP:
    layer = np.arange(1.0, depth + 1)
    return MLP(name, depth, 100, lambda_b=list(b * layer**-p), lambda_W=list(w * layer ** (1 - p)))


@pytest.mark.parametrize("slopes", [(0.0, 1.0), (1.0, 1.0), (0.2, 1.0), (-0.5, 1.5)])
def test_closed_forms_are_exact_in_depth(slopes: tuple[float, float]) -> None:
    def act(z: np.ndarray) -> np.ndarray:
        return np.where(z > 0, slopes[1], slopes[0]) * z

    name = {(0.0, 1.0): "relu", (1.0, 1.0): "linear"}.get(slopes, act)
    C_W = 2 / (slopes[0] ** 2 + slopes[1] ** 2)
    laws = ntk_laws(MLP(name, 30, 100, C_W=C_W, lambda_b=0.4, lambda_W=1.3), [1.1, -0.3])
    for tensor in TENSORS:
        exact, law = laws[tensor].values
        np.testing.assert_allclose(law, exact, rtol=1e-10, atol=1e-12, err_msg=tensor)
        assert laws[tensor].attrs["remainder"] == "none"


@pytest.mark.parametrize("name", ["relu", "linear"])
def test_sums_with_rates_of_every_layer(name: str) -> None:
    source = np.random.default_rng(1)
    rates = {"lambda_b": list(source.uniform(0.1, 1, 12)), "lambda_W": list(source.uniform(0.1, 1, 12))}
    laws = ntk_laws(MLP(name, 12, 100, C_W={"relu": 2.0, "linear": 1.0}[name], **rates), [0.9])
    for tensor in TENSORS:
        np.testing.assert_allclose(*laws[tensor].values, rtol=1e-11, atol=1e-13, err_msg=tensor)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (2, {"V": 20, "D": 14, "F": 8, "A": 13, "B": 8}),
        (10, {"Theta": 20, "V": 180, "D": 630, "F": 360, "A": 3225, "B": 2280}),
        (50, {"Theta": 100, "V": 980, "D": 17150, "F": 9800, "A": 447125, "B": 323400}),
    ],
)
def test_integers_of_relu(layer: int, expected: dict[str, int]) -> None:
    laws = ntk_laws(MLP("relu", 50, 100, C_W=2.0), [1.0]).sel(layer=layer)
    for name, value in expected.items():
        np.testing.assert_allclose(laws[name].values, value, rtol=1e-12)


def test_coefficients_of_the_measures() -> None:
    laws = ntk_laws(MLP("relu", 4000, 100, C_W=2.0), [1.0])
    for name in ("V/(nK^2)", "D/(nKTheta)", "F/(nKTheta)", "B/(nTheta^2)", "A/(nTheta^2)"):
        slope = laws[name].values[:, -1] * 100 / 4000
        np.testing.assert_allclose(slope, laws.attrs[name], rtol=2e-3)
    assert [laws.attrs[name] for name in ("V/(nK^2)", "F/(nKTheta)")] == [5, 1]
    zero = ntk_laws(recommended(MLP("tanh", 20, 100)).on(MLP("tanh", 20, 100)), [1.0])
    expected = {"V/(nK^2)": 2 / 3, "D/(nKTheta)": -2 / 13.5, "F/(nKTheta)": 1 / 4, "B/(nTheta^2)": 1 / 3}
    for name, value in expected.items():
        assert zero.attrs[name] == pytest.approx(value)
    assert zero.attrs["A/(nTheta^2)"] == pytest.approx(4 / 27 / 2.25)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tanh", "sin", "erf"])
def test_deep_laws_of_odd_activations(name: str) -> None:
    """Within 0.3 % at layer 20000, for all seven."""
    depth, C_W = 20_000, {"erf": np.pi / 4}.get(name, 1.0)
    mlp = powers(name, depth, 0.5, 1.3, 1.0).replace(C_W=C_W)
    laws = ntk_laws(mlp, [1.0]).isel(layer=-1)
    for tensor in TENSORS:
        exact, law = laws[tensor].values
        assert law == pytest.approx(exact, rel=3e-3), tensor


@pytest.mark.slow
def test_deep_laws_with_an_even_part() -> None:
    """p_perp = 0.609: K 0.1 %, Theta 0.25 %, D 1.7 %, A 9.5 % at layer 20000, shrinking with depth."""
    p, depth = 0.56 / 0.92, 20_000
    bounds = {"K": 2e-3, "V": 1e-2, "Theta": 4e-3, "D": 0.02, "F": 1e-2, "B": 1e-2, "A": 0.1}

    def act(z: np.ndarray) -> np.ndarray:
        return np.tanh(z) + 0.6 * np.tanh(z) ** 2

    laws = ntk_laws(powers(act, depth, 0.5, 1.3, p), [1.0])
    for tensor, bound in bounds.items():
        exact, law = laws[tensor].values[:, 1:]
        miss = np.abs(law / exact - 1)
        assert miss[-1] < bound, tensor
        assert miss[-1] < miss[depth // 10], tensor
    values = laws.sel(law="exact", layer=100)
    expected = [0.0102494341, 10.3730815, 0.00791389318, 0.637938798, 2.62487952, 287.134572, 3579.35749]
    np.testing.assert_allclose(
        [float(values[tensor]) for tensor in ("K", "Theta", "V", "D", "F", "A", "B")], expected, rtol=1e-5
    )


@pytest.mark.slow(after=1)
@pytest.mark.parametrize(("name", "p"), [("tanh", 1.0), ("bent", 0.56 / 0.92)])
def test_uniform_rates(name: str, p: float) -> None:
    """Derived from (9.13)-(9.16): corrections shrink with depth and are small at layer 8000."""

    def act(z: np.ndarray) -> np.ndarray:
        return np.tanh(z) + 0.6 * np.tanh(z) ** 2

    depth = 8_000
    laws = ntk_laws(MLP(act if name == "bent" else name, depth, 100, lambda_b=0.5, lambda_W=1.3), [1.0])
    assert laws.attrs["p_perpendicular"] == pytest.approx(p, rel=1e-6)
    for tensor in ("Theta", "D", "F", "B", "A"):
        exact, law = laws[tensor].values[:, 1:]
        miss = np.abs(law / exact - 1)
        assert miss[-1] < 0.02, tensor
        assert miss[-1] < 0.2 * miss[20:200].max(), tensor


def test_exact_linear_numbers() -> None:
    """The reference's exact values at width 8 and their leading order."""
    mlp = MLP("linear", 4, 8, lambda_b=0.4, lambda_W=1.3)
    x = [0.7**0.5]
    found = exact_linear_ntk(mlp, x).sel(layer=4)
    exact = {"V": 3.73625, "D": 9.98309375, "F": 6.700203125, "A": 31.612415625, "B": 26.7872078125}
    leading = {"V": 2.94, "D": 7.644, "F": 5.502, "A": 23.1868, "B": 24.0254}
    laws = ntk_laws(mlp, x).sel(layer=4, law="asymptotic")
    for name in exact:
        assert float(found[name]) == pytest.approx(exact[name], rel=1e-12)
        assert float(laws[name]) == pytest.approx(leading[name], rel=1e-10)


def test_exact_linear_tends_to_the_recursion() -> None:
    """Slopes, C_W, rates and widths of their own: 1/n corrections vanish in proportion to 1/n; none at layer 2."""

    def act(z: np.ndarray) -> np.ndarray:
        return 1.3 * z

    misses = []
    for scale in (100, 10_000):
        mlp = MLP(
            act,
            5,
            [3 * scale, 2 * scale, 5 * scale, 4 * scale],
            C_W=[1, 0.6, 0.5, 0.7, 0.8],
            lambda_b=[0.3, 0.2, 0.5, 0.1, 0.7],
            lambda_W=[1, 0.7, 1.2, 0.5, 0.2],
        )
        leading, exact = flow(mlp, [[0.8, -0.4]], TENSORS), exact_linear_ntk(mlp, [0.8, -0.4])
        rows = {name: leading[name].values.reshape(5) for name in TENSORS}
        for name in TENSORS:
            np.testing.assert_allclose(exact[name].values[:2], rows[name][:2], rtol=1e-8)
        np.testing.assert_allclose(exact.Theta, rows["Theta"], rtol=1e-8)
        misses.append([exact[name].values[4] / rows[name][4] - 1 for name in ("V", "D", "F", "A", "B")])
    np.testing.assert_allclose(misses[0], 100 * np.array(misses[1]), rtol=0.05)


@pytest.mark.statistical
def test_exact_linear_against_networks() -> None:
    draws = 200_000
    mlp = MLP("linear", 3, [4, 6], n_in=1, n_out=2, lambda_b=0.4, lambda_W=1.3, C_W=[1, 1.2, 0.8])
    parameters = sample_parameters(mlp, draws, seed=3)
    H, z = output_kernel(parameters, [[0.8]])[..., 0, 0], forward(parameters, [[0.8]])[3][..., 0]
    found = exact_linear_ntk(mlp, [0.8]).sel(layer=3)
    center = H[:, 0, 0] - H[:, 0, 0].mean(), H[:, 1, 1] - H[:, 1, 1].mean()
    samples = {
        "D": 6 * z[:, 0] ** 2 * center[1],
        "F": 6 * z[:, 0] * z[:, 1] * H[:, 0, 1],
        "A": 6 * center[0] * center[1],
        "B": 6 * H[:, 0, 1] ** 2,
        "Theta": H[:, 0, 0],
    }
    for name, values in samples.items():
        z_score = (values.mean() - float(found[name])) / (values.std() / np.sqrt(draws))
        assert abs(z_score) < 3.3, name


def test_what_has_no_law_is_refused() -> None:
    with pytest.raises(NotSupportedError, match="no law is known"):
        ntk_laws(MLP("gelu", 5, 10), [1.0])
    with pytest.raises(NotSupportedError, match="no law is known"):
        ntk_laws(MLP("relu", 5, 10, C_W=1.9), [1.0])
    with pytest.raises(NotSupportedError, match="equal hidden widths"):
        ntk_laws(MLP("tanh", 3, [5, 6]), [1.0])
    with pytest.raises(NotSupportedError, match="laws are known for"):
        ntk_laws(MLP("tanh", 3, 5, lambda_b=[1, 2, 3]), [1.0])
    with pytest.raises(InputError, match="zero"):
        ntk_laws(MLP("tanh", 3, 5), [0.0])
    with pytest.raises(NotSupportedError, match="linear networks"):
        exact_linear_ntk(MLP("relu", 3, 5), [1.0])
    with pytest.raises(InputError, match="one input"):
        exact_linear_ntk(MLP("linear", 3, 5), [[1.0]])
