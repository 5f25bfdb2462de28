"""Any Python callable as an activation."""

from __future__ import annotations

import cmath
import decimal
import math
import pickle
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy import interpolate, special

from foretrain.activations import activation
from foretrain.activations._callables import custom
from foretrain.support.errors import InputError, NotSupportedError

Z = np.concatenate([np.linspace(-6.0, 6.0, 49), [1e-3, -1e-3, 17.0, -17.0]])


@pytest.fixture(autouse=True)
def _warnings_are_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def scalar_softplus(z: float) -> float:
    return math.log1p(math.exp(-abs(z))) + max(z, 0.0)


def scalar_leaky(z: float) -> float:
    return z if z >= 0 else 0.1 * z


def scaled_tanh(z: Any, steepness: float) -> Any:
    return np.tanh(steepness * z)


ANALYTIC: list[tuple[str, Callable[..., Any]]] = [
    ("tanh", lambda z: 2.0 / (1.0 + np.exp(-2.0 * z)) - 1.0),
    ("sigmoid", lambda z: 0.5 * (1.0 + np.tanh(0.5 * z))),
    ("swish", lambda z: z / (1.0 + np.exp(-z))),
    ("gelu", lambda z: z * special.ndtr(z)),
    ("softplus", lambda z: np.log1p(np.exp(z))),
    ("mish", lambda z: z * np.tanh(np.log1p(np.exp(z)))),
    ("sin", lambda z: np.sin(z)),
]


@pytest.mark.parametrize(("name", "function"), ANALYTIC)
def test_analytic_numpy_functions_by_contour(name: str, function: Callable[..., Any]) -> None:
    mine, member = activation(function), activation(name)
    assert mine.is_smooth
    assert "complex contour" in repr(mine)
    assert mine.parity == member.parity
    for order in range(7):
        expected = member.derivative(Z, order)
        scale = float(np.max(np.abs(expected)))
        np.testing.assert_allclose(
            mine.derivative(Z, order), expected, rtol=1e-12, atol=1e-14 * scale * 4**order
        )


def test_real_only_functions_by_chebyshev_interpolation() -> None:
    mine, member = activation(math.tanh), activation("tanh")
    text = repr(mine)
    assert "Chebyshev" in text
    assert "contour" not in text
    assert "called once per entry" in text
    for order, accuracy in ((0, 2e-16), (1, 1e-13), (2, 1e-12), (3, 2e-11), (4, 1e-9), (5, 2e-8)):
        np.testing.assert_allclose(
            mine.derivative(Z, order), member.derivative(Z, order), rtol=0, atol=accuracy
        )


def test_scalar_branches_of_a_smooth_function_are_no_kinks() -> None:
    mine = activation(scalar_softplus)
    assert mine.is_smooth
    np.testing.assert_allclose(mine.derivative(Z, 2), activation("softplus").derivative(Z, 2), atol=1e-11)


def test_mpmath_functions_keep_their_digits() -> None:
    mine, member = activation(lambda z: mpmath.tanh(z)), activation("tanh")
    assert "mpmath" in repr(mine)
    points = np.array([-3.0, -0.2, 0.0, 0.7, 5.0])
    for order in range(7):
        np.testing.assert_allclose(
            mine.derivative(points, order), member.derivative(points, order), rtol=1e-13, atol=1e-20
        )


def test_absolute_values_do_not_deceive_the_contour() -> None:
    """np.abs takes complex numbers but is not analytic; mpmath helps out near the kink."""
    mine, member = activation(lambda z: z / (1.0 + np.abs(z))), activation("softsign")
    assert "contour" not in repr(mine)
    points = np.array([-2.0, -0.01, 0.0, 0.01, 3.0])
    for order in range(7):
        np.testing.assert_allclose(
            mine.derivative(points, order), member.derivative(points, order), rtol=1e-10, atol=1e-10
        )
    np.testing.assert_allclose(mine.kinks[0].jumps, member.kinks[0].jumps[:7], rtol=1e-10, atol=1e-10)


def test_derivatives_are_right_continuous_at_a_kink() -> None:
    mine = activation(lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))))
    member = activation("elu")
    for order, accuracy in zip(range(7), (1e-15, 1e-14, 1e-12, 1e-12, 1e-11, 1e-10, 1e-9)):
        points = np.array([-1.0, -1e-4, 0.0, 1e-4, 2.0])
        np.testing.assert_allclose(
            mine.derivative(points, order), member.derivative(points, order), atol=accuracy
        )


def test_what_cannot_be_had_is_refused_by_name() -> None:
    rough = activation(lambda z: float(z) / (1.0 + math.fabs(z)))
    np.testing.assert_allclose(rough.derivative(np.array([0.0, 1.0]), 2), [-2.0, -0.25], atol=1e-8)
    with pytest.raises(NotSupportedError, match=r"derivative 6 .*derivatives="):
        rough.derivative(0.0, 6)
    assert math.isnan(rough.kinks[0].jumps[6])


def test_steep_functions_are_judged_by_their_own_scale() -> None:
    mine = activation(partial(scaled_tanh, steepness=50.0))
    assert mine.name == "scaled_tanh"
    np.testing.assert_allclose(mine.taylor(5), [0.0, 50.0, 0.0, -2 * 50.0**3, 0.0, 16 * 50.0**5], rtol=1e-9)


@pytest.mark.slow(after=6)
@pytest.mark.parametrize("width", [1.0, 0.1, 0.03, 0.01, 0.003])
@pytest.mark.parametrize("centre", [1.234, -0.5])
@pytest.mark.parametrize("exponential", [np.exp, math.exp])
def test_narrow_bumps(width: float, centre: float, exponential: Callable[..., Any]) -> None:
    act = activation(lambda t: exponential(-0.5 * ((t - centre) / width) ** 2))
    assert act.is_smooth
    assert act.degree is None
    x = np.array([-3.0, -1.0, 0.0, 0.7, 4.0, 30.0])
    values = np.exp(-0.5 * x**2)
    expected = [values, -x * values, (x**2 - 1) * values, -(x**3 - 3 * x) * values]
    for order, derivative in enumerate(expected):
        found = act.derivative(centre + width * x, order) * width**order
        np.testing.assert_allclose(found, derivative, atol=1e-7)


def test_a_feature_that_vanishes_at_the_point_is_not_overlooked() -> None:
    """Windows of ordinary size around 0 would meet the wavelet at its zero only."""

    def wavelet(z: float) -> float:
        return math.tanh(z) + z / 0.003 * math.exp(-0.5 * (z / 0.003) ** 2)

    for function in (wavelet, lambda z: np.tanh(z) + z / 0.003 * np.exp(-0.5 * (z / 0.003) ** 2)):
        slopes = activation(function).taylor(3)
        np.testing.assert_allclose(slopes[[1, 3]], [1 + 1 / 0.003, -2 - 3 / 0.003**3], rtol=1e-7)


def test_many_points_of_a_steep_function() -> None:
    mine = activation(lambda z: np.tanh(2000.0 * z))
    points = np.linspace(-0.01, 0.01, 1001)
    inside = np.tanh(2000.0 * points)
    np.testing.assert_allclose(mine.derivative(points, 1), 2e3 * (1 - inside**2), atol=1e-6)
    np.testing.assert_allclose(mine.derivative(points, 2), -8e6 * inside * (1 - inside**2), atol=1e-2)


def test_many_points_agree_with_few() -> None:
    mine = activation(lambda z: np.tanh(z) * np.exp(-0.1 * z**2))
    points = np.random.default_rng(3).normal(scale=4.0, size=(40, 50))
    few = points[:2, :7]
    for order in (1, 3, 5):
        many = mine.derivative(points, order)
        assert many.shape == points.shape
        np.testing.assert_allclose(many[:2, :7], mine.derivative(few, order), rtol=1e-10, atol=1e-11)


def test_many_points_across_a_kink() -> None:
    mine = activation(lambda z: np.where(z > 0, z, np.expm1(np.minimum(z, 0.0))))
    points = np.concatenate([np.linspace(-60.0, 60.0, 4001), [0.0]])
    for order in (1, 2, 3):
        np.testing.assert_allclose(
            mine.derivative(points, order), activation("elu").derivative(points, order), atol=1e-11
        )


def test_given_derivatives_are_used_and_extended() -> None:
    calls = []

    def first(z: Any) -> Any:
        calls.append(np.size(z))
        return 1.0 - np.tanh(z) ** 2

    mine = activation(math.tanh, derivatives=[first], name="mine")
    calls.clear()
    np.testing.assert_allclose(mine.derivative(Z, 1), activation("tanh").derivative(Z, 1), atol=1e-15)
    assert calls
    assert mine.max_order == 6
    np.testing.assert_allclose(mine.derivative(Z, 4), activation("tanh").derivative(Z, 4), atol=1e-9)
    assert "given to order 1, then by differentiating the last" in repr(mine)


def test_given_derivatives_of_a_kinked_function_give_exact_jumps() -> None:
    mine = activation(
        lambda z: np.where(z > 0, z, 0.5 * np.expm1(np.minimum(z, 0.0))),
        derivatives=[
            lambda z, k=k: np.where(z > 0, float(k == 1), 0.5 * np.exp(np.minimum(z, 0.0)))
            for k in range(1, 8)
        ],
    )
    assert mine.max_order == 7
    np.testing.assert_allclose(mine.kinks[0].jumps, [0.0, 0.5] + 5 * [-0.5], atol=1e-13)
    assert mine.derivative(0.0, 1) == 1.0
    assert mine.derivative(-0.0, 7) == 0.0


def test_wrong_derivatives_are_refused_with_order_and_place() -> None:
    with pytest.raises(InputError, match=r"derivative 2 of sine"):
        activation(lambda z: np.sin(z), derivatives=[np.cos, np.cos], name="sine")
    with pytest.raises(InputError, match="list of callables"):
        activation(lambda z: np.sin(z), derivatives=np.cos)
    with pytest.raises(InputError, match="list of callables"):
        activation(lambda z: np.sin(z), derivatives=[1.0])
    with pytest.raises(InputError, match="shape"):
        activation(lambda z: 2.0 * z, derivatives=[lambda z: 2.0])


def test_scale_invariance_is_recognised() -> None:
    relu = activation(lambda z: np.maximum(z, 0.0))
    assert relu.degree == 1.0
    assert relu.slopes == pytest.approx((0.0, 1.0), abs=1e-12)
    assert relu.closed_form == "piecewise_polynomial"
    assert relu.kinks[0].jumps == activation("relu").kinks[0].jumps[:7]
    leaky = activation(scalar_leaky)
    assert leaky.slopes == pytest.approx((0.1, 1.0), abs=1e-12)
    slope = 0.123456789012
    odd_slope = activation(lambda z: np.where(z < 0, slope * z, z))
    assert odd_slope.slopes == pytest.approx((slope, 1.0), abs=1e-12)


@pytest.mark.parametrize(
    ("function", "parity", "degree", "pieces"),
    [
        (lambda z: z**3, "odd", 3.0, ((0, 0, 0, 1), (0, 0, 0, 1))),
        (lambda z: z**2 - 1.0, "even", None, ((-1, 0, 1), (-1, 0, 1))),
        (lambda z: np.abs(z) * z, "odd", 2.0, ((0, 0, -1), (0, 0, 1))),
        (lambda z: (z > 0) * 1.0, None, 0.0, ((0,), (1,))),
        (lambda z: np.clip(z, -1.0, 1.0), "odd", None, None),
        (lambda z: np.cosh(0.1 * z), "even", None, None),
        (lambda z: np.tanh(1e6 * z), "odd", None, None),
        (lambda z: z + z**2 / 4.0, None, None, ((0, 1, 0.25), (0, 1, 0.25))),
    ],
)
def test_features(
    function: Callable[..., Any], parity: str | None, degree: float | None, pieces: Any
) -> None:
    act = activation(function)
    assert act.parity == parity
    assert act.degree == degree
    if pieces is None:
        assert act.pieces is None
    else:
        assert act.pieces is not None
        for mine, expected in zip(act.pieces, pieces):
            assert mine == pytest.approx(expected, abs=1e-12)


def test_piecewise_polynomials_have_exact_derivatives() -> None:
    hard_swish = activation(lambda z: z * np.clip(z + 3.0, 0.0, 6.0) / 6.0)
    points = np.array([-4.0, -3.0, -1.0, 0.0, 2.999, 3.0, 5.0])
    inside = (points >= -3.0) & (points < 3.0)
    first = np.where(inside, points / 3.0 + 0.5, points >= 3.0)
    np.testing.assert_allclose(hard_swish.derivative(points, 1), first, rtol=1e-14)
    np.testing.assert_allclose(hard_swish.derivative(points, 2), inside / 3.0, rtol=1e-14)
    np.testing.assert_array_equal(hard_swish.derivative(points, 3), np.zeros(7))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda z: z.sum(), "shape"),
        (lambda z: z[:2], "shape"),
        (lambda z: 1.0, "shape"),
        (lambda z: np.log(z), "not finite at z"),
        (lambda z: 1.0 / z, "not finite at z = 0"),
        (lambda z: np.sqrt(z + 0j), "complex"),
        (lambda z: "text", "returned str values"),
        (lambda z: None, "returned NoneType values"),
        (lambda z: [None] * len(z), "returned NoneType values"),
        (lambda z: np.exp(z) / np.exp(z).sum(), "element by element"),
        (lambda z: z + np.random.default_rng().normal(size=z.shape), "random"),
        (lambda z: decimal.Decimal(z), "returned Decimal values"),
        (lambda z: cmath.tanh(z), "complex"),
        (lambda z: z / np.linalg.norm(z), "element by element"),
        (np.cumsum, "element by element"),
        (np.copysign, "fails on an array"),
        (lambda: 1.0, "fails on an array"),
        (lambda z: 1 / 0, "fails on an array"),
    ],
)
def test_callables_that_cannot_be_activations(function: Callable[..., Any], words: str) -> None:
    with pytest.raises(InputError, match=words) as caught:
        activation(function)
    assert "\n" not in str(caught.value)


def test_overflow_far_out_is_reported_where_it_happens() -> None:
    act = activation(lambda z: np.exp(z))
    assert float(act.value(2.0)) == pytest.approx(math.e**2)
    with pytest.raises(InputError, match="z = 1000"):
        act.value(np.array([0.0, 1000.0]))


@pytest.mark.slow(after=1)
@pytest.mark.parametrize("function", [lambda z: np.exp(z**2), lambda z: math.exp(z * z)])
def test_windows_that_overflow_are_avoided(function: Callable[..., Any]) -> None:
    act = activation(function)
    points = np.linspace(-1.0, 1.0, 300)
    np.testing.assert_allclose(act.derivative(points, 1), 2.0 * points * np.exp(points**2), atol=1e-12)
    edge = 22.0
    assert float(act.derivative(edge, 1)) == pytest.approx(2.0 * edge * math.exp(edge**2), rel=1e-9)


def test_parameters_cannot_be_forwarded() -> None:
    with pytest.raises(InputError, match=r"functools\.partial"):
        activation(scaled_tanh, steepness=2.0)


@pytest.mark.slow
def test_jumps_of_number_by_number_functions() -> None:
    """The value at a jump belongs to one side only, however many digits it is computed with."""

    def jumping(z: Any) -> Any:
        return 1 + z * z / (1 + z * z) if z > 0.5 else 0.5 * z / (1 + z * z)

    (kink,) = activation(jumping).kinks
    assert kink.location == 0.5
    assert kink.jumps[:2] == pytest.approx((1.0, 0.4), rel=1e-9)
    floor = activation(math.floor)
    assert [kink.location for kink in floor.kinks] == list(range(-20, 21))
    assert {kink.jumps[:2] for kink in floor.kinks} == {(1.0, 0.0)}


@pytest.mark.slow
def test_splines_with_faint_knots() -> None:
    knots = np.arange(-25.0, 26.0)
    spline = interpolate.CubicSpline(knots, np.tanh(knots))
    act = activation(spline)
    found = {round(kink.location, 5): kink.jump(3) for kink in act.kinks}
    for knot in (-3.0, -2.0, -1.0, 1.0, 2.0, 3.0):
        expected = float(spline(knot + 0.5, 3) - spline(knot - 0.5, 3))
        assert found[knot] == pytest.approx(expected, rel=1e-6)


def test_functions_that_know_one_axis_only() -> None:
    def listed(z: Any) -> list[float]:
        return [math.tanh(x) for x in z]

    act = activation(listed)
    points = np.linspace(-1.0, 1.0, 6).reshape(2, 3)
    np.testing.assert_allclose(act.derivative(points, 1), 1.0 - np.tanh(points) ** 2, atol=1e-13)


def test_failures_at_some_points_are_told_in_one_sentence() -> None:
    def narrow_minded(z: Any) -> Any:
        if np.max(np.abs(z)) > 100.0:
            raise KeyError("too far")
        return np.tanh(z)

    act = activation(narrow_minded)
    with pytest.raises(InputError, match=r"KeyError: 'too far'"):
        act.value(np.array([1.0, 130.0]))


def test_single_precision_with_given_derivatives() -> None:
    def single(z: Any) -> Any:
        return np.tanh(z).astype(np.float32)

    act = activation(single, kinks=(), derivatives=[lambda z: 1.0 - np.tanh(z) ** 2])
    np.testing.assert_allclose(act.derivative(Z, 2), activation("tanh").derivative(Z, 2), atol=1e-9)
    with pytest.raises(InputError, match="belong"):
        activation(single, kinks=(), derivatives=[lambda z: 1.001 - np.tanh(z) ** 2])


def test_inputs_are_not_modified() -> None:
    def rude(z: Any) -> Any:
        z *= 2.0
        return z

    points = np.array([1.0, 2.0])
    assert activation(rude).value(points).tolist() == [2.0, 4.0]
    assert points.tolist() == [1.0, 2.0]


def test_shapes_types_and_identity() -> None:
    def smooth(z: Any) -> Any:
        return np.arctan(z)

    act = activation(smooth)
    assert act.derivative(np.zeros((2, 3), dtype=np.float32), 2).dtype == np.float32
    assert act.derivative(np.zeros((2, 0)), 2).shape == (2, 0)
    assert act.derivative(0.0, 1) == pytest.approx(1.0)
    assert act == activation(smooth)
    assert hash(act) == hash(activation(smooth))
    assert act != activation(lambda z: np.arctan(z))


def test_pickles_when_the_callable_does() -> None:
    act = activation(scalar_leaky)
    copy = pickle.loads(pickle.dumps(act))
    np.testing.assert_array_equal(copy.derivative(Z, 1), act.derivative(Z, 1))
    numerical = activation(partial(scaled_tanh, steepness=2.0))
    copy = pickle.loads(pickle.dumps(numerical))
    np.testing.assert_array_equal(copy.derivative(Z, 2), numerical.derivative(Z, 2))


class TestRememberedCallables:
    """A callable that was measured is known again, unless its values have changed."""

    def test_the_same_callable_is_measured_once(self) -> None:
        calls = []

        def wavy(t: np.ndarray) -> np.ndarray:
            calls.append(t.size)
            return np.tanh(t) + 0.1 * np.sin(3 * t)

        first = activation(wavy)
        measured = len(calls)
        assert activation(wavy) is first
        assert (
            len(calls) <= measured + 2
        )  # its values, and a look whether it is of torch where torch is loaded
        assert activation(lambda t: wavy(t)) is not first

    def test_a_callable_that_changed_is_measured_again(self) -> None:
        scale = [1.0]

        def scaled(t: np.ndarray) -> np.ndarray:
            return np.maximum(t, 0) if scale[0] == 0 else np.tanh(scale[0] * t)

        first = activation(scaled)
        scale[0] = 2.0
        second = activation(scaled)
        assert second is not first
        z = np.linspace(-2, 2, 2001)  # so many that derivatives come from a table
        np.testing.assert_allclose(second.derivative(z, 1), 2 / np.cosh(2 * z) ** 2, atol=1e-6)
        scale[0] = 0.0
        assert activation(scaled).kinks
        scale[0] = np.inf  # 0 inf at the origin: it fails, and is refused again
        with pytest.raises(InputError):
            activation(scaled)

    def test_given_derivatives_and_kinks_belong_to_what_is_remembered(self) -> None:
        slope = [1.0]

        def rise(t: np.ndarray) -> np.ndarray:
            return slope[0] / np.cosh(t) ** 2

        first = activation(np.tanh, derivatives=[rise], name="mine")
        assert activation(np.tanh, derivatives=[rise], name="mine") is first
        assert activation(np.tanh, derivatives=[rise], name="other") is not first
        assert activation(np.tanh, kinks=(), name="mine") is not first
        slope[0] = 2.0
        with pytest.raises(InputError, match="must belong to the values"):
            activation(np.tanh, derivatives=[rise], name="mine")

    def test_only_the_last_are_remembered(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(custom, "_REMEMBERED", 2)
        functions = [lambda t, k=k: np.tanh(t) + k for k in range(3)]
        found = [activation(function) for function in functions]
        assert len(custom._known) == 2
        assert activation(functions[2]) is found[2]
        assert activation(functions[0]) is not found[0]
